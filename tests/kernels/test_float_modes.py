"""Whatever arithmetic a caller has switched on, ranks and the best k are those of IEEE 754."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch

from kgfast.kernels import cpu
from support import flat, oracles
from support.engines import NAMES, engines
from support.flat import reference
from support.problems import DTYPES, SCORES, cast, no_known, table_of
from support.sampled import threads
from support.states import state

needs_extension = pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")


@contextmanager
def mode(name: str) -> Iterator[None]:
    """Set the caller's arithmetic, which must be the same at the end."""
    with state(*([] if name == "plain" else [name])):
        yield
        tiny = torch.tensor(1e-310, dtype=torch.float64)
        assert ((tiny * 1.0).item() == 0) == (name == "flush")


MODES = ("plain", "flush")


@needs_extension
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", ["plain", "flush"])
def test_subnormals_where_the_band_and_the_survivors_overflow(isa, name, count):
    """The distance is the difference, so that sorted integers say who ranks where."""
    generator = torch.Generator().manual_seed(3)
    values = torch.randint(50, (30_000,), generator=generator)
    table = values.double()[:, None] * 1e-310
    queries = torch.zeros(3, 1, dtype=torch.float64)
    targets = torch.tensor([5, 77, 20_000])
    lower = [int((values < values[t]).sum()) for t in targets]
    same = [int((values == values[t]).sum()) - 1 for t in targets]
    best = values.sort(stable=True).indices[:700].expand(3, -1)
    with threads(count), mode(name):
        greater, equal, *_ = flat.cpu.rank_counts(queries, table, targets, *no_known(3), "l1")
        found = flat.cpu.topk(queries, table, 700, score="l1")
        scores = -table[best, 0]
    assert greater.tolist() == lower
    assert equal.tolist() == same
    assert torch.equal(found[1], best)
    assert torch.equal(found[0], scores)


def arguments(score: str, dtype: torch.dtype, rows: int):
    """Return repeated queries, known answers, a subnormal bias: all that is read in double."""
    generator = torch.Generator().manual_seed(7)
    pool = table_of("subnormal", rows + 20, 6, generator, dtype)
    table = cast(pool[:rows], dtype)
    queries = cast(pool[rows:], torch.float64 if dtype == torch.float64 else torch.float32)
    queries[10:] = queries[:10]
    bias = cast(table_of("subnormal", rows, 1, generator, dtype)[:, 0] / 8, dtype)
    indices = torch.randint(rows, (80,), generator=generator)
    targets = torch.randint(rows, (20,), generator=generator)
    return queries, table, targets, torch.arange(21) * 4, indices, score, bias


@engines("reference", *NAMES, scores=SCORES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_counts_and_the_best_in_every_mode(engine, score, dtype):
    of_call = arguments(score, dtype, 50 if engine.is_triton else 400)
    queries, table, targets, indptr, indices, score, bias = of_call
    known = [indices[a:b].tolist() for a, b in pairwise(indptr.tolist())]
    values = oracles.canonical_scores(queries, table, score, bias)
    counts = oracles.counts(values, targets.tolist(), known)
    ids, scores = oracles.best(values, 5, known)
    for name in MODES:
        with mode(name):
            found = engine.rank_counts(queries, table, targets, indptr, indices, score, bias=bias)
            best = engine.topk(queries, table, 5, indptr, indices, score, bias=bias)
        assert torch.stack(list(found)).tolist() == counts, name
        assert best[1].tolist() == ids, name
        assert best[0].tolist() == torch.from_numpy(scores).to(queries.dtype).tolist(), name
    assert sum(counts[0]) > 0


@needs_extension
@pytest.mark.parametrize("score", ["rscf_rotate", "rscf_l1", "rscf_l2"])
def test_factors_that_are_subnormal(score):
    """The reach of factors is found before the sweep."""
    generator = torch.Generator().manual_seed(9)
    planes = 2 if score == "rscf_rotate" else 1
    table = table_of("subnormal", 300, 3 * planes, generator, torch.float32).float()
    queries = torch.rand(6, 3 * (2 * planes + 1), generator=generator)
    queries[:, -3:] *= 1e30
    factor = table_of("subnormal", 300, 3, generator, torch.float32).float()
    args = (queries, table, torch.arange(6), *no_known(6), score)
    expected = torch.stack(reference.rank_counts(*args, factor=factor))
    for name in MODES:
        with mode(name):
            found = torch.stack(flat.cpu.rank_counts(*args, factor=factor))
            again = torch.stack(reference.rank_counts(*args, factor=factor))
        assert torch.equal(found, expected), name
        assert torch.equal(again, expected), name
