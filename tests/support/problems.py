"""Ranking problems for property tests: every score, dtype, layout and an adversarial table."""

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from kgfast.kernels import scores

SCORES = tuple(name for name, score in scores.SCORES.items() if not score.is_rscf)
RSCF_SCORES = tuple(name for name, score in scores.SCORES.items() if score.is_rscf)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
TABLES = (
    *("normal", "grid", "tiny", "huge", "same", "close", "cauchy", "zero", "lognormal"),
    "subnormal",
)
# Values that make ties, that vanish in float32 products, and that overflow them; those of float64.
EVIL = [0.0, -0.0, 1.0, -1.0, 0.5, 1.0000001, 1e-40, -1e-40, 1e-23, 3e-20, 1e30, -1e30, 2e38]
VAST = [1e-300, 1e150, 1e300, 1 + 1e-12]
RSCF_TABLES = ("normal", "grid", "tiny", "huge", "same", "close", "zero", "lognormal")
SPREADS = ("unit", "wild", "one", "zero", "doubles")  # spreads of factors
DIMS = (1, 2, 3, 7, 16, 17, 63, 64, 65, 100, 130)
ROWS = (1, 2, 5, 16, 31, 47, 48, 49, 63, 64, 65, 100, 257)
QUERIES = (1, 2, 3, 4, 5, 7, 8, 9, 17)
if os.environ.get("TRITON_INTERPRET") == "1":  # a pair takes longer
    DIMS, ROWS, QUERIES = (1, 2, 3, 7, 65), (1, 2, 5, 31, 65), (1, 2, 3, 5, 17)


@dataclass
class Problem:
    """The arguments of ``rank_counts``."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    def __repr__(self) -> str:
        return f"Problem({self.note})"


def table_of(
    kind: str, rows: int, width: int, generator: torch.Generator, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Draw float64 values of a kind that is hard in its own way, for tables of a dtype."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def whole(low: int, high: int, columns: int = width) -> Tensor:
        return torch.randint(low, high, (rows, columns), generator=generator).double()

    def sized(low: int, high: int) -> Tensor:
        return normal(rows, width) * 10.0 ** whole(low, high, 1)

    def of(pool: list[float]) -> Tensor:
        places = torch.randint(len(pool), (rows, width), generator=generator)
        return torch.tensor(pool, dtype=torch.float64)[places]

    values = {
        "evil": lambda: of(EVIL + VAST if dtype == torch.float64 else EVIL),
        "normal": lambda: normal(rows, width),
        "grid": lambda: whole(-2, 3),
        "signs": lambda: 2 * whole(0, 2) - 1,
        "few": lambda: normal(3, width)[torch.randint(3, (rows,), generator=generator)],
        "tiny": lambda: sized(-44, -18),  # float32 denormals included
        "huge": lambda: sized(10, 37),
        "vast": lambda: sized(-300, 300),
        "same": lambda: normal(1, width).repeat(rows, 1),
        "close": lambda: normal(1, width) + 1e-6 * normal(rows, width),
        "cauchy": lambda: normal(rows, width) / normal(rows, width),
        "zero": lambda: torch.zeros(rows, width, dtype=torch.float64),
        "lognormal": lambda: (2 * normal(rows, width)).exp(),
        "subnormal": lambda: whole(0, 50) * (torch.finfo(dtype).smallest_normal / 64),
    }
    return values[kind]()


def cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to finite values of a dtype."""
    limit = torch.finfo(dtype).max
    return values.clamp(-limit, limit).to(dtype)


def strided(rows: Tensor, kind: str) -> Tensor:
    """Return the same values under other strides, or negated twice."""
    if kind == "plain":
        return rows
    if kind == "columns":
        return rows.t().contiguous().t()
    if kind == "negated":  # lazily, by a bit of the tensor
        return torch._neg_view(-rows)
    count, width = rows.shape
    step = 3 if kind == "every third" else 1
    room = torch.full((2 * count + 1, step * width + 3), 7.0, dtype=rows.dtype)
    if kind == "offset":
        view = room.flatten()[1 : 1 + count * width].view(count, width)
    elif kind == "rows":
        view = room[1::2, 2 : 2 + width]
    else:
        view = room[:count, 1 : 1 + step * width : step]
    return view[:count].copy_(rows)


