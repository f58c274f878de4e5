"""Tensors and operands in the extension's form."""

import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..checks import nonfinite_error
from ..operands import Operands, Prepared
from ..panels import Panels
from ..scores import Score
from . import extension, isa, threads, tiers

INT8_FORMAT = "int16"
"""Format of the int8 tier's panels: two bytes a number, with scales of rows for words."""

_INT8_LANES, _INT8_FEATURES = 64, 4096  # lanes of a panel, and most features: csrc/host/int8.h
# scores with bytes: csrc/engine/byte_rows.h
_WITH_BYTES = ("l1", "l2", "rotate", "rotate_interleaved")
_DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float64: 3}


class Machine(NamedTuple):
    """Instruction set, number of threads, and mask of the tiers of a call."""

    isa: str
    threads: int
    tiers: int


class View(NamedTuple):
    """Rows of planes of features; strides and columns in elements."""

    data: int
    dtype: int
    num_rows: int
    row_stride: int
    start: list[int]  # first column of each plane
    step: int


class Packed(NamedTuple):
    """Addresses of panels of all rows; 0 for none."""

    features: int
    panels: int = 0  # float32
    norms: int = 0
    bytes: int = 0
    scale: float = 0.0  # scale of bytes
    int8: int = 0


class Pointers(NamedTuple):
    """Operands of a call of the extension, which reads the fields by their names."""

    score: int
    term_ulps: int
    query: View
    table: View
    factor: View | None
    planes: int
    bias: View | None
    candidate_ids: Tensor | None
    has_subset: bool
    num_candidates: int
    packed: Packed | None


def machine() -> Machine:
    """Return the machine of a call."""
    return Machine(isa(), threads.count(), tiers.mask())


def pointers_of_ids(candidates: Prepared, of: Machine) -> tuple[Pointers, View]:
    """Return pointers for queries that are made there, and a view of the table as one plane.

    The queries are float32 rows, one after the other, with the columns of a row of the table.
    Candidates have no bias. ``of``: the :func:`machine`.
    """
    fixed = _fixed(candidates, of)
    return fixed.of_ids, fixed.rows


def arguments_of(operands: Operands, bias: Tensor | None) -> tuple[Machine, Pointers]:
    """Return the machine, and pointers of operands and of a ``bias [N]``.

    The operands must outlive the call.
    """
    candidates, of = operands.candidates, machine()
    ids = None if candidates.ids is None else candidates.ids.contiguous()
    fixed = _fixed(candidates, of)
    of_ids = fixed.of_ids
    pointers = Pointers(
        of_ids.score,
        of_ids.term_ulps,
        query_view(operands.queries, operands),
        of_ids.table,
        fixed.factor,
        of_ids.planes,
        None if bias is None else plane_view(bias[None]),
        ids,
        ids is not None,
        candidates.num_candidates,
        of_ids.packed,
    )
    return of, pointers


class _Fixed(NamedTuple):
    """Part of operands that calls with equal candidates share."""

    factor: View | None
    of_ids: Pointers  # result of pointers_of_ids
    rows: View  # rows of the table, as one plane


def _fixed(candidates: Prepared, of: Machine) -> _Fixed:
    table, score = candidates.table, candidates.score
    key = "_fixed", of.isa, of.tiers, address(table)
    made = candidates.__dict__.get(key[0])
    if made is None or made[0] != key:
        of_ids = Pointers(
            score=score_code(score, has_factor=candidates.factor is not None),
            term_ulps=score.term_ulps,
            query=_made_view(table.shape[1], score),
            table=table_view(table, score),
            factor=None,
            planes=score.planes,
            bias=None,
            candidate_ids=None,
            has_subset=False,
            num_candidates=len(table),
            packed=_packed(candidates),
        )
        made = key, _Fixed(factor_view(candidates.factor), of_ids, plane_view(table))
        candidates.__dict__[key[0]] = made
    fixed: _Fixed = made[1]
    return fixed


def _packed(candidates: Prepared) -> Packed | None:
    """Return panels of the candidates that the sweep in use reads; None for some rows only."""
    panels = candidates.panels
    if panels is None or candidates.ids is not None or candidates.factor is not None:
        return None
    if not reads(panels, candidates.score):
        return None
    features, held = panels.num_features, panels.tensors
    if panels.number_format == INT8_FORMAT:
        return Packed(features, int8=address(held["panels"]))
    places = Packed(features, address(held["panels"]), address(held["norms"]))
    if "bytes" not in held:
        return places
    return places._replace(bytes=address(held["bytes"]), scale=held["scale"].item())


