"""Best k candidates on the CPU: the sweep of ranks, with limits that fall during the sweep.

A pair survives unless the float32 sweep proves that k others are better; canonical scores order the
survivors (host/topk.h). Few queries of an index read bytes before float32, or high bytes before low
ones (host/byte_rows.h, host/int8.h); a kernel may also make these queries (host/compose.h). Cost
model: the sweep (engine/sweep.h), and k canonical scores per query. Memory: panels and packed
queries as for ranks, at most 24 MiB of survivors over all threads. If k is about as large as the
table, or too large for the memory of survivors, all pairs get canonical scores, with some 16 k
bytes per thread.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..backend import Composition
from ..checks import Checks
from ..operands import Known, Operands, Prepared
from . import extension
from .views import View, arguments_of, machine, plane_view, pointers_of_ids, raise_nonfinite

COMPOSED = ("add", "multiply", "multiply_complex", "rotate")  # csrc/host/compose.h


class _Composition(NamedTuple):
    """Composition of queries, for the extension."""

    kind: int
    conjugates: bool
    interleaved: bool
    unit: float
    anchors: View
    relations: View


def topk(operands: Operands, k: int, known: Known | None, checks: Checks) -> tuple[Tensor, Tensor]:
    """Return the best; the contract of :meth:`kgfast.kernels.backend.Backend.topk`."""
    queries, crops = operands.queries, operands.crops
    scores = queries.new_empty((len(crops), len(queries), k))
    ids = queries.new_empty(scores.shape, dtype=torch.int64)
    arguments = arguments_of(operands, operands.candidates.whole_bias)
    if known is not None:
        known = Known(known.indptr.contiguous(), known.indices.contiguous())
    for dim, best, best_ids in zip(crops, scores.unbind(), ids.unbind(), strict=True):
        raise_nonfinite(
            extension.topk(
                *arguments,
                dim,
                k,
                known=known,
                nan_worst=checks.allows_nan,
                scores=best,
                ids=best_ids,
            )
        )
    return (best, best_ids) if operands.dims is None else (scores, ids)


def topk_of_ids(
    candidates: Prepared,
    relation: Tensor,
    how: Composition,
    ids: tuple[list[int], list[int]],
    k: int,
) -> tuple[Tensor, Tensor]:
    """Return the best; the contract of :meth:`kgfast.kernels.backend.Packing.topk_of_ids`."""
    scores = torch.empty((len(ids[0]), k), dtype=torch.float32, device="cpu")
    best = torch.empty((len(ids[0]), k), dtype=torch.int64, device="cpu")
    of = machine()
    pointers, rows = pointers_of_ids(candidates, of)
    composition = _Composition(
        COMPOSED.index(how.kind),
        how.conjugates,
        how.interleaved,
        how.unit,
        anchors=rows,
        relations=plane_view(relation),
    )
    raise_nonfinite(
        extension.topk_of_ids(
            of, pointers, candidates.num_features, k, composition, *ids, scores=scores, ids=best
        )
    )
    return scores, best
