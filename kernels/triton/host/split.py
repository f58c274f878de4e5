"""Dot products on tensor cores: the split of rows, the error bound of the sweep, the launches.

Let ``q = q_hi + q_lo + q_rest``, and likewise ``c``, with each part rounded to bfloat16. The sweep
(device/split_sweep.py) leaves out ``q_lo c_lo``, ``q c_rest`` and ``q_rest (c - c_rest)``. Tensor
cores cut off sums: the bound has room for :data:`CUT` of the largest addend for each product. A
device shows once that its tensor cores lose no more (:func:`holds`), or they sweep nothing.
docs/explanation/exactness.md has the derivation.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ..device.arguments import Norm, Vector
from ..device.pack import Panel
from ..device.split_sweep import (
    SPLIT_FEATURES,
    SPLIT_NORMS,
    SplitRows,
    pack_parts,
    store_products,
)
from . import bounds
from . import launch as launcher
from .bounds import ErrorBound
from .configs import CropTile
from .layout import Selection, pack_lanes
from .views import plane_of

CUT = 3 * bounds.UNIT  # error of one product, relative to the largest addend: twice 1.5 units
BITS = range(20, 28)  # widths of sums in tensor cores, each with a row of which they lose most
_LOW = 2.0**-8 * (1 + 2.0**-7)  # the lower part of a number, relative to the number
_FLUSHED = 2.0**-122  # many times the loss of a number below the smallest normal one
_TERMS = 1 + SPLIT_NORMS  # terms of a packed row: bias, norms
_PROBE = CropTile(64, 64, 4, stages=1)  # the least that tensor cores of an sm_90 multiply
_MEASURED: dict[torch.device, float] = {}  # largest loss of a product, of each device of a process


def holds(device: torch.device) -> bool:
    """Return True if tensor cores of a GPU lose no more than :data:`CUT`; measured at first use.

    The first call for a device waits for a kernel. Nothing can be measured within the capture of a
    CUDA graph, or of tensors without values: the answer is False there until it was measured.
    Tensors elsewhere than on a GPU only stand for those of one: True.
    """
    if device not in _MEASURED and device.type == "cuda":
        if _get_current_dispatch_mode() or torch.cuda.is_current_stream_capturing():
            return False
        _MEASURED[device] = largest_loss(device)
    return _MEASURED.get(device, 0.0) <= CUT


def largest_loss(device: torch.device) -> float:
    """Return what tensor cores lose of a product of hard rows, relative to the largest addend."""
    sides = zip(*(hard_rows(1, bits) for bits in BITS), strict=True)
    query, candidate = (torch.cat(side) for side in sides)
    query[::2, 1:] *= -1
    exact = query.double() @ candidate.double().T
    below = (0, 0, 0, _PROBE.rows - len(BITS))
    q, c = (pad(side.bfloat16(), below).to(device) for side in (query, candidate))
    out = torch.empty(len(q), len(c), dtype=torch.float32, device=device)
    arguments = {
        "queries": SplitRows(q, torch.zeros_like(q), None),
        "candidates": SplitRows(c, None, None),
        "p_out": out,
        "num_features": SPLIT_FEATURES,
        "stride": len(c),
        "TILE": _PROBE,
    }
    launcher.launch(store_products, (1, 1), arguments, num_warps=_PROBE.num_warps)
    lost = out.cpu()[: len(BITS), : len(BITS)].double() - exact
    return float(lost.abs().max()) / SPLIT_FEATURES


def hard_rows(steps: int, bits: int) -> tuple[Tensor, Tensor]:
    """Return rows ``[1, 32 steps]`` with a product of 1 a step, beside which others are cut off."""
    queries = torch.full((1, SPLIT_FEATURES * steps), 2.0**-12, dtype=torch.float32, device="cpu")
    candidates = torch.full_like(queries, 2.0 ** (13 - bits) * (1 - 2.0**-8))
    queries[:, ::SPLIT_FEATURES] = candidates[:, ::SPLIT_FEATURES] = 1.0
    return queries, candidates


def split_bound(num_features: int) -> ErrorBound:
    """Return the bound for rows of ``num_features``, on the distance from the canonical product.

    ``|swept - canonical| <= rel |canonical| + absolute + flushed (|q| + |c|) + sums |q| |c|
    + |q_lo| |c_lo| + |q| |c_rest| + |q_rest| (|c| + |c_rest|)``: rows of margins are the base and
    the slopes of the three norms of a candidate, which have factors of the three norms of a query.
    """
    d, steps = float(num_features), -(-num_features // SPLIT_FEATURES)
    small, large = 2 * _LOW * (1 + 2.0**-7), (1 + 2.0**-7) ** 2  # bounds of the products of a step
    cut = CUT * SPLIT_FEATURES * (2 * small + small + large)
    added = steps * bounds.UNIT * (small + large)
    sums = (cut + added) * (1 + 2.0**-7) + (d + 8) * 2.0**-52
    absolute = d * _FLUSHED if steps * bounds.UNIT <= 2.0**-8 else math.inf
    flushed = math.sqrt(d) * _FLUSHED
    base, of_row = (absolute, flushed, 0.0, 0.0), (flushed, sums, 0.0, 1.0)
    margins = bounds.rounded(*base, *of_row, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0)
    return ErrorBound(8 * bounds.UNIT, Norm.EUCLIDEAN, margins)


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
    panels, is_whole = -(-selection.size // width), rows.dtype == torch.bfloat16
    numbers = panels * width * -(-dim // SPLIT_FEATURES) * SPLIT_FEATURES
    packed = SplitRows(
        rows.new_empty(numbers, dtype=torch.bfloat16),
        None if is_whole else rows.new_empty(numbers, dtype=torch.bfloat16),
        rows.new_empty(panels, _TERMS, width, dtype=torch.float32),
    )
    panel = Panel(width, 1, 0, Norm.EUCLIDEAN.value, is_negated=is_negated)
    lanes = selection.of(plane_of(rows), status)
    pack_lanes(pack_parts, lanes, selection, dim, panel, bias=bias, packed=packed)
    return packed
