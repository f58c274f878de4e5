"""Dot products on tensor cores: the split of rows, the error bound of the sweep, the launches.

Let ``q = q_hi + q_lo + q_rest``, and likewise ``c``, with each part rounded to bfloat16. The sweep
(device/split_sweep.py) leaves out ``q_lo c_lo``, ``q c_rest`` and ``q_rest (c - c_rest)``. Tensor
cores cut off sums: :data:`CUT` of the largest addend for each product. This number is an
assumption, twice the known cut; docs/explanation/exactness.md has the assumption and the
derivation.
"""

import math

import torch
from torch import Tensor

from ..device.arguments import Norm, Vector
from ..device.pack import PACK_ROWS
from ..device.split_sweep import (
    SPLIT_FEATURES,
    SPLIT_NORMS,
    SplitRows,
    pack_parts,
)
from . import bounds
from . import launch as launcher
from .bounds import ErrorBound
from .layout import Selection
from .views import plane_of

CUT = 3 * bounds.UNIT  # error of one product, relative to the largest addend: twice 1.5 units
_LOW = 2.0**-8 * (1 + 2.0**-7)  # the lower part of a number, relative to the number
_FLUSHED = 2.0**-122  # many times the loss of a number below the smallest normal one
_TERMS = 1 + SPLIT_NORMS  # terms of a packed row: bias, norms


def split_bound(num_features: int) -> ErrorBound:
    """Return the bound for rows of ``num_features``, on the distance from the canonical product.

    ``|swept - canonical| <= rel |canonical| + absolute + flushed (|q| + |c|) + sums |q| |c|
    + |q_lo| |c_lo| + |q| |c_rest| + |q_rest| (|c| + |c_rest|)``: rows of margins are the base and
    the slopes of the three norms of a candidate, which have factors of the three norms of a query.
    """
    d, steps = float(num_features), num_steps(num_features)
    small, large = 2 * _LOW * (1 + 2.0**-7), (1 + 2.0**-7) ** 2  # bounds of the products of a step
    cut = CUT * SPLIT_FEATURES * (2 * small + small + large)
    added = steps * bounds.UNIT * (small + large)
    sums = (cut + added) * (1 + 2.0**-7) + (d + 8) * 2.0**-52
    absolute = d * _FLUSHED if steps * bounds.UNIT <= 2.0**-8 else math.inf
    flushed = math.sqrt(d) * _FLUSHED
    base, of_row = (absolute, flushed, 0.0, 0.0), (flushed, sums, 0.0, 1.0)
    margins = bounds.rounded(*base, *of_row, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0)
    return ErrorBound(8 * bounds.UNIT, Norm.EUCLIDEAN, margins)


def num_steps(dim: int) -> int:
    """Return the steps of a sweep over ``dim`` features."""
    return -(-dim // SPLIT_FEATURES)


def has_low(rows: Tensor) -> bool:
    """Return True if the lower parts of these rows may hold more than zeros."""
    return rows.dtype != torch.bfloat16


def pack(
    rows: Tensor,
    selection: Selection,
    dim: int,
    width: int,
    *,
    status: Tensor | None = None,
    bias: Vector | None = None,
    is_negated: bool = False,
) -> SplitRows:
    """Pack rows in panels of ``width`` lanes, like ``layout.pack_candidates``."""
    panels = -(-selection.size // width)
    numbers = panels * width * num_steps(dim) * SPLIT_FEATURES
    packed = SplitRows(
        rows.new_empty(numbers, dtype=torch.bfloat16),
        rows.new_empty(numbers, dtype=torch.bfloat16) if has_low(rows) else None,
        rows.new_empty(panels, _TERMS, width, dtype=torch.float32),
    )
    launcher.launch(
        pack_parts,
        (panels * (width // PACK_ROWS),),
        {
            "lanes": selection.of(plane_of(rows), status),
            "bias": bias,
            "packed": packed,
            "count": selection.size,
            "num_features": dim,
            "LANES": width,
            "IS_NEGATED": is_negated,
        },
        num_warps=4,
    )
    return packed
