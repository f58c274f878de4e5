"""Random operands for scores with gradients, and how close a float32 kernel must come."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from kgfast.kernels.scores import get_score
from support import oracles
from support.problems import DIMS, DTYPES, RSCF_SCORES, SCORES, cast, strided, table_of

MOST_QUERIES = 6 if os.environ.get("TRITON_INTERPRET") == "1" else 70  # a pair takes longer
KINDS = ("normal", "grid", "zero", "same", "close", "cauchy", "lognormal")


@dataclass
class Sampled:
    """Queries, a table, and what else scores take."""

    queries: Tensor
    table: Tensor
    score: str
    bias: Tensor | None
    dims: list[int] | None
    note: str
    factor: Tensor | None = None

    def __repr__(self) -> str:
        return f"Sampled({self.note})"

    @property
    def crops(self) -> list[int | None]:
        return [None] if self.dims is None else list(self.dims)


def make_sampled(seed: int, rows: int) -> Sampled:
    """Draw a problem of at most ``rows`` rows; every third query equals a row."""
    pick, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    score, kind, dtype = pick.choice(SCORES), pick.choice(KINDS), pick.choice(DTYPES)
    dim, count, batch = pick.choice(DIMS), pick.randint(1, rows), pick.randint(1, MOST_QUERIES)
    width = dim * get_score(score).planes
    pool = table_of(kind, count + batch, width, generator)
    table = cast(pool[:count], dtype)
    if dtype == torch.float64:  # read as float32: else the gradient at q = c would be ill-posed
        table = cast(table, torch.float32).double()
    queries = cast(pool[count:], torch.float32)
    same = torch.randint(count, (len(queries[::3]),), generator=torch.Generator().manual_seed(seed))
    queries[::3] = cast(table[same].double(), torch.float32)
    layout, query_layout = pick.choice(["plain", "rows", "columns"]), pick.choice(["plain", "rows"])
    bias = None
    if pick.random() < 0.4:
        bias = torch.randn(count if pick.random() < 0.7 else 1, generator=generator)
    dims = None
    if pick.random() < 0.4:
        dims = sorted({pick.randint(1, dim) for _ in range(pick.randint(1, 4))})
    note = (
        f"seed={seed} {score} {kind} {dtype} {layout} dim={dim} rows={count} batch={batch} {dims}"
    )
    return Sampled(strided(queries, query_layout), strided(table, layout), score, bias, dims, note)


def make_moved(seed: int, rows: int) -> Sampled:
    """Draw a problem of queries that a candidate moves, by angles of a few turns."""
    pick, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    score, has_factor = pick.choice(RSCF_SCORES), pick.random() < 0.7
    dim, count, batch = pick.choice(DIMS), pick.randint(1, rows), pick.randint(1, 20)
    width = dim * get_score(score).planes

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    dtype = pick.choice(DTYPES)
    parts = [normal(batch, width), 1 + 0.2 * normal(batch, width)]
    parts += [3 * normal(batch, dim)] if has_factor else []
    table, factor = normal(count, width).to(dtype), (1 + 0.1 * normal(count, dim)).to(dtype)
    layouts = [pick.choice(["plain", "rows", "columns"]) for _ in range(3)]
    queries, table, factor = map(strided, (torch.cat(parts, 1), table, factor), layouts)
    bias = normal(count) if pick.random() < 0.4 else None
    dims = sorted({pick.randint(1, dim) for _ in range(3)}) if pick.random() < 0.4 else None
    note = f"{seed=} {score} {dtype} {layouts} {has_factor=} {dim=} rows={count} {batch=} {dims}"
    return Sampled(queries, table, score, bias, dims, note, factor if has_factor else None)


def assert_close(
    got: Tensor,
    exact: Tensor,
    dense: Tensor | None = None,
    *,
    remains: float = 0.0,
    rel: float = 1e-5,
) -> None:
    """Within ``rel`` of the largest, or twice the error of dense float32, and the last rounding.

    ``remains`` is allowed beside that, and what keeps the root of a modulus from zero.
    """
    assert got.shape == exact.shape
    if not exact.numel():
        return
    beyond = exact.abs() > torch.finfo(got.dtype).max  # beyond half precision: an infinity is right
    assert torch.equal(got[beyond], exact[beyond].to(got.dtype))
    got, exact = got.masked_fill(beyond, 0.0), exact.masked_fill(beyond, 0.0)
    rounding = 0.0 if got.dtype == torch.float32 else torch.finfo(got.dtype).eps
    remains += rounding * torch.finfo(got.dtype).smallest_normal  # the step of subnormal numbers
    remains += 2e-16
    allowed = (rel * exact.abs().max() + remains).expand(exact.shape)
    if dense is not None:
        dense = dense.masked_fill(beyond, 0.0)
        allowed = torch.maximum(allowed, 2 * (dense.double() - exact).abs().max())
    error = (got.double() - exact).abs() - rounding * exact.abs()
    assert bool((error <= allowed).all()), f"error {error.max():.3g} > {allowed.max():.3g}"


def differentiable(problem: Sampled, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Return queries and table in another precision, to be differentiated."""
    table = problem.table.detach().to(dtype, copy=True).requires_grad_()
    return problem.queries.to(dtype, copy=True).requires_grad_(), table


def dense(
    problem: Sampled,
    queries: Tensor,
    rows: Tensor,
    bias: Tensor | None,
    factor: Tensor | None = None,
) -> Tensor:
    """Score by the oracle, with a leading axis of crops where the problem has ``dims``."""
    options = {"bias": bias, "factor": factor}
    scores = [
        oracles.dense_scores(queries, rows, problem.score, dim=dim, **options)
        for dim in problem.crops
    ]
    return scores[0] if problem.dims is None else torch.stack(scores)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Give torch, hence the extension, that many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
