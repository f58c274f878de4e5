"""Folding as the host asks for it (fold.py); ``launch`` is the caller's."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ...scores import Score
from ..device.moved_queries import describe_queries, fold_queries
from ..device.operands import query_args
from ..device.pack import PACK_FEATURES, PACK_ROWS
from ..device.terms import score_code


def fold(
    launch: Callable[..., None],
    queries: Tensor,
    facts: Score,
    factor: Tensor | None,
    dim: int,
    ids: Tensor,
    lanes: int,
    out: Tensor,
    status: Tensor | None = None,
) -> None:
    """Rows ``ids`` of queries, folded: ``[tiles][dim][planes][lanes]``; checked as by ``pack``."""
    launch(
        fold_queries,
        (-(-len(ids) // lanes) * (lanes // PACK_ROWS), -(-dim // PACK_FEATURES)),
        {
            **_shared(queries, facts, factor, dim),
            "p_ids": ids,
            "count": len(ids),
            "p_out": out,
            "p_status": status,
            "CHECK": status is not None,
            "LANES": lanes,
        },
        num_warps=4,
    )


def describe_moves(
    launch: Callable[..., None],
    queries: Tensor,
    facts: Score,
    factor: Tensor | None,
    dim: int,
    sizes: Tensor,
) -> None:
    """Fill ``sizes [4, B]`` with what the bound takes of each query."""
    launch(
        describe_queries,
        (-(-len(queries) // PACK_ROWS),),
        {**_shared(queries, facts, factor, dim), "count": len(queries), "p_sizes": sizes},
        num_warps=4,
    )


def _shared(queries: Tensor, facts: Score, factor: Tensor | None, dim: int) -> dict[str, Any]:
    return {
        **query_args(queries, facts, factor),
        "num_features": dim,
        "SCORE": score_code(facts),
        "PLANES": facts.planes,
        "HAS_FACTOR": factor is not None,
        "ROWS": PACK_ROWS,
        "FEATURES": PACK_FEATURES,
    }