def make_problem(
    seed: int, nonfinite: bool = False, many: bool = False, served: Sequence[str] = SCORES
) -> Problem:
    """Draw a problem; with ``many`` rows, more than any band of open pairs holds."""
    pick, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    score, dtype = pick.choice(served), pick.choice(DTYPES)
    facts = scores.get_score(score)
    kind = pick.choice(RSCF_TABLES if facts.is_rscf else [*TABLES, "evil"])
    dim, rows, batch = pick.choice(DIMS), pick.choice(ROWS), pick.choice(QUERIES)
    if many:
        kind = pick.choice(["subnormal", "subnormal", "grid", "same", "zero"])
        dim, rows, batch = pick.randint(1, 3), pick.randint(10_000, 20_000), pick.randint(2, 4)
    pool = table_of(kind, rows + batch, dim * facts.planes, generator, dtype)
    table = cast(pool[:rows], dtype)
    anchors, factor = table[torch.randint(rows, (batch,), generator=generator)].double(), None
    if facts.is_rscf:
        spread, scale = pick.choice(SPREADS), pick.choice([0.3, 3.0, 40.0, 1e4])
        if pick.random() < 0.7:
            factor = cast(factor_of(spread, rows, dim, generator), pick.choice(DTYPES))
        anchors = moving_queries(score, factor is not None, anchors, scale, generator)
    elif pick.random() < 0.5:
        anchors = pool[rows:]
    queries = cast(anchors, torch.float64 if dtype == torch.float64 else torch.float32)
    if nonfinite:
        bad = pick.choice([torch.nan, torch.inf, -torch.inf, 1e30])  # 1e30: a phase without a sine
        for operand in (table, queries, factor):
            if operand is not None and pick.random() < 0.6:
                row, column = pick.randrange(len(operand)), pick.randrange(operand.shape[1])
                operand[row, column] = bad
    targets = torch.randint(rows, (batch,), generator=generator)
    lengths = torch.randint(0, 6, (batch,), generator=generator)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    indices = torch.randint(rows, (int(indptr[-1]),), generator=generator)
    layouts = [pick.choice(["plain", "rows", "columns"]) for _ in range(2)]
    kwargs: dict[str, Any] = {"nan_worst": nonfinite}
    if factor is not None:
        kwargs["factor"] = strided(factor, layouts[0])
    if pick.random() < 0.4:
        size = rows if pick.random() < 0.7 else 1
        kwargs["bias"] = torch.randn(size, generator=generator) * 10.0 ** pick.randint(-8, 3)
    if pick.random() < 0.3:
        kwargs["candidate_ids"] = torch.randperm(rows, generator=generator)[: pick.randint(1, rows)]
    if pick.random() < 0.4:
        kwargs["dims"] = sorted({pick.randint(1, dim) for _ in range(pick.randint(1, 3))})
    note = f"{seed=} {many=} {score} {kind} {dtype} {layouts} {dim=} {rows=} {batch=} {[*kwargs]}"
    table = strided(table, layouts[1])
    return Problem((queries, table, targets, indptr, indices, score), kwargs, note)


def problems(nonfinite: bool = False, many: bool = False) -> st.SearchStrategy[Problem]:
    """Draw problems; shrinking is by seed, the repr says everything."""
    return st.integers(0, 2**31 - 1).map(lambda seed: make_problem(seed, nonfinite, many))


def no_known(batch: int) -> tuple[Tensor, Tensor]:
    """Make an empty CSR of known answers."""
    return torch.zeros(batch + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int64)


def factor_of(kind: str, rows: int, dim: int, generator: torch.Generator) -> Tensor:
    """Draw rows ``b``: 1 plus a unit vector as a model makes them, or what no model makes."""
    values = torch.randn(rows, dim, generator=generator, dtype=torch.float64)
    if kind == "unit":
        return 1 + values / values.norm(dim=1, keepdim=True)
    if kind == "wild":  # negative entries, angles beyond half a turn
        return 3 * values
    if kind == "doubles":  # integers, so that pairs tie
        return values.round()
    return torch.full((rows, dim), float(kind == "one"), dtype=torch.float64)


def moving_queries(
    score: str, has_factor: bool, anchors: Tensor, scale: float, generator: torch.Generator
) -> Tensor:
    """Draw rows ``[q | w | a]``: a query near an anchor, a scale with zeros, a phase."""
    batch, width = anchors.shape
    dim = width // scores.get_score(score).planes
    scales = torch.randn(batch, width, generator=generator, dtype=torch.float64)
    parts = [anchors, torch.where(scales.abs() < 0.2, 0.0, 1 + 0.2 * scales)]
    if has_factor:
        parts.append(scale * torch.rand(batch, dim, generator=generator, dtype=torch.float64))
    return torch.cat(parts, 1)
