"""Packing as the host asks for it: rows into panels, coefficients into uniform vectors."""

import torch
from torch import Tensor

from ...scores import Score
from ..device.operands import view_args, view_of_factor
from ..device.pack import PACK_FEATURES, PACK_ROWS, describe, pack
from . import launch as launcher


def pack_panels(
    rows: Tensor,
    facts: Score,
    dim: int,
    lanes: int,
    *,
    ids: Tensor | None = None,
    negate: bool = False,
    status: Tensor | None = None,
    planes: int | None = None,
) -> Tensor:
    """The first ``dim`` features, packed: ``[panels][dim][planes][lanes]``, flat.

    Of all rows, or of ``ids``. With ``status [2]`` the second is lowered to the least row that
    holds a number that is not finite. ``planes``: of rows that are not candidates.
    """
    planes = planes or facts.planes
    out = _panels(rows, ids, lanes, dim * planes)
    view = view_args(rows, facts, planes=planes)
    _pack(rows, view, dim, lanes, ids, out, planes, negate=negate, status=status)
    return out


def pack_candidates(
    rows: Tensor,
    factor: Tensor | None,
    facts: Score,
    dim: int,
    lanes: int,
    *,
    ids: Tensor | None = None,
    status: Tensor | None = None,
    less_one: bool = False,
) -> Tensor:
    """As :func:`pack_panels`, with the factor as the last plane, less 1 if a sweep has folded it.

    ``status [3]``: the third is that of the factor's rows.
    """
    if factor is None:
        return pack_panels(rows, facts, dim, lanes, ids=ids, status=status)
    total = facts.planes + 1
    out = _panels(rows, ids, lanes, dim * total)
    view = view_args(rows, facts)
    _pack(rows, view, dim, lanes, ids, out, facts.planes, total=total, status=status)
    _pack(
        factor,
        view_of_factor(factor),
        dim,
        lanes,
        ids,
        out,
        1,
        first=facts.planes,
        total=total,
        less_one=less_one,
        status=None if status is None else status[1:],
    )
    return out


def pack_weights(weights: Tensor, lanes: int) -> Tensor:
    """``[R, O]`` of any strides as ``[tiles][O][lanes]``, flat."""
    row_stride, step = weights.stride()
    view: dict[str, Tensor | int] = {
        "p_table": weights,
        "row_stride": row_stride,
        "plane_stride": 0,
        "step": step,
    }
    out = _panels(weights, None, lanes, weights.shape[1])
    _pack(weights, view, weights.shape[1], lanes, None, out, 1)
    return out


def _panels(rows: Tensor, ids: Tensor | None, lanes: int, floats: int) -> Tensor:
    """Room for panels of rows of so many floats."""
    count = len(rows) if ids is None else len(ids)
    return rows.new_empty(-(-count // lanes) * lanes * floats, dtype=torch.float32)


def _pack(
    rows: Tensor,
    view: dict[str, Tensor | int],
    features: int,
    lanes: int,
    ids: Tensor | None,
    out: Tensor,
    planes: int,
    *,
    first: int = 0,
    total: int | None = None,
    less_one: bool = False,
    negate: bool = False,
    status: Tensor | None = None,
) -> None:
    count = len(rows) if ids is None else len(ids)
    launcher.launch(
        pack,
        (-(-count // lanes) * (lanes // PACK_ROWS), -(-features // PACK_FEATURES)),
        {
            **view,
            "p_ids": ids,
            "first_row": 0,
            "count": count,
            "num_features": features,
            "p_out": out,
            "p_status": status,
            "PLANES": planes,
            "FIRST": first,
            "TOTAL": total or planes,
            "LESS": less_one,
            "LANES": lanes,
            "HAS_IDS": ids is not None,
            "NEGATE": negate,
            "CHECK": status is not None,
            "ROWS": PACK_ROWS,
            "FEATURES": PACK_FEATURES,
        },
        num_warps=4,
    )


def describe_lanes(
    rows: Tensor,
    facts: Score,
    dim: int,
    lanes: int,
    norm: int,
    *,
    ids: Tensor | None = None,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
) -> Tensor:
    """The bias of every lane and an upper bound on its norm: ``[panels, 2, lanes]``.

    With a factor its norm is that of the factor.
    """
    count = len(rows) if ids is None else len(ids)
    panels = -(-count // lanes)
    out = rows.new_empty(panels, 2, lanes, dtype=torch.float32)
    launcher.launch(
        describe,
        (panels * (lanes // PACK_ROWS),),
        {
            **(view_args(rows, facts) if factor is None else view_of_factor(factor)),
            "p_bias": bias,
            "bias_stride": 0 if bias is None else bias.stride(0),
            "p_ids": ids,
            "first_row": 0,
            "count": count,
            "num_features": dim,
            "p_lane": out,
            "PLANES": facts.planes if factor is None else 1,
            "LANES": lanes,
            "HAS_IDS": ids is not None,
            "HAS_BIAS": bias is not None,
            "NORM": norm,
            "ROWS": PACK_ROWS,
            "FEATURES": PACK_FEATURES,
        },
        num_warps=4,
    )
    return out
