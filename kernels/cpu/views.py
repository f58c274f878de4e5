"""Tensors and operands as the extension takes them: addresses, strides and numbers."""

from functools import cache
from os import environ
from typing import NamedTuple

import torch
from torch import Tensor

from ..checks import nonfinite_error
from ..operands import Operands, Panels, Prepared
from ..scores import Score
from . import extension, isa, threads, tiers

INT8_FORMAT = "int16"
"""Format of the int8 tier's panels: two bytes a number, with scales of rows for words."""

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
    """Return the machine of a call, by the number of threads and the environment."""
    number = threads.OWN.get() or torch.get_num_threads()
    return _machine(number, tiers.MASK.get(), environ.get("KGFAST_CPU_ISA"))


@cache
def _machine(threads: int, mask: int, _: str | None) -> Machine:
    return Machine(isa(), threads, mask)


def arguments_of(operands: Operands, bias: Tensor | None) -> tuple[Machine, Pointers]:
    """Return the machine, and pointers of operands and of a ``bias [N]``.

    The operands must outlive the call.
    """
    candidates, here = operands.candidates, machine()
    key, entry = (here.isa, here.tiers, candidates.table.data_ptr()), candidates.kept.get("cpu")
    if entry is None or entry[0] != key:
        entry = candidates.kept["cpu"] = key, _pointers_of(candidates)
    pointers: Pointers = entry[1]
    queries = view(operands.queries, operands.query_planes, operands.score)
    if bias is not None:
        return here, pointers._replace(query=queries, bias=view(bias[None]))
    return here, pointers._replace(query=queries)


def _pointers_of(candidates: Prepared) -> Pointers:
    """Return pointers of candidates, with an empty view of queries."""
    table, score, factor = candidates.table, candidates.score, candidates.factor
    ids = None if candidates.ids is None else candidates.ids.contiguous()
    return Pointers(
        score=score_code(score, has_factor=factor is not None),
        term_ulps=score.term_ulps,
        query=View(0, 0, 0, 0, [], 0),
        table=view(table, score.planes, score),
        factor=None if factor is None else view(factor),
        planes=score.planes,
        bias=None,
        candidate_ids=ids,
        has_subset=ids is not None,
        num_candidates=len(table if ids is None else ids),
        packed=None if candidates.panels is None else _packed(candidates, candidates.panels),
    )


def _packed(candidates: Prepared, panels: Panels) -> Packed | None:
    """Return panels of the candidates that the sweep in use reads; None for some rows only."""
    is_whole = candidates.ids is None and candidates.factor is None
    if not is_whole or (panels.score, panels.isa) != (candidates.score.name, isa()):
        return None
    if panels.number_format == INT8_FORMAT and not tiers.serves("int8"):
        return None
    return addresses_of(panels)


def addresses_of(panels: Panels) -> Packed:
    """Return the addresses of the tensors of panels."""
    addresses = {name: tensor.data_ptr() for name, tensor in panels.tensors.items()}
    if panels.number_format == INT8_FORMAT:
        return Packed(panels.num_features, int8=addresses["panels"])
    scale = addresses.pop("scale", None) and panels.tensors["scale"].item()
    return Packed(panels.num_features, **addresses, scale=scale or 0.0)


@cache
def score_code(score: Score, *, has_factor: bool) -> int:
    """Return the extension's number for a score; rscf scores without a factor have another.

    A ValueError says that the extension has no functor for the score.
    """
    code = -score.code if score.is_rscf and not has_factor else score.code
    try:
        extension.panel_shape(isa(), code)
    except ValueError:
        raise ValueError(
            f"score: the cpu backend has no kernels for {score.name!r}: {score.equation}. "
            f'Use kgfast.use_backend("reference")'
        ) from None
    return code


def view(rows: Tensor, planes: int = 1, score: Score | None = None) -> View:
    """View rows ``[R, G]`` of so many planes, in the layout of a score."""
    row_stride, stride = rows.stride()
    count, width = rows.shape
    gap, step = width // planes, 1
    if score is not None and score.interleaved:
        gap, step = 1, planes
    gap *= stride
    start = list(range(0, planes * gap, gap)) if gap else [0] * planes
    return View(rows.data_ptr(), _DTYPES[rows.dtype], count, row_stride, start, step * stride)


def raise_nonfinite(rows: tuple[int, int, int]) -> None:
    """Raise for the first of three rows, of queries, candidates and factor, that is not -1."""
    for name, row in zip(("queries", "candidates", "factor"), rows, strict=True):
        if row >= 0:
            raise nonfinite_error(name, row)
