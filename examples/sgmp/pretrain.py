"""Pretrain SGMP on subtree growth: tell from a node's ancestors where its children will be.

    python examples/sgmp/pretrain.py                    the settings of the report, batch 16
    python examples/sgmp/pretrain.py --edges 200 2000   graphs of up to 2,000 edges
    python examples/sgmp/pretrain.py --quick            a smoke test

The pretext task is that of Representation Learning of Geometric Trees (arXiv 2408.08799). Lengths
and angles of a node's children, spread over radial functions, are a distribution. The model
predicts the distribution from the node's state. The loss is the earth mover's distance: in one
dimension, the difference of cumulative sums. Edges lead from a node to older nodes, so that no
state knows the node's children.
"""

import argparse
import math
import time
from collections.abc import Iterator

import torch
from graphs import SpatialGraph, batch_of, grow
from sgmp import SGMP, RadialBasis
from torch import Tensor, nn

from kgfast.extras.paths import Paths, angle

LONGEST = 4.0  # longest step, in the units of positions


class SubtreeGrowth(nn.Module):
    """Model that predicts the lengths and angles of a node's children."""

    def __init__(self, encoder: SGMP, hidden: int, num_centres: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.lengths = RadialBasis(0.0, LONGEST, num_centres)
        self.angles = RadialBasis(0.0, math.pi, num_centres)
        self.head = nn.Sequential(
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2 * num_centres)
        )

    def forward(self, graph: SpatialGraph) -> Tensor:
        """Return the loss of all nodes that have a parent and children."""
        states = self.encoder(graph.features, graph.positions, graph.edge_index)
        nodes, truth = self.children(graph)
        predicted = self.head(states[nodes]).unflatten(1, (2, -1)).softmax(2)
        return (predicted - truth).cumsum(2).abs().mean(2).sum(1).mean()

    def children(self, graph: SpatialGraph) -> tuple[Tensor, Tensor]:
        """Return nodes, and the distributions of their children, ``[n, 2, num_centres]``."""
        child = (graph.parent >= 0).nonzero()[:, 0]
        node = graph.parent[child]
        child, node = child[graph.parent[node] >= 0], node[graph.parent[node] >= 0]
        above, at, below = (graph.positions[it] for it in (graph.parent[node], node, child))
        spread = torch.stack(
            [self.lengths((below - at).norm(dim=1)), self.angles(angle(above, at, below))], dim=1
        )
        nodes, place = node.unique(return_inverse=True)
        total = torch.zeros(len(nodes), *spread.shape[1:]).index_add(0, place, spread)
        return nodes, total / total.sum(2, keepdim=True)


def batches(options: argparse.Namespace) -> Iterator[SpatialGraph]:
    """Yield batches without end, from graphs that are drawn once."""
    generator = torch.Generator().manual_seed(options.seed)
    low, high = options.edges
    graphs = []
    for _ in range(options.graphs):
        edges = int(torch.randint(low, high + 1, (), generator=generator))
        graphs.append(grow(options.nodes, edges, generator))
    while True:
        for some in torch.randperm(len(graphs), generator=generator).split(options.batch):
            yield batch_of([graphs[it] for it in some.tolist()])


def train(options: argparse.Namespace) -> list[float]:
    """Train; return the losses of all steps."""
    torch.manual_seed(options.seed)
    encoder = SGMP(2, options.hidden, options.interactions, options.centres, LONGEST, options.chunk)
    model = SubtreeGrowth(encoder, options.hidden, options.centres)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.rate)
    losses = []
    for step, graph in zip(range(1, options.steps + 1), batches(options), strict=False):
        start = time.perf_counter()
        loss = model(graph)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        paths = len(Paths(graph.edge_index, len(graph.positions)))
        seconds = time.perf_counter() - start
        print(f"step {step}: loss {losses[-1]:.4f}, {paths:,} paths, {seconds:.1f} s", flush=True)
    return losses


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="tiny graphs and widths: seconds")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=16, help="graphs of a step")
    parser.add_argument("--graphs", type=int, default=64, help="graphs that are drawn")
    parser.add_argument("--nodes", type=int, default=100, help="of a graph")
    parser.add_argument("--edges", type=int, nargs=2, default=[200, 300], metavar=("FROM", "TO"))
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--interactions", type=int, default=3)
    parser.add_argument("--centres", type=int, default=20, help="radial functions for a length")
    parser.add_argument("--rate", type=float, default=3e-3, help="of Adam")
    parser.add_argument("--chunk", type=int, help="paths at once; the library's unless given")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.quick:
        options.nodes, options.edges, options.graphs, options.batch = 12, [16, 20], 4, 2
        options.hidden, options.interactions, options.centres, options.steps = 8, 2, 5, 12
    return options


if __name__ == "__main__":
    train(parsed())