def reads(panels: Panels, score: Score) -> bool:
    """Return whether the sweep in use reads these panels."""
    if panels.score != score.name:
        return False
    serves = panels.number_format == INT8_FORMAT and serves_int8(score, panels.num_features)
    if panels.number_format != "float32" and not serves:
        return False
    shape = panel_shape(panels.number_format, score, panels.num_features)
    kinds = shape.tensors(panels.num_rows)
    found = {name: (tuple(it.shape), it.dtype) for name, it in panels.tensors.items()}
    if "bytes" in found:
        kinds |= byte_kinds(score, panels.num_rows, panels.num_features)
    return panels.lanes == shape.lanes and kinds == found


class PanelShape(NamedTuple):
    """Form of candidates in a format."""

    lanes: int  # candidates of a panel
    panel: tuple[int, ...]  # shape of one panel
    dtype: torch.dtype

    def tensors(self, rows: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        count = -(-rows // self.lanes)
        kinds = {"panels": ((count, *self.panel), self.dtype)}
        if self.dtype == torch.float32:
            kinds["norms"] = (count,), torch.float32
        return kinds

    @property
    def row_bytes(self) -> float:
        """Count the bytes of a candidate."""
        return math.prod(self.panel) * self.dtype.itemsize / self.lanes


def panel_shape(number_format: str, score: Score, features: int) -> PanelShape:
    """Return the form of a score without a factor."""
    if number_format == INT8_FORMAT:
        return PanelShape(_INT8_LANES, (extension.int8_bytes(1, features),), torch.int8)
    lanes, planes = extension.panel_shape(isa(), score_code(score, has_factor=False))
    return PanelShape(lanes, (features, planes, lanes), torch.float32)


def byte_kinds(
    score: Score, rows: int, features: int
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return shapes and dtypes of the bytes that few queries read before float32 panels."""
    size = extension.byte_row_bytes(rows, features, score.planes)
    return {"bytes": ((size,), torch.int8), "scale": ((1,), torch.float32)}


def serves_bytes(score: Score, features: int) -> bool:
    """Return whether few queries read bytes of such candidates on this machine."""
    is_served = score.name in _WITH_BYTES and features <= _INT8_FEATURES
    return is_served and "bytes" in tiers.wanted() and "bytes" in tiers.available(isa())


def serves_int8(score: Score, features: int) -> bool:
    """Return whether the int8 tier reads panels of such candidates on this machine."""
    is_dot = score.name == "dot" and features <= _INT8_FEATURES
    return is_dot and "int8" in tiers.wanted() and "int8" in tiers.available(isa())


def score_code(score: Score, *, has_factor: bool) -> int:
    """Return the extension's number for a score; rscf scores without a factor have another.

    A ValueError says that the extension has no functor for the score.
    """
    code = -score.code if score.is_rscf and not has_factor else score.code
    if not _has_functor(code):
        raise ValueError(
            f"score: the cpu backend has no kernels for {score.name!r}: {score.equation}. "
            f'Use kgfast.use_backend("reference")'
        )
    return code


@cache
def _has_functor(code: int) -> bool:
    return extension.has_score(isa(), code)


def query_view(queries: Tensor, operands: Operands) -> View:
    """View ``queries [B, F]`` or their gradient, which have more planes than candidates."""
    return _view(queries, operands.score, operands.query_planes)


def table_view(rows: Tensor, score: Score) -> View:
    """View ``rows [R, G]`` of a table or of a gradient."""
    return _view(rows, score, score.planes)


def _made_view(width: int, score: Score) -> View:
    """View float32 rows of so many numbers that are still to be made."""
    starts, step = score.columns(width)
    return View(0, _DTYPES[torch.float32], 0, width, list(starts), step)


def factor_view(factor: Tensor | None) -> View | None:
    """View a ``factor [R, D]`` or its gradient."""
    return None if factor is None else plane_view(factor)


def plane_view(rows: Tensor) -> View:
    """View ``rows [R, D]`` as one plane."""
    row_stride, step = rows.stride()
    return View(rows.data_ptr(), _DTYPES[rows.dtype], rows.shape[0], row_stride, [0], step)


def _view(rows: Tensor, score: Score, planes: int) -> View:
    starts, step = score.columns(rows.shape[1], planes)
    row_stride, column_stride = rows.stride()
    columns = [start * column_stride for start in starts]
    dtype = _DTYPES[rows.dtype]
    return View(rows.data_ptr(), dtype, len(rows), row_stride, columns, step * column_stride)


def address(tensor: Tensor | None) -> int:
    """Return the data pointer, 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def raise_nonfinite(rows: tuple[int, int, int]) -> None:
    """Raise for the first of three rows, of queries, candidates and factor, that is not -1."""
    for name, row in zip(("queries", "candidates", "factor"), rows, strict=True):
        if row >= 0:
            raise nonfinite_error(name, row)
