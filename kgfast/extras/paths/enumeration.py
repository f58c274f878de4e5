"""The paths of a graph by number: any path, without making the paths before it.

The number of paths that begin with an edge is a sum over the edges that may follow. So counts of
one length come from the counts of the length below by prefix sums. A path's number is then read
digit by digit: a binary search for each edge of the path.

Cost model: O(order E) numbers are stored; a chunk of P paths takes O(P order) numbers and O(P order
log E) steps. No Python loop runs over nodes, edges or paths.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from kgfast.ops import check_int, check_tensor
from kgfast.text import shown

CHUNK = 2048  # default number of paths of a chunk: benchmarks/paths_speed.py
_MOST = 2**62  # paths that can be numbered


class Paths:
    """All paths of ``order`` edges of a directed graph, in a fixed order.

    Parameters
    ----------
    edge_index : Tensor, int64 or int32 [2, E]
        Edges from ``edge_index[0]`` to ``edge_index[1]``; an undirected edge is two edges.
        Parallel edges are different edges, and make different paths.
    num_nodes : int
        Nodes are 0 to ``num_nodes - 1``.
    order : int
        Edges of a path, at least 1; a path has one node more.
    backtracking : bool
        Allow a path to return at once to the node before (i -> j -> i). A triangle may close (i ->
        j -> k -> i) in either case.
    by : "first" or "last"
        Order paths by their edges from the first to the last, or from the last to the first: paths
        that begin, or end, in one node are neighbours. Edges are ordered by their nodes, parallel
        edges as given.

    Raises
    ------
    TypeError, ValueError
        If an argument does not fit, an edge leads to a missing node, or there are more than 2^62
        paths.

    Examples
    --------
    >>> square = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    >>> paths = Paths(square, 4)
    >>> len(paths)
    4
    >>> paths[1:3]
    tensor([[1, 2, 3, 0],
            [2, 3, 0, 1]])
    """

    def __init__(
        self,
        edge_index: Tensor,
        num_nodes: int,
        *,
        order: int = 3,
        backtracking: bool = False,
        by: Literal["first", "last"] = "first",
    ) -> None:
        _check(edge_index, num_nodes, order)
        if by not in ("first", "last"):
            raise ValueError(f'by must be "first" or "last"; got {shown(by)}')
        self.num_nodes, self.order, self.backtracking, self.by = num_nodes, order, backtracking, by
        ends = edge_index.long()
        sources, targets = (ends[0], ends[1]) if by == "first" else (ends[1], ends[0])
        keys, permutation = torch.sort(sources * max(1, num_nodes) + targets, stable=True)
        self._sources, self._targets = sources[permutation], targets[permutation]
        nodes = torch.arange(num_nodes + 1, dtype=torch.int64, device=keys.device)
        self._indptr = torch.searchsorted(self._sources, nodes)
        self._back: tuple[Tensor, Tensor] | None = None
        if not backtracking:  # for each edge, the range of the sorted edges that lead back
            back = self._targets * max(1, num_nodes) + self._sources
            last = torch.searchsorted(keys, back, right=True)
            self._back = torch.searchsorted(keys, back), last
        self._counts = self._count()
        self._starts = self._counts[-1][self._indptr].cpu()

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, which: slice) -> Tensor:
        """Return the paths of a range of numbers, int64 ``[P, order + 1]``."""
        start, stop, step = which.indices(len(self))
        device = self._indptr.device
        ranks = torch.arange(start, max(start, stop), step, dtype=torch.int64, device=device)
        counts = self._counts[-1]
        edges = torch.searchsorted(counts[1:], ranks, right=True)
        rest = ranks - counts[edges]
        nodes = [self._sources[edges], self._targets[edges]]
        for counts in reversed(self._counts[:-1]):
            rest = rest + counts[self._indptr[nodes[-1]]]
            if self._back is not None:
                low, high = counts[self._back[0][edges]], counts[self._back[1][edges]]
                rest = torch.where(rest >= low, rest + (high - low), rest)
            edges = torch.searchsorted(counts[1:], rest, right=True)
            rest = rest - counts[edges]
            nodes.append(self._targets[edges])
        return torch.stack(nodes if self.by == "first" else nodes[::-1], dim=1)

    def chunks(self, size: int = CHUNK) -> Iterator[Tensor]:
        """Yield all paths, ``size`` (at least 1) at a time."""
        check_int("chunk", size, 1)
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def per_node(self) -> Tensor:
        """Return the number of paths that begin (``by="last"``: end) in each node, int64."""
        return self._starts.diff().to(self._indptr.device)

    def segments(self, start: int, stop: int) -> tuple[int, Tensor]:
        """Return the first node that has paths in a range, and CPU offsets of the nodes' paths."""
        first = int(torch.searchsorted(self._starts, start, right=True)) - 1
        last = int(torch.searchsorted(self._starts, stop))
        return first, self._starts[first : last + 1].clamp(start, stop) - start

    def _count(self) -> list[Tensor]:
        """Return prefix sums of the paths of 1 to ``order`` edges that begin with each edge."""
        size = len(self._sources)
        counts = [torch.arange(size + 1, dtype=torch.int64, device=self._sources.device)]
        for _ in range(1, self.order):
            sums = counts[-1]
            following = sums[self._indptr[self._targets + 1]] - sums[self._indptr[self._targets]]
            if self._back is not None:
                following -= sums[self._back[1]] - sums[self._back[0]]
            if float(following.double().sum()) > _MOST:
                raise ValueError(
                    f"there are more than 2^62 paths of {self.order} edges: too many to be numbered"
                )
            counts.append(torch.cat([sums[:1], following.cumsum(0)]))
        return counts


def _check(edge_index: Tensor, num_nodes: int, order: int) -> None:
    check_tensor("edge_index", edge_index, (torch.int64, torch.int32))
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"edge_index must be [2, E]; got {tuple(edge_index.shape)}")
    check_int("num_nodes", num_nodes, 0)
    check_int("order", order, 1)
    wrong = ((edge_index < 0) | (edge_index >= num_nodes)).any(0)
    if bool(wrong.any()):
        place = int(wrong.nonzero()[0])
        raise ValueError(
            f"edge_index: edge {place} is {edge_index[:, place].tolist()}; nodes are 0 to "
            f"num_nodes - 1 = {num_nodes - 1}"
        )
