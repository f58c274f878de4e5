"""Ranking problems for property tests: every score, dtype, layout and an adversarial table."""

import random
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
DIMS = (1, 2, 3, 7, 16, 17, 63, 64, 65, 100, 130)
ROWS = (1, 2, 5, 16, 31, 47, 48, 49, 63, 64, 65, 100, 257)
QUERIES = (1, 2, 3, 4, 5, 7, 8, 9, 17)


@dataclass
class Problem:
    """The arguments of ``rank_counts``."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    def __repr__(self) -> str:
        return f"Problem({self.note})"


def table_of(
    kind: str,
    rows: int,
    width: int,
    generator: torch.Generator,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Float64 values of a kind that is hard in its own way, for tables of a dtype."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def exponents(low: int, high: int) -> Tensor:
        return 10.0 ** torch.randint(low, high, (rows, 1), generator=generator).double()

    values = {
        "normal": lambda: normal(rows, width),
        "grid": lambda: torch.randint(-2, 3, (rows, width), generator=generator).double(),
        "tiny": lambda: normal(rows, width) * exponents(-44, -18),  # float32 denormals included
        "huge": lambda: normal(rows, width) * exponents(10, 37),
        "same": lambda: normal(1, width).repeat(rows, 1),
        "close": lambda: normal(1, width) + 1e-6 * normal(rows, width),
        "cauchy": lambda: normal(rows, width) / normal(rows, width),
        "zero": lambda: torch.zeros(rows, width, dtype=torch.float64),
        "lognormal": lambda: (2 * normal(rows, width)).exp(),
        "subnormal": lambda: (
            torch.randint(50, (rows, width), generator=generator).double()
            * (torch.finfo(dtype).smallest_normal / 64)
        ),
    }
    return values[kind]()


def cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Finite values of a dtype."""
    limit = torch.finfo(dtype).max
    return values.clamp(-limit, limit).to(dtype)


def strided(table: Tensor, kind: str) -> Tensor:
    """The same values under other strides."""
    if kind == "rows":
        wide = torch.zeros(2 * len(table), table.shape[1] + 3, dtype=table.dtype)
        wide[::2, 2 : 2 + table.shape[1]] = table
        return wide[::2, 2 : 2 + table.shape[1]]
    if kind == "columns":
        return table.t().contiguous().t()
    return table


def make_problem(seed: int, nonfinite: bool = False, many: bool = False) -> Problem:
    """One random problem; with ``many`` rows, more than any band of open pairs holds."""
    pick = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    score, kind, dtype = pick.choice(SCORES), pick.choice(TABLES), pick.choice(DTYPES)
    dim, rows, batch = pick.choice(DIMS), pick.choice(ROWS), pick.choice(QUERIES)
    if many:
        kind = pick.choice(["subnormal", "subnormal", "grid", "same", "zero"])
        dim, rows, batch = pick.randint(1, 3), pick.randint(10_000, 20_000), pick.randint(2, 4)
    width = dim * scores.get_score(score).planes
    pool = table_of(kind, rows + batch, width, generator, dtype)
    table = cast(pool[:rows], dtype)
    query_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    near = table[torch.randint(rows, (batch,), generator=generator)].double()
    queries = cast(pool[rows:] if pick.random() < 0.5 else near, query_dtype)
    if nonfinite:
        bad = pick.choice([float("nan"), float("inf"), float("-inf")])
        table[pick.randrange(rows), pick.randrange(width)] = bad
        if pick.random() < 0.5:
            queries[pick.randrange(batch), pick.randrange(width)] = bad
    layout = pick.choice(["plain", "plain", "rows", "columns"])
    targets = torch.randint(rows, (batch,), generator=generator)
    lengths = torch.randint(0, 6, (batch,), generator=generator)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    indices = torch.randint(rows, (int(indptr[-1]),), generator=generator)
    kwargs: dict[str, Any] = {"nan_worst": nonfinite}
    if pick.random() < 0.4:
        size = rows if pick.random() < 0.7 else 1
        kwargs["bias"] = torch.randn(size, generator=generator) * 10.0 ** pick.randint(-8, 3)
    if pick.random() < 0.3:
        kwargs["candidate_ids"] = torch.randperm(rows, generator=generator)[: pick.randint(1, rows)]
    if pick.random() < 0.3:
        kwargs["dims"] = sorted({pick.randint(1, dim) for _ in range(2)})
    note = (
        f"{seed=} {many=} {score} {kind} {dtype} {layout} dim={dim} rows={rows} batch={batch} "
        f"{sorted(kwargs)}"
    )
    args = (queries, strided(table, layout), targets, indptr, indices, score)
    return Problem(args, kwargs, note)


def problems(nonfinite: bool = False, many: bool = False) -> st.SearchStrategy[Problem]:
    """Random problems; shrinking is by seed, the repr says everything."""
    return st.integers(0, 2**31 - 1).map(lambda seed: make_problem(seed, nonfinite, many))


def no_known(batch: int) -> tuple[Tensor, Tensor]:
    """An empty CSR of known answers."""
    return torch.zeros(batch + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int64)


def rscf_problem(
    score: str, seed: int, *, nonfinite: bool = False
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of ``rank_counts``: ties, large angles, a factor far from 1, tails, options."""
    pick, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    batch, rows, dim = pick.choice([1, 3, 5]), pick.choice([5, 30, 70]), pick.choice([1, 3, 66])
    planes, has_factor = scores.get_score(score).planes, pick.random() < 0.75
    dtype = pick.choice([torch.float32, torch.float16, torch.float64])
    grid, reach = pick.choice([0, 2]), pick.choice([0.3, 3.0, 1000.0, 1e-42])

    def normal(*shape: int) -> Tensor:
        values = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return (values * grid).round() / grid if grid else values

    table = normal(rows, planes * dim).to(dtype)
    factor = (1 + 0.3 * normal(rows, dim) if pick.random() < 0.7 else normal(rows, dim)).to(dtype)
    parts = [normal(batch, planes * dim), 1 + normal(batch, planes * dim) / 2]
    parts += [reach * normal(batch, dim)] if has_factor else []
    queries = torch.cat(parts, 1).to(torch.float64 if dtype == torch.float64 else torch.float32)
    options: dict[str, Any] = {"factor": factor if has_factor else None}
    if pick.random() < 0.4:
        options["bias"] = normal(rows).round().to(dtype)
    if pick.random() < 0.4:
        options["dims"] = [dim, 1]
    if pick.random() < 0.3:
        options["candidate_ids"] = torch.randperm(rows, generator=generator)[: rows // 2]
    if nonfinite:
        table[0, 0], factor[-1, 0], queries[-1, -1] = torch.nan, torch.inf, -torch.inf
        options["nan_worst"] = True
    targets = torch.randint(rows, (batch,), generator=generator)
    counts = torch.randint(0, 4, (batch,), generator=generator)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    indices = torch.randint(rows, (int(indptr[-1]),), generator=generator)
    return (queries, table, targets, indptr, indices, score), options
