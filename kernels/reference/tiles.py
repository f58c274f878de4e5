"""Tiles of one crop of the operands, with rows checked and scored in place."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..checks import Checks, check_finite
from ..ieee import ieee_arithmetic
from ..operands import Operands
from .canonical import canonical_scores, crop

TILE = 1 << 19  # pairs scored at once: 4 MiB per float64 temporary


class Tiles:
    """Canonical scores of one crop of the operands."""

    def __init__(self, operands: Operands, dim: int, checks: Checks) -> None:
        self.candidates, self.dim, self.checks = operands.candidates, dim, checks
        self.queries = crop(operands.queries, operands.score, dim, operands.query_planes)
        if not checks.allows_nan:
            check_finite("queries", self.queries)

    def tile(self, rows: slice | Tensor, ids: Tensor) -> Tensor:
        """Score some queries with candidates ``ids``: ``[b, n]``."""
        return self._scores(self.queries[rows, None, :], ids)

    def pairs(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Score queries ``rows[P]`` with candidates ``ids[P]``: ``[P]``."""
        step = max(1, TILE // max(1, self.candidates.table.shape[1]))
        parts = [
            self._scores(self.queries[rows[i : i + step]], ids[i : i + step])
            for i in range(0, len(ids), step)
        ]
        return torch.cat(parts) if parts else ids.new_empty(0, dtype=torch.float64)

    def _scores(self, queries: Tensor, ids: Tensor) -> Tensor:
        pool = self.candidates
        table = crop(pool.table[ids], pool.score, self.dim)
        factor = None if pool.factor is None else pool.factor[ids, : self.dim]
        if not self.checks.allows_nan:
            check_finite("candidates", table, ids)
            if factor is not None:
                check_finite("factor", factor, ids)
        bias = None if pool.whole_bias is None else pool.whole_bias[ids]
        return canonical_scores(queries, table, pool.score, bias, factor)


@contextmanager
def scoring(
    operands: Operands, checks: Checks
) -> Iterator[Callable[[int, Tensor, Tensor], Tensor]]:
    """Yield a function of canonical scores of pairs, for :mod:`kgfast.kernels.lists`."""
    with ieee_arithmetic():
        tiles = {dim: Tiles(operands, dim, checks) for dim in set(operands.crops)}
        yield lambda dim, rows, ids: tiles[dim].pairs(rows, ids)
