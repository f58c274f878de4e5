"""Panels that serve many calls: packed once for an index, read in place of the table.

Cost model: packing is one pass over the table (engine/pack.h, engine/int8_pack.h). A sweep of
panels reads what it would have packed: a query against a table that is not in a cache then takes
one read of the panels.
Memory: float32 panels are as large as a float32 table, int8 panels half of it, up to the lanes of
the last panel and the last block of 64 features.
"""

import torch
from torch import Tensor

from ..backend import Packing
from ..operands import Operands, Prepared
from ..panels import Panels
from ..scores import Score, get_score
from . import extension
from .views import address, machine, panel_shape, pointers_of, reads, serves_int8

_MOST = 1.25  # times the bytes of the table


class _Packing:
    """See :class:`kgfast.kernels.backend.Packing`."""

    def pack(self, candidates: Prepared, *, croppable: bool = False) -> Panels | str:
        table, score = candidates.table, candidates.score
        if candidates.factor is not None:
            return f"{score.name} moves queries by a factor of the candidate"
        if not table.numel():
            return "the table is empty"
        rows, features = candidates.num_rows, candidates.num_features
        number_format = _best_format(score, features, croppable=croppable)
        shape = panel_shape(number_format, score, features)
        if shape.row_bytes > _MOST * table[:1].nbytes:
            return f"the table is {table.dtype}, and panels would be larger"
        tensors = {
            name: torch.empty(size, dtype=dtype, device="cpu")
            for name, (size, dtype) in shape.tensors(rows).items()
        }
        bad = _fill(Prepared(table, score), features, tensors)
        if bad >= 0:
            return f"row {bad} of the table holds a NaN or an infinity"
        return Panels(number_format, score.name, shape.lanes, rows, features, tensors)

    def reads(self, panels: Panels) -> bool:
        return reads(panels, get_score(panels.score))


PACKING: Packing = _Packing()


def _best_format(score: Score, features: int, *, croppable: bool) -> str:
    """That of which a sweep reads the fewest bytes."""
    formats = ["float32"]
    if serves_int8(score, features) and not croppable:  # crops have scales of their own
        formats.append("int8")
    return min(formats, key=lambda name: panel_shape(name, score, features).row_bytes)


def _fill(candidates: Prepared, features: int, tensors: dict[str, Tensor]) -> int:
    """Pack all rows; the first that is not finite, or -1."""
    table, width = (
        candidates.table,
        candidates.score.query_width(candidates.table.shape[1], has_factor=False),
    )
    no_queries = table.new_empty((0, width))
    pointers = pointers_of(Operands(no_queries, candidates), None)
    panels, norms = address(tensors["panels"]), address(tensors.get("norms"))
    if norms:
        return extension.pack_panels(machine(), pointers, features, panels, norms)[1]
    return extension.pack_int8(machine(), pointers, features, panels)[1]
