"""SGMP, a network whose messages pass along paths of three edges, over ``kgfast.extras.paths``.

Zhang and Zhao, Representation Learning on Spatial Networks, NeurIPS 2021. A path i -> j -> k -> p
tells its first node the states of its four nodes and their geometry. The geometry is three
distances, two angles and a torsion, each spread over radial basis functions. Plain torch stores the
states of all paths until the backward, seven times as wide as a node's state. This code stores one
chunk of paths at a time.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.nn.functional import embedding

from kgfast.extras.paths import Paths, angle, path_sum, torsion


class RadialBasis(nn.Module):
    """``exp(-(x - centre)^2 / (2 step^2))`` for centres one step apart."""

    def __init__(self, low: float, high: float, num_centres: int) -> None:
        super().__init__()
        self.register_buffer("centres", torch.linspace(low, high, num_centres))
        self.gamma = 0.5 / ((high - low) / (num_centres - 1)) ** 2

    def forward(self, values: Tensor) -> Tensor:
        """Return ``[..., num_centres]``."""
        return torch.exp(-self.gamma * (values[..., None] - self.centres).square())


@dataclass(frozen=True)
class Geometry:
    """The lengths that place j, k and p of paths, as radial functions."""

    first: Tensor  # [P, K]: distance of j
    second: Tensor  # [P, 2K]: distance of k from j, and angle at j
    third: Tensor  # [P, 3K]: distance and angle of p, and the torsion about i -> j


class Places(nn.Module):
    """A module that encodes the positions of a path's nodes, free of rotation and shift."""

    def __init__(self, num_centres: int, cutoff: float) -> None:
        super().__init__()
        self.distances = RadialBasis(0.0, cutoff, num_centres)
        self.angles = RadialBasis(0.0, math.pi, num_centres)
        self.torsions = RadialBasis(-math.pi, math.pi, num_centres)

    def forward(self, positions: Tensor, path: Tensor) -> Geometry:
        """Encode ``path [P, 4]`` with ``positions [N, 3]``."""
        i, j, k, p = (embedding(ids, positions) for ids in path.unbind(1))
        steps = torch.stack([j - i, k - j, p - j])
        first, near, far = self.distances(vector_norm(steps, dim=2))
        return Geometry(
            first,
            torch.cat([near, self.angles(angle(i, j, k))], dim=1),
            torch.cat([far, self.angles(angle(i, j, p)), self.torsions(torsion(k, i, j, p))], 1),
        )


class Interaction(nn.Module):
    """Message of a path, from its four nodes and three encodings of their geometry."""

    def __init__(self, hidden: int, num_centres: int) -> None:
        super().__init__()
        self.places = nn.ModuleList(
            nn.Sequential(
                nn.Linear(count * num_centres, hidden), nn.ReLU(), nn.Linear(hidden, hidden)
            )
            for count in (1, 2, 3)
        )
        self.combine = nn.Sequential(
            nn.Linear(7 * hidden, 4 * hidden),
            nn.ReLU(),
            nn.Linear(4 * hidden, 2 * hidden),
            nn.ReLU(),
            nn.Linear(2 * hidden, hidden),
        )

    def forward(self, states: Tensor, geometry: Geometry, path: Tensor) -> Tensor:
        """Return messages ``[P, hidden]``; closed paths (i = p) have zeros: the paper has none."""
        parts = [embedding(ids, states) for ids in path.unbind(1)]
        given = (geometry.first, geometry.second, geometry.third)
        parts += [encode(it) for encode, it in zip(self.places, given, strict=True)]
        return self.combine(torch.cat(parts, dim=1)) * (path[:, :1] != path[:, 3:])


class SGMP(nn.Module):
    """Network of node states ``[N, hidden]`` of a spatial graph.

    Parameters
    ----------
    num_features : int
        Features of a node.
    hidden, num_interactions, num_centres : int
        Width of states, rounds of messages, radial functions of each length and angle.
    cutoff : float
        The longest distance that the radial functions tell apart.
    chunk : int, optional
        Paths at once; None for the default of ``path_sum``.
    """

    def __init__(
        self,
        num_features: int,
        hidden: int = 64,
        num_interactions: int = 3,
        num_centres: int = 20,
        cutoff: float = 10.0,
        chunk: int | None = None,
    ) -> None:
        super().__init__()
        self.embed = nn.Sequential(
            nn.Linear(num_features, hidden), nn.ReLU(), nn.Linear(hidden, hidden)
        )
        self.places = Places(num_centres, cutoff)
        self.interactions = nn.ModuleList(
            Interaction(hidden, num_centres) for _ in range(num_interactions)
        )
        self.chunk = chunk

    def forward(self, features: Tensor, positions: Tensor, edge_index: Tensor) -> Tensor:
        """Return states after all rounds; a round adds the mean of a node's messages."""
        states = self.embed(features)
        share = share_of_a_path(edge_index, len(features))
        for interaction in self.interactions:
            total = self.streamed(interaction, states, positions, edge_index)
            states = states + total * share
        return states

    def streamed(
        self, interaction: nn.Module, states: Tensor, positions: Tensor, edge_index: Tensor
    ) -> Tensor:
        """Add up the messages to each node, a chunk of paths at a time."""

        def message(path: Tensor, states: Tensor) -> Tensor:
            return interaction(states, self.places(positions, path), path)

        return path_sum(
            message, edge_index, len(states), inputs=[states], to="first", chunk=self.chunk
        )

    def held(
        self, interaction: nn.Module, states: Tensor, positions: Tensor, edge_index: Tensor
    ) -> Tensor:
        """Add up the messages to each node with all paths in memory."""
        path = Paths(edge_index, len(states))[:]
        messages = interaction(states, self.places(positions, path), path)
        return torch.zeros_like(states).index_add(0, path[:, 0], messages)


def share_of_a_path(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Return ``[N, 1]``: 1 over the number of paths that begin in a node; 1 where none does."""
    return 1.0 / Paths(edge_index, num_nodes).per_node().clamp(min=1)[:, None]
