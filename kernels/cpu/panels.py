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
from ..scores import Score
from . import extension, isa, tiers
from .views import INT8_FORMAT, addresses_of, arguments_of, score_code

_TIER_LANES, _MOST_FEATURES = 64, 4096  # lanes of a panel, and most features: csrc/host/int8.h
_WITH_BYTES = ("l1", "l2", "rotate", "rotate_interleaved")  # csrc/engine/byte_rows.h
_MOST = 1.25  # largest size of panels, in sizes of the table
_MOST_BYTE = 127  # largest byte: csrc/host/byte_rows.h
_SAMPLED = 4096  # rows in the sample of magnitudes
# share of the sampled rows that fit the bytes; larger numbers of other rows are cut, and the cut is
# measured
_FITTING = 0.99
# Factor by which numbers of queries grow that are turned, and to which a row is added.
_TURNED, _MOVED = 1.42, 2.0
_LEAST_SIZE, _MOST_SIZE = 2.0**-60, 2.0**60  # bounds of the number that becomes the largest byte


def pack(
    candidates: Prepared, *, croppable: bool = False, saved: dict[str, Tensor] | None = None
) -> Panels | str:
    """Return panels of all rows (and of crops if ``croppable``), or the reason for none.

    ``saved`` are the tensors of earlier panels. A ValueError says that they have other shapes.
    """
    table, score = candidates.table, candidates.score
    if candidates.factor is not None:
        return f"{score.name} moves queries by a factor of the candidate"
    if not table.numel():
        return "the table is empty"
    rows, features = candidates.num_rows, candidates.num_features
    formats = ["float32"]
    if not croppable and _serves("int8", score, features):  # crops have separate scales
        formats.append(INT8_FORMAT)
    # int8 panels come in blocks of features, and may be larger
    sizes = [_size(_kinds(name, score, 1 << 20, features)) for name in formats]
    number_format = formats[sizes.index(min(sizes))]
    if min(sizes) > _MOST * (table[:1].nbytes << 20):
        return f"the table is {table.dtype}, and panels would be larger"
    has_bytes = table.dtype == torch.float32 and not croppable and _serves("bytes", score, features)
    has_bytes = has_bytes and number_format == "float32"
    kinds = _kinds(number_format, score, rows, features, has_bytes=has_bytes)
    if saved:
        if kinds != {name: (tuple(values.shape), values.dtype) for name, values in saved.items()}:
            raise ValueError("the panels have other shapes than here: make the index again")
        return Panels(number_format, score.name, isa(), rows, features, saved)
    tensors = {
        name: torch.empty(shape, dtype=dtype, device="cpu")
        for name, (shape, dtype) in kinds.items()
    }
    if has_bytes:
        tensors["scale"].fill_(_scale_of(table, score))
    panels = Panels(number_format, score.name, isa(), rows, features, tensors)
    width = score.query_width(table.shape[1], has_factor=False)
    operands = Operands(table.new_empty((0, width)), Prepared(table, score))
    bad = extension.pack(*arguments_of(operands, None), addresses_of(panels))[1]
    return panels if bad < 0 else f"row {bad} of the table holds a NaN or an infinity"


def _kinds(
    number_format: str, score: Score, rows: int, features: int, *, has_bytes: bool = False
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return shapes and dtypes of the tensors of panels, of a score without a factor.

    ``has_bytes`` adds the bytes that few queries read before float32 panels.
    """
    if number_format == INT8_FORMAT:
        shape = -(-rows // _TIER_LANES), extension.int8_bytes(features)
        return {"panels": (shape, torch.int8)}
    lanes, planes = extension.panel_shape(isa(), score_code(score, has_factor=False))
    count = -(-rows // lanes)
    kinds = {
        "panels": ((count, features, planes, lanes), torch.float32),
        "norms": ((count,), torch.float32),
    }
    if has_bytes:
        size = -(-rows // _TIER_LANES) * extension.byte_row_bytes(features, score.planes)
        kinds |= {"bytes": ((size,), torch.int8), "scale": ((1,), torch.float32)}
    return kinds


def _serves(tier: str, score: Score, features: int) -> bool:
    """Return whether a tier serves candidates of a score and a width on this machine."""
    scores = ("dot",) if tier == "int8" else _WITH_BYTES
    return score.name in scores and features <= _MOST_FEATURES and tiers.serves(tier)


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
