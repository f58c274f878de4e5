"""Packing as the host asks for it: rows into panels, coefficients into uniform vectors."""

import torch
from torch import Tensor

from ..scores import Score
from . import launch as launcher
from .operands import view_args
from .pack import PACK_FEATURES, PACK_ROWS, describe, pack


def pack_panels(
    rows: Tensor,
    facts: Score,
    dim: int,
    lanes: int,
    *,
    ids: Tensor | None = None,
    negate: bool = False,
    status: Tensor | None = None,
) -> Tensor:
    """The first ``dim`` features, packed: ``[panels][dim][planes][lanes]``, flat.

    Of all rows, or of ``ids``. With ``status [2]`` the second is lowered to the least row that
    holds a number that is not finite.
    """
    return _pack(rows, view_args(rows, facts), dim, facts.planes, lanes, ids, negate, status)


def pack_weights(weights: Tensor, lanes: int) -> Tensor:
    """``[R, O]`` of any strides as ``[tiles][O][lanes]``, flat."""
    row_stride, step = weights.stride()
    view: dict[str, Tensor | int] = {
        "p_table": weights,
        "row_stride": row_stride,
        "plane_stride": 0,
        "step": step,
    }
    return _pack(weights, view, weights.shape[1], 1, lanes, None, False, None)


def _pack(
    rows: Tensor,
    view: dict[str, Tensor | int],
    features: int,
    planes: int,
    lanes: int,
    ids: Tensor | None,
    negate: bool,
    status: Tensor | None,
) -> Tensor:
    count = len(rows) if ids is None else len(ids)
    panels = -(-count // lanes)
    out = torch.empty(panels * features * planes * lanes, device=rows.device)
    launcher.launch(
        pack,
        (panels * (lanes // PACK_ROWS), -(-features // PACK_FEATURES)),
        {
            **view,
            "p_ids": ids,
            "first_row": 0,
            "count": count,
            "num_features": features,
            "p_out": out,
            "p_status": status,
            "PLANES": planes,
            "LANES": lanes,
            "HAS_IDS": ids is not None,
            "NEGATE": negate,
            "CHECK": status is not None,
            "ROWS": PACK_ROWS,
            "FEATURES": PACK_FEATURES,
        },
        num_warps=4,
    )
    return out


def describe_lanes(
    rows: Tensor,
    facts: Score,
    dim: int,
    lanes: int,
    norm: int,
    *,
    ids: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """The bias of every lane and an upper bound on its norm: ``[panels, 2, lanes]``."""
    count = len(rows) if ids is None else len(ids)
    panels = -(-count // lanes)
    out = torch.empty(panels, 2, lanes, device=rows.device)
    launcher.launch(
        describe,
        (panels * (lanes // PACK_ROWS),),
        {
            **view_args(rows, facts),
            "p_bias": bias,
            "bias_stride": 0 if bias is None else bias.stride(0),
            "p_ids": ids,
            "first_row": 0,
            "count": count,
            "num_features": dim,
            "p_lane": out,
            "PLANES": facts.planes,
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
