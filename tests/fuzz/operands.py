"""Random operands of every score, dtype, layout and size, with values that are hard in some way."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fuzz.case import Case
from support.oracles import LAYOUTS
from support.problems import cast, strided, table_of

DTYPES = (torch.float32, torch.float32, torch.float16, torch.bfloat16, torch.float64)
DIMS = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 130)
ROWS = (1, 2, 3, 5, 8, 16, 17, 31, 47, 48, 49, 63, 64, 65, 96, 100, 129, 257)
BATCHES = (0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33)
SPREAD = ("normal", "grid", "signs", "zero", "lognormal", "cauchy")
VALUES = (*SPREAD, "same", "close", "few", "tiny", "subnormal", "huge", "vast")


@dataclass
class Operands:
    """The arguments that all operators share."""

    queries: Tensor
    table: Tensor
    score: str
    bias: Tensor | None
    factor: Tensor | None
    dims: list[int] | None

    @property
    def crops(self) -> list[int | None]:
        return [None] if self.dims is None else list(self.dims)

    def keywords(self) -> dict[str, object]:
        return {"bias": self.bias, "factor": self.factor, "dims": self.dims}


def draw(case: Case, *, values: tuple[str, ...] = VALUES, large: float = 0.01) -> Operands:
    score, kind = case.choice(list(LAYOUTS)), case.choice(values)
    dtype = torch.float64 if kind == "vast" else case.choice(DTYPES)
    dim, rows, batch = case.choice(DIMS), case.choice(ROWS), case.choice(BATCHES)
    if case.chance(large):  # more pairs than lists of open pairs and survivors hold
        dim, rows, batch = (
            case.choice(DIMS[:4]),
            case.pick.randint(2_000, 30_000),
            case.choice((1, 3)),
        )
    return drawn(case, score, kind, dtype, dim, rows, batch)


def drawn(
    case: Case, score: str, kind: str, dtype: torch.dtype, dim: int, rows: int, batch: int
) -> Operands:
    _, of_candidate, _ = LAYOUTS[score]
    pool = matrix(case, kind, rows + batch, of_candidate * dim)
    table = cast(pool[:rows], dtype)
    precise = dtype == torch.float64 and case.chance(0.8)
    query_dtype = torch.float64 if precise or case.chance(0.05) else torch.float32
    near = table.double()[case.ids(rows, batch)] if rows else pool[rows:]
    parts = [pool[rows:] if case.chance(0.5) else near]
    factor = None
    if score.startswith("rscf"):
        parts.append(1.0 + 0.3 * case.normal(batch, of_candidate * dim))
        if case.chance(0.7):
            reach = 10.0 ** case.pick.randint(-3, 2)
            parts.append(reach * case.normal(batch, dim))
            factor = cast(1.0 + 0.3 * case.normal(rows, dim), case.choice(DTYPES))
    queries = cast(torch.cat(parts, 1), query_dtype)
    bias = None
    if case.chance(0.35):
        size = rows if case.chance(0.7) else 1
        bias = cast(case.normal(size) * 10.0 ** case.pick.randint(-8, 3), case.choice(DTYPES))
    dims = None
    if case.chance(0.3):
        dims = [case.pick.randint(1, dim) for _ in range(case.pick.randint(1, 4))]
    layouts = [case.choice(("plain", "plain", *STRIDES)) for _ in range(3)]
    case.note(score=score, values=kind, dtype=dtype, queries=query_dtype, dim=dim, rows=rows)
    case.note(batch=batch, bias=None if bias is None else (bias.dtype, len(bias)), dims=dims)
    case.note(factor=None if factor is None else factor.dtype, layouts=layouts)
    return Operands(
        strided(queries, layouts[0]),
        strided(table, layouts[1]),
        score,
        bias,
        None if factor is None else strided(factor, layouts[2]),
        dims,
    )


def matrix(case: Case, kind: str, rows: int, width: int) -> Tensor:
    """Draw float64 values ``[rows, width]`` of a kind that is hard in its own way."""
    if kind == "close":
        return case.normal(1, width) + 10.0 ** case.pick.randint(-12, -4) * case.normal(rows, width)
    if kind == "subnormal":  # subnormal in float64, or in float32
        step = case.choice((1e-310, 5e-324, 1e-308, 1e-42, 1e-45))
        return case.ids(50, rows, width).double() * step
    values = table_of(kind, rows, width, case.generator)
    return values.clamp(-1e12, 1e12) if kind == "cauchy" else values


STRIDES = ("rows", "columns", "offset", "every third", "negated")


def csr(
    case: Case, batch: int, rows: int, least: int = 0
) -> tuple[Tensor, Tensor, list[list[int]]]:
    """Draw known answers: row pointers, ids with repetitions, and the same as lists."""
    most = case.choice((least, 3, 8, rows))
    lists = [
        case.ids(rows, case.pick.randint(least, max(least, most))).tolist() if rows else []
        for _ in range(batch)
    ]
    lengths = torch.tensor([0, *(len(it) for it in lists)], dtype=torch.int64)
    indices = torch.tensor([id for it in lists for id in it], dtype=torch.int64)
    return lengths.cumsum(0), indices, lists


def subset(case: Case, rows: int) -> Tensor | None:
    """Draw candidate ids in any order; None for all."""
    if case.chance(0.65):
        return None
    size = 0 if case.chance(0.15) else case.pick.randint(0, rows)
    return torch.randperm(rows, generator=case.generator)[:size]
