"""Panels that serve many calls: packed once for an index, read instead of the table.

Cost model: packing is one pass over the table (engine/pack.h, engine/int8_pack.h). A sweep reads
panels instead of packing rows: a query against a table that is not in a cache then takes one read
of the panels. Memory: float32 panels are as large as a float32 table, int8 panels half of it, up to
the lanes of the last panel and the last block of 64 features. Bytes of distances, which few queries
read before float32 panels, take a quarter of the table, and a separate pass packs them. The
baseline has no bytes.
"""

import torch
from torch import Tensor

from ..operands import Operands, Prepared
from ..panels import Panels
from ..scores import Score, get_score
from . import extension
from .views import (
    INT8_FORMAT,
    Machine,
    Pointers,
    arguments_of,
    byte_kinds,
    panel_shape,
    reads,
    serves_bytes,
    serves_int8,
)

_MOST = 1.25  # largest size of panels, in sizes of the table
_MOST_BYTE = 127  # largest byte: csrc/host/byte_rows.h
_SAMPLED = 4096  # rows in the sample of magnitudes
# share of the sampled rows that fit the bytes; larger numbers of other rows are cut, and the cut is
# measured
_FITTING = 0.99
# Factor by which numbers of queries grow that are turned, and to which a row is added.
_TURNED, _MOVED = 1.42, 2.0
_LEAST_SIZE, _MOST_SIZE = 2.0**-60, 2.0**60  # bounds of the number that becomes the largest byte


class Packing:
    """Packing of candidates for many calls."""

    def pack(self, candidates: Prepared, *, croppable: bool = False) -> Panels | str:
        """Return panels of all rows (and of crops if ``croppable``), or the reason for none."""
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
        if table.dtype == torch.float32 and serves_bytes(score, features) and not croppable:
            tensors |= _bytes_of(Prepared(table, score), features)
        return Panels(number_format, score.name, shape.lanes, rows, features, tensors)

    def reads(self, panels: Panels) -> bool:
        """Return whether this machine reads panels of this format and shape."""
        return reads(panels, get_score(panels.score))


PACKING = Packing()


def _best_format(score: Score, features: int, *, croppable: bool) -> str:
    formats = ["float32"]
    if not croppable and serves_int8(score, features):  # crops have separate scales
        formats.append(INT8_FORMAT)
    return min(formats, key=lambda name: panel_shape(name, score, features).row_bytes)


def _bytes_of(candidates: Prepared, features: int) -> dict[str, Tensor]:
    score, rows = candidates.score, candidates.num_rows
    tensors = {
        name: torch.empty(size, dtype=dtype, device="cpu")
        for name, (size, dtype) in byte_kinds(score, rows, features).items()
    }
    some = candidates.table[:: max(1, rows // _SAMPLED)]
    largest = torch.maximum(-some.amin(1), some.amax(1))
    fitting = max(1, int(_FITTING * len(largest)))
    most = largest.kthvalue(fitting).values.clamp(_LEAST_SIZE, _MOST_SIZE)
    tensors["scale"][0] = most * (_TURNED if score.planes == 2 else _MOVED) / _MOST_BYTE
    extension.pack_bytes(
        *_arguments_of_rows(candidates),
        features,
        scale=tensors["scale"].item(),
        panels=tensors["bytes"],
    )
    return tensors


def _fill(candidates: Prepared, features: int, tensors: dict[str, Tensor]) -> int:
    """Pack all rows; return the first row that is not finite, or -1."""
    arguments, panels = _arguments_of_rows(candidates), tensors["panels"]
    if "norms" in tensors:
        return extension.pack_panels(*arguments, features, panels, norms=tensors["norms"])[1]
    return extension.pack_int8(*arguments, features, panels)[1]


def _arguments_of_rows(candidates: Prepared) -> tuple[Machine, Pointers]:
    """Return the machine, and pointers of the candidates without queries."""
    table = candidates.table
    width = candidates.score.query_width(table.shape[1], has_factor=False)
    return arguments_of(Operands(table.new_empty((0, width)), candidates), None)
