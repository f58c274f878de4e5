"""Synthetic spatial graphs that grew: trees in space with branches, and links to near nodes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SpatialGraph:
    """Nodes in the order in which they grew.

    Attributes
    ----------
    positions : Tensor [N, 3]
    edge_index : Tensor [2, E]
        Edges from a node to its parent and to near older nodes.
    parent : Tensor [N]
        The older node that a node grew from; -1 for a root.
    features : Tensor [N, 2]
        A constant, and whether the node is a root.
    """

    positions: Tensor
    edge_index: Tensor
    parent: Tensor
    features: Tensor


def grow(num_nodes: int, num_edges: int, generator: torch.Generator) -> SpatialGraph:
    """Grow a graph whose branches keep their direction and length of step, but for noise.

    Parameters
    ----------
    num_nodes : int
        At least 2.
    num_edges : int
        ``num_nodes - 1`` edges of the tree, and the shortest other edges. At most every pair has an
        edge.
    generator : torch.Generator
        Generators in the same state make equal graphs.
    """
    most = num_nodes * (num_nodes - 1) // 2
    if num_nodes < 2 or not num_nodes - 1 <= num_edges <= most:
        raise ValueError(
            f"{num_nodes} nodes have {max(num_nodes - 1, 1)} to {most} edges; got {num_edges}"
        )
    positions = torch.zeros(num_nodes, 3)
    directions = torch.nn.functional.normalize(torch.randn(num_nodes, 3, generator=generator))
    noise = 0.4 * torch.randn(num_nodes, 3, generator=generator)
    steps = (0.2 * torch.randn(num_nodes, generator=generator)).exp()
    parent = torch.full((num_nodes,), -1)
    for node in range(1, num_nodes):  # most nodes grow from the last few: long branches
        back = 1 + int(3 * torch.rand((), generator=generator) ** 2 * min(node, 4))
        above = max(0, node - back)
        parent[node] = above
        directions[node] = torch.nn.functional.normalize(directions[above] + noise[node], dim=0)
        steps[node] = (steps[above] * steps[node]).clamp(0.3, 3.0)
        positions[node] = positions[above] + steps[node] * directions[node]
    tree = torch.stack([torch.arange(1, num_nodes), parent[1:]])
    others = torch.tril_indices(num_nodes, num_nodes, -1)
    others = others[:, parent[others[0]] != others[1]]
    lengths = (positions[others[0]] - positions[others[1]]).norm(dim=1)
    near = lengths.argsort(stable=True)[: num_edges - num_nodes + 1]
    features = torch.stack([torch.ones(num_nodes), (parent < 0).float()], dim=1)
    return SpatialGraph(positions, torch.cat([tree, others[:, near]], dim=1), parent, features)


def batch_of(graphs: Sequence[SpatialGraph]) -> SpatialGraph:
    """Join graphs to one disconnected graph."""
    parts, first = [], 0
    for graph in graphs:
        parent = torch.where(graph.parent < 0, graph.parent, graph.parent + first)
        parts.append((graph.positions, graph.edge_index + first, parent, graph.features))
        first += len(graph.positions)
    positions, edges, parents, features = zip(*parts, strict=True)
    return SpatialGraph(
        torch.cat(positions), torch.cat(edges, dim=1), torch.cat(parents), torch.cat(features)
    )
