"""Sweeps by tensor cores in the interpreter: forced, emulated, and what they compute of a pair."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor

from kgfast.kernels.triton.device.split_sweep import store_products
from kgfast.kernels.triton.host import configs, split
from kgfast.kernels.triton.host.layout import Selection
from support.tensor_cores import tensor_cores

SMALL = configs.CropTile(16, 16, 1, stages=1)
TURNED = configs.CropTile(16, 32, 1, stages=1)  # rows of the tile are candidates


@contextmanager
def split_sweeps() -> Iterator[list[int]]:
    """Sweep dot products by emulated tensor cores, in small tiles."""
    with (
        tensor_cores() as calls,
        patch.object(configs, "splits", lambda score, *_: not score.monotone),
        patch.object(configs, "split_tile", lambda *_: SMALL),
        patch.object(configs, "FEW_QUERIES", 0),
    ):
        yield calls


def swept_products(
    queries: Tensor, candidates: Tensor, tile: configs.CropTile = SMALL
) -> tuple[Tensor, Tensor]:
    """Minus the products of all pairs as swept, and what they may be wrong by, ``[B, N]``."""
    dim = queries.shape[1]
    rows = split.pack(queries, Selection(len(queries)), dim, tile.rows, is_negated=True)
    panels = split.pack(candidates, Selection(len(candidates)), dim, tile.lanes)
    grid = len(rows.terms), len(panels.terms)
    out = queries.new_empty(grid[0] * tile.rows, grid[1] * tile.lanes, dtype=torch.float32)
    store_products[grid](
        *(rows, panels, out, dim, out.stride(0)), TILE=tile, num_warps=tile.num_warps
    )
    bound, norms = split.split_bound(dim), norms_of(rows, len(queries)).double()
    margins = torch.tensor(bound.margins, dtype=torch.float64).view(4, 4)
    base, *slopes = margins[:, 1:] @ norms + margins[:, :1]
    allowed = base[:, None] + bound.rel * (queries.double() @ candidates.double().T).abs()
    for slope, norm in zip(slopes, norms_of(panels, len(candidates)).double(), strict=True):
        allowed = allowed + slope[:, None] * norm
    return out[: len(queries), : len(candidates)], allowed


def norms_of(rows: split.SplitRows, count: int) -> Tensor:
    """Return upper bounds on norms of the first ``count`` rows and of parts, ``[3, R]``."""
    return rows.terms[:, 1:].transpose(0, 1).flatten(1)[:, :count]


def packed_parts(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pack 16 rows ``[16, D]``; return their parts and their norms ``[3, 16]``."""
    packed = split.pack(rows, Selection(16), rows.shape[1], 16)
    parts = (part.view(16, -1)[:, : rows.shape[1]].float() for part in packed[:2])
    return (*parts, norms_of(packed, 16).double())
