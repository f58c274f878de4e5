"""Ids that topk(exclude=) leaves out of the answers, besides known ones."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.candidate_ids import checked_ids_of, checked_indptr, is_csr
from kgfast.graph.named import Names
from kgfast.kernels.operands import Known
from kgfast.models.base import Side
from kgfast.text import shown

_FORMS = 'ids for all queries, a pair (indptr, ids) of tensors or arrays, or "anchor"'
_PAIRS = 1 << 19  # ids of a batch of queries: 4 MiB as int64
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Excluded:
    """Checked ids that are no answers, on the host: per query by ``indptr [B + 1]``, or for all.

    Ids may stand in any order and repeat.
    """

    ids: Tensor
    indptr: Tensor | None = None

    def batch_size(self) -> int:
        """Return the queries of a batch with a few MiB of excluded ids."""
        longest = len(self.ids)
        if self.indptr is not None:
            longest = int(self.indptr.diff().max()) if len(self.indptr) > 1 else 0
        return max(1, _PAIRS // max(1, longest))

    def of(self, own: Tensor, device: torch.device) -> Known:
        """Return the ids of some queries as CSR on a device."""
        if self.indptr is None:
            starts, counts = torch.zeros_like(own), torch.full_like(own, len(self.ids))
        else:
            starts = self.indptr[own]
            counts = self.indptr[own + 1] - starts
        indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        places = torch.arange(int(indptr[-1]), dtype=torch.int64, device=_CPU)
        places += torch.repeat_interleave(starts - indptr[:-1], counts)
        return Known(indptr.to(device), self.ids[places].to(device))


def excluded_of(
    value: Any, side: Side, anchors: Tensor, model: Any, names: Names
) -> Excluded | None:
    """Check the argument ``exclude`` for queries of a side with these anchors ``[B]``."""
    if value is None:
        return None
    if isinstance(value, str):
        return _of_word(value, side, anchors)
    is_relation = side == "relation"
    rows = model.num_relations if is_relation else model.num_entities, names[int(is_relation)]
    if is_csr(value):
        ids = checked_ids_of("exclude: ids", value[1], *rows).cpu()
        return Excluded(ids, checked_indptr("exclude", value[0], len(anchors), len(ids)))
    if isinstance(value, list | tuple) and any(map(_is_row, value)):
        raise TypeError(f"exclude must be {_FORMS}; got a {type(value).__name__} of rows")
    return Excluded(checked_ids_of("exclude", value, *rows).reshape(-1).cpu())


def _is_row(value: Any) -> bool:
    return isinstance(value, list | tuple) or getattr(value, "ndim", 0) > 0


def _of_word(value: str, side: Side, anchors: Tensor) -> Excluded:
    if value != "anchor":
        raise ValueError(f"exclude must be {_FORMS}; got {shown(value)} (one name: [name])")
    if side == "relation":
        raise ValueError('exclude="anchor" leaves entities out, but relations are predicted')
    every = torch.arange(len(anchors) + 1, dtype=torch.int64, device=_CPU)
    return Excluded(anchors.cpu(), every)


def together(known: Known | None, others: Known) -> Known:
    """Return the ids of both, per query."""
    if known is None:
        return others
    rows = [
        torch.repeat_interleave(part.indptr.diff(), output_size=len(part.indices))
        for part in (known, others)
    ]
    order = torch.cat(rows).argsort(stable=True)
    indices = torch.cat([known.indices, others.indices])[order]
    return Known(known.indptr + others.indptr, indices)
