"""Panels that serve many calls: packed once for an index, read instead of the table.

Cost model: packing is one pass over the table (engine/pack.h, engine/int8_pack.h). A sweep reads
panels instead of packing rows: a query against a table that is not in a cache then takes one read
of the panels. Memory: float32 panels are as large as a float32 table, int8 panels half of it, up to
the lanes of the last panel and the last block of 64 features. Bytes of distances, which few queries
read before float32 panels, take a quarter of the table, and a separate pass packs them. The
baseline has no bytes.
"""

import math

import torch
from torch import Tensor

from ..operands import Operands, Panels, Prepared
from ..scores import Score, get_score
from . import extension
from .views import INT8_FORMAT, arguments_of, panel_kinds, reads, serves_bytes, serves_int8

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
        formats = ["float32"]
        if not croppable and serves_int8(score, features):  # crops have separate scales
            formats.append(INT8_FORMAT)
        # int8 panels come in blocks of features, and may be larger
        sizes = [_size(panel_kinds(name, score, 1 << 20, features)) for name in formats]
        number_format = formats[sizes.index(min(sizes))]
        if min(sizes) > _MOST * (table[:1].nbytes << 20):
            return f"the table is {table.dtype}, and panels would be larger"
        has_bytes = table.dtype == torch.float32 and not croppable and serves_bytes(score, features)
        has_bytes = has_bytes and number_format == "float32"
        tensors = {
            name: torch.empty(shape, dtype=dtype, device="cpu")
            for name, (shape, dtype) in panel_kinds(
                number_format, score, rows, features, has_bytes=has_bytes
            ).items()
        }
        width = score.query_width(table.shape[1], has_factor=False)
        operands = Operands(table.new_empty((0, width)), Prepared(table, score))
        given = *arguments_of(operands, None), features, tensors["panels"]
        if number_format == INT8_FORMAT:
            bad = extension.pack_int8(*given)[1]
        else:
            bad = extension.pack_panels(*given, norms=tensors["norms"])[1]
        if bad >= 0:
            return f"row {bad} of the table holds a NaN or an infinity"
        if has_bytes:
            scale = tensors["scale"].fill_(_scale_of(table, score)).item()
            extension.pack_bytes(*given[:3], scale=scale, panels=tensors["bytes"])
        return Panels(number_format, score.name, rows, features, tensors)

    def reads(self, panels: Panels) -> bool:
        """Return whether this machine reads panels of this format and shape."""
        return reads(panels, get_score(panels.score))


PACKING = Packing()


def _size(kinds: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> int:
    """Count the bytes of the numbers of panels."""
    shape, dtype = kinds["panels"]
    return math.prod(shape) * dtype.itemsize


def _scale_of(table: Tensor, score: Score) -> float:
    """Return the scale of bytes, by a sample of the rows."""
    some = table[:: max(1, len(table) // _SAMPLED)]
    largest = torch.maximum(-some.amin(1), some.amax(1))
    fitting = max(1, int(_FITTING * len(largest)))
    most = largest.kthvalue(fitting).values.clamp(_LEAST_SIZE, _MOST_SIZE)
    return float(most * (_TURNED if score.planes == 2 else _MOVED) / _MOST_BYTE)
