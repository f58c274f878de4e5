"""Gradients of filtering scores as the host asks for them (filtered_pull.py)."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...scores import Score
from ..device.backward_rscf import pull_filtered, pull_filtered_lists
from ..device.operands import factor_args, query_args, view_args
from ..device.terms import score_code
from . import launch as launcher
from .configs import FILTER_REGISTERS

if TYPE_CHECKING:
    from ..indexed import Lists
    from ..pairwise import Sink

WEIGHTS = 16  # rows of a packed tile of coefficients
QUERY_ROWS, CANDIDATE_ROWS = 4, 8  # of a program
LIST_PAIRS, LIST_FEATURES = 4, 32
_NOWHERE = {"p_grad": None, "g_row_stride": 0, "g_plane_stride": 0, "g_step": 0}


def pull_block(
    queries: Tensor,
    candidates: Tensor,
    factor: Tensor | None,
    facts: Score,
    arch: int,
    packed_weights: Tensor,
    sinks: "tuple[Sink | None, Sink | None]",
    low: int,
    high: int,
    *,
    of_queries: bool,
) -> None:
    """Add to the gradient of all queries, or to those of all candidates and their factor."""
    rows, others = (queries, candidates) if of_queries else (candidates, queries)
    tile = QUERY_ROWS if of_queries else CANDIDATE_ROWS
    features = 32 if arch else 64  # the lanes of a warp
    tiles, columns = -(-len(rows) // tile), -(-(high - low) // features)
    full = facts.num_features(candidates.shape[1])
    targets: list[Tensor | None] = []
    splits = None  # both sinks have as many
    for sink in sinks:
        target = None
        if sink is not None:
            target = sink.target(tiles * -(-full // features), len(others), splits)
            splits = len(target)
        targets.append(target)
    per_split = -(-len(others) // (splits or 1))
    into, into_factor = targets
    planes = facts.query_planes(factor is not None) if of_queries else facts.planes
    launcher.launch(
        pull_filtered,
        (tiles, columns, -(-len(others) // per_split)),
        {
            **query_args(queries, facts, factor),
            **view_args(candidates, facts, "p_table", "c_"),
            **factor_args(factor),
            "p_coefficient": packed_weights,
            **(_NOWHERE if into is None else view_args(into[0], facts, "p_grad", "g_", planes)),
            "split_stride": 0 if into is None else into.stride(0),
            "p_grad_factor": into_factor,
            "factor_split_stride": 0 if into_factor is None else into_factor.stride(0),
            "h_row_stride": 0 if into_factor is None else into_factor.stride(1),
            "num_rows": len(rows),
            "num_others": len(others),
            "others_per_split": per_split,
            "first_feature": low,
            "last_feature": high,
            "SCORE": score_code(facts),
            "PLANES": facts.planes,
            "OF_QUERIES": of_queries,
            "ROWS": tile,
            "FEATURES": features,
            "WEIGHTS": WEIGHTS,
        },
        num_warps=1,
        **({"maxnreg": FILTER_REGISTERS} if arch else {}),
    )


def pull_side(
    queries: Tensor,
    table: Tensor,
    factor: Tensor | None,
    facts: Score,
    lists: "Lists",
    weights: Tensor,
    grad: Tensor | None,
    extra: Tensor | None,
    grad_factor: Tensor | None,
    extra_factor: Tensor | None,
    low: int,
    high: int,
    *,
    of_queries: bool,
) -> None:
    """Write features ``low .. high - 1`` of the gradients of one side, or of their pieces."""
    planes = facts.query_planes(factor is not None) if of_queries else facts.planes
    plane_stride = 0 if grad is None else grad.shape[1] // planes
    args: dict[str, Any] = {
        **query_args(queries, facts, factor),
        **view_args(table, facts, "p_table", "c_"),
        **factor_args(factor),
        "p_order": lists.order,
        "p_others": lists.others,
        "p_weight": weights,
        "p_starts": lists.starts,
        "p_owners": lists.owners,
        "p_target": lists.target,
        "p_grad": grad,
        "p_extra": extra,
        "g_row_stride": 0 if grad is None else grad.stride(0),
        "g_plane_stride": plane_stride,
        "p_grad_factor": grad_factor,
        "p_extra_factor": extra_factor,
        "h_row_stride": 0 if grad_factor is None else grad_factor.stride(0),
        "first_feature": low,
        "last_feature": high,
        "SCORE": score_code(facts),
        "PLANES": facts.planes,
        "OF_QUERIES": of_queries,
        "HAS_ORDER": lists.order is not None,
        "PAIRS": LIST_PAIRS,
        "FEATURES": LIST_FEATURES,
    }
    grid = (len(lists.target), -(-(high - low) // LIST_FEATURES))
    launcher.launch(pull_filtered_lists, grid, args, num_warps=1)


def extra_rows(grad: Tensor | None, count: int) -> Tensor | None:
    """Float32 room for the pieces of lists that are cut."""
    return None if grad is None else grad.new_zeros(count, grad.shape[1], dtype=torch.float32)
