"""The int8 tier of dot products: the same integers as without it, and a bound that holds."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers
from kgfast.kernels.cpu.views import Packed, pointers_of
from support import flat
from support.problems import TABLES, cast, no_known, problems, table_of
from support.sampled import threads
from support.sweeps import sweep_errors

INT8, FORCED = 1 << tiers.TIERS.index("int8"), 256

pytestmark = pytest.mark.skipif(
    not cpu.is_available() or "int8" not in tiers.available(cpu.isa()),
    reason="this machine or build has no int8 tier",
)
some = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def chosen(monkeypatch):
    """A call with no tier, and with this one whatever it costs."""

    def call(function):
        results = []
        for mask in (0, INT8 | FORCED):
            monkeypatch.setattr(tiers, "mask", lambda mask=mask: mask)
            before = torch.tensor(cpu.extension.tier_pairs())
            results.append(function())
            pairs = torch.tensor(cpu.extension.tier_pairs()) - before
        return *results, pairs

    return call


def assert_same(chosen, function) -> torch.Tensor:
    """Holds results against those without the tier; the pairs that it swept and left."""
    without, with_tier, pairs = chosen(function)
    for a, b in zip(without, with_tier, strict=True):
        assert torch.equal(a, b)
    return pairs


def rows_of(kind, rows, dim, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    if kind == "clustered":
        centres = torch.randn(5, dim, generator=generator)
        values = centres[torch.randint(5, (rows,), generator=generator)]
        return (values + 1e-3 * torch.randn(rows, dim, generator=generator)).to(dtype)
    if kind == "outlier":  # all but one number in the lowest bits
        values = torch.randn(rows, dim, generator=generator)
        values[:, seed % dim] *= 1e5
        return values.to(dtype)
    return cast(table_of(kind, rows, dim, generator, dtype), dtype)


KINDS = (*TABLES, "clustered", "outlier")


@given(problem=problems())
@some
def test_counts_of_any_problem(chosen, problem):
    """Bias, subsets, crops, known answers, dtypes and layouts; scores other than dot pass it by."""
    queries, table, targets, indptr, indices, _ = problem.args
    args = (queries, table, targets, indptr, indices, "dot")
    assert_same(chosen, lambda: flat.cpu.rank_counts(*args, **problem.kwargs))


@given(problem=problems(nonfinite=True))
@some
def test_counts_with_nan_and_infinities(chosen, problem):
    queries, table, targets, indptr, indices, _ = problem.args
    args = (queries, table, targets, indptr, indices, "dot")
    assert_same(chosen, lambda: flat.cpu.rank_counts(*args, **problem.kwargs))


@given(problem=problems(), k=st.sampled_from([1, 2, 10, 64]))
@some
def test_the_best_of_any_problem(chosen, problem, k):
    queries, table, _, indptr, indices, _ = problem.args
    args = (queries, table, k, indptr, indices, "dot")
    assert_same(chosen, lambda: flat.cpu.topk(*args, **problem.kwargs))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 31, 32, 33, 100, 128, 200, 512])
def test_counts_and_the_best_of_hard_tables(chosen, kind, dim):
    table, targets = rows_of(kind, 301, dim), torch.arange(35) * 7
    queries = rows_of(kind, 35, dim, seed=1)
    queries[::3] = table[targets[::3]]  # ties with their own rows
    bias = torch.linspace(-1, 1, 301) if dim % 2 else None
    args = (queries, table, targets, *no_known(35), "dot")
    pairs = assert_same(chosen, lambda: flat.cpu.rank_counts(*args, bias=bias))
    assert pairs[0] == 35 * 301
    assert_same(chosen, lambda: flat.cpu.topk(queries, table, 10, bias=bias))


def test_targets_whose_score_cancels(chosen):
    """Scores near 0 of long rows: the terms cancel, and the bound is that of their size."""
    table = rows_of("normal", 300, 128)
    queries = rows_of("normal", 40, 128, seed=1)
    targets = torch.arange(40)
    own = table[targets]
    queries -= (queries * own).sum(1, keepdim=True) / own.square().sum(1, keepdim=True) * own
    for size in (1.0, 1e4, 1e15, 1e30, 1e-25):
        args = (size * queries, size * table, targets, *no_known(40), "dot")
        if size < 1e19:
            assert_same(chosen, lambda args=args: flat.cpu.rank_counts(*args))
        assert_same(chosen, lambda size=size: flat.cpu.topk(size * queries, table, 5))


def test_equal_queries_with_targets_of_their_own(chosen):
    table = rows_of("normal", 200, 64)
    queries = rows_of("normal", 5, 64, seed=1).repeat(60, 1)
    targets = torch.arange(300) % 200
    args = (queries, table, targets, *no_known(300), "dot")
    assert assert_same(chosen, lambda: flat.cpu.rank_counts(*args))[0] == 300 * 200


def test_a_table_of_identical_rows_overflows_the_band(chosen):
    table = torch.randn(1, 6).repeat(3_000, 1)
    args = (torch.randn(20, 6), table, torch.arange(20), *no_known(20), "dot")
    pairs = assert_same(chosen, lambda: flat.cpu.rank_counts(*args))
    assert pairs[2] == 20 * 3_000  # ties are for canonical scores


def test_it_decides_almost_all_pairs_of_a_random_table(chosen):
    table, queries = rows_of("normal", 3_000, 256), rows_of("normal", 64, 256, seed=1)
    args = (queries, table, torch.arange(64), *no_known(64), "dot")
    swept, gathered, canonical = assert_same(chosen, lambda: flat.cpu.rank_counts(*args)).tolist()
    assert swept == 64 * 3_000
    assert gathered < swept // 500
    assert canonical < swept // 2_000 + 64  # a target is a tie of its own


@pytest.mark.parametrize("count", [2, 5])
def test_neither_threads_nor_batches_change_anything(chosen, count):
    table, queries = rows_of("grid", 700, 140), rows_of("grid", 37, 140, seed=1)
    targets = torch.arange(37) * 11
    with threads(count):
        assert_same(
            chosen, lambda: flat.cpu.rank_counts(queries, table, targets, *no_known(37), "dot")
        )
        assert_same(chosen, lambda: flat.cpu.topk(queries, table, 10))
    assert_same(
        chosen,
        lambda: [
            torch.cat(column)
            for column in zip(
                *(
                    flat.cpu.rank_counts(q, table, t, *no_known(len(t)), "dot")
                    for q, t in zip(queries.split(9), targets.split(9), strict=True)
                ),
                strict=True,
            )
        ],
    )


def prepared(monkeypatch, table):
    """Makes calls of ``table`` use panels that are made once; returns what keeps them."""
    dim = table.shape[1]
    memory = torch.zeros(cpu.extension.int8_bytes(*table.shape) + 64, dtype=torch.uint8)
    start = memory.data_ptr() + -memory.data_ptr() % 64
    machine = (cpu.isa(), torch.get_num_threads(), INT8)
    operands = flat.operands_of(table[:1].float(), table, "dot")
    assert cpu.extension.pack_int8(machine, pointers_of(operands, None), dim, start)[0] == -1

    def pointers(operands, bias):
        return pointers_of(operands, bias)._replace(packed=Packed(dim, int8=start))

    for module in ("kgfast.kernels.cpu.rank", "kgfast.kernels.cpu.topk", "support.sweeps"):
        monkeypatch.setattr(f"{module}.pointers_of", pointers)
    return memory


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [33, 256])
def test_panels_that_are_made_once_serve_few_queries(monkeypatch, dim, dtype):
    table, queries = rows_of("normal", 3_001, dim, dtype=dtype), rows_of("normal", 16, dim, seed=1)
    kept, subset = [], torch.arange(0, 3_001, 2)
    for ready in (False, True):
        if ready:
            memory = prepared(monkeypatch, table)
        monkeypatch.setattr(tiers, "mask", lambda ready=ready: INT8 if ready else 0)
        for count in (1, 2, 16):
            few, targets = queries[:count], torch.arange(count)
            before = cpu.extension.tier_pairs()[0]
            kept.append(flat.cpu.rank_counts(few, table, targets, *no_known(count), "dot"))
            assert (cpu.extension.tier_pairs()[0] - before == count * 3_001) == ready
            kept.append(flat.cpu.topk(few, table, 10))
        kept.append(flat.cpu.topk(queries, table, 10, candidate_ids=subset))  # without them
        kept.append(flat.cpu.topk(queries, table, 10, dims=[dim - 1]))  # likewise
    assert len(memory)
    for without, with_panels in zip(kept[: len(kept) // 2], kept[len(kept) // 2 :], strict=True):
        for a, b in zip(without, with_panels, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 65, 200])
def test_high_bytes_first_change_nothing(monkeypatch, kind, dim):
    """Ties, duplicates, denormals, known answers, a bias, fewer candidates than are asked for."""
    table = rows_of(kind, 301, dim)
    indptr, indices = torch.arange(17) * 3, (torch.arange(48) * 13) % 301
    found = []
    for ready in (False, True):
        memory = prepared(monkeypatch, table) if ready else None
        monkeypatch.setattr(tiers, "mask", lambda ready=ready: INT8 | FORCED if ready else 0)
        for count, bias in ((1, None), (2, torch.linspace(-1, 1, 301)), (16, None)):
            queries, targets = rows_of(kind, count, dim, seed=1), torch.arange(count) * 7
            queries[::3] = table[targets[::3]]
            known = indptr[: count + 1], indices[: 3 * count]
            args = (queries, table, targets, *known, "dot")
            found.append(flat.cpu.rank_counts(*args, bias=bias))
            for k in (1, 10, 301):
                found.append(flat.cpu.topk(queries, table, k, *known, bias=bias))
        del memory
    for without, own in zip(found[: len(found) // 2], found[len(found) // 2 :], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(without, own, strict=True))


@pytest.mark.parametrize("order", ["rising", "falling", "equal"])
def test_every_panel_may_need_its_low_bytes(monkeypatch, order):
    """The pauses between panels whose high bytes are read first, and their end."""
    table = rows_of("normal", 1, 100).expand(3_000, 100).clone()
    table *= {"rising": 1.0, "falling": -1.0, "equal": 0.0}[order] * torch.arange(3_000)[
        :, None
    ] + 1
    table[2_000:] *= 1e-3
    queries = torch.cat([table[:1], rows_of("normal", 2, 100, seed=1)])
    targets = torch.tensor([5, 2_900, 1_500])
    args = (queries, table, targets, *no_known(3), "dot")
    monkeypatch.setattr(tiers, "mask", lambda: 0)
    expected = [flat.cpu.rank_counts(*args), flat.cpu.topk(queries, table, 10)]
    memory = prepared(monkeypatch, table)
    monkeypatch.setattr(tiers, "mask", lambda: INT8 | FORCED)
    for count in (1, 2):
        with threads(count):
            found = [flat.cpu.rank_counts(*args), flat.cpu.topk(queries, table, 10)]
        for own, other in zip(found, expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(own, other, strict=True))
    assert len(memory)


def test_a_bad_row_of_ready_panels_is_named(monkeypatch):
    table = rows_of("normal", 200, 64)
    table[77, 5] = torch.nan
    memory = prepared(monkeypatch, table)
    monkeypatch.setattr(tiers, "mask", lambda: INT8 | FORCED)
    with pytest.raises(ValueError, match="row 77"):
        flat.cpu.topk(table[:2], table, 3)
    assert len(memory)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "huge"])
def test_errors_stay_below_the_bound(kind, dtype):
    for dim in (1, 7, 64, 130):
        table, queries = (rows_of(kind, 70, dim, seed=seed, dtype=dtype) for seed in (0, 1))
        queries = queries if dtype == torch.float64 else queries.float()
        queries[::2] = rows_of("normal", 35, dim, seed=2, dtype=queries.dtype)
        values, exact, bounds = sweep_errors(
            "avx512", queries, table, "dot", [dim], tiers=INT8 | FORCED
        )
        fits = ~bounds.isnan()  # rows whose products may overflow are left open
        assert fits.any()
        assert ((values - exact).abs() <= bounds)[fits].all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "huge"])
def test_errors_of_high_bytes_stay_below_their_bound(monkeypatch, kind, dtype):
    for dim in (1, 64, 130):
        with monkeypatch.context() as patch:
            table, queries = (rows_of(kind, n, dim, seed=n, dtype=dtype) for n in (70, 16))
            queries = queries if dtype == torch.float64 else queries.float()
            queries[::2] = rows_of("normal", 8, dim, seed=2, dtype=queries.dtype)
            memory = prepared(patch, table)
            values, exact, bounds = sweep_errors(
                "avx512", queries, table, "dot", [dim], tiers=INT8 | FORCED
            )
        assert len(memory)
        fits = ~bounds.isnan()
        assert fits.any()
        assert ((values - exact).abs() <= bounds)[fits].all()


def test_the_bound_of_high_bytes_says_something(monkeypatch):
    table, queries = rows_of("normal", 100, 256), rows_of("normal", 16, 256, seed=1)
    memory = prepared(monkeypatch, table)
    values, exact, bounds = sweep_errors(
        "avx512", queries, table, "dot", [256], tiers=INT8 | FORCED
    )
    norms = queries.double().norm(dim=1)[:, None] * table.double().norm(dim=1)
    assert len(memory)
    assert (bounds < 1.5e-2 * norms).all()
    assert ((values - exact).abs().amax() > 1e-2 * bounds.amin()).all()


def test_the_bound_says_something():
    table, queries = rows_of("normal", 100, 256), rows_of("normal", 20, 256, seed=1)
    values, exact, bounds = sweep_errors(
        "avx512", queries, table, "dot", [256], tiers=INT8 | FORCED
    )
    norms = queries.double().norm(dim=1)[:, None] * table.double().norm(dim=1)
    assert (bounds < 1.5e-4 * norms).all()
    assert ((values - exact).abs().amax() > 1e-3 * bounds.amin()).all()


def test_rows_at_the_ends_of_the_range_stay_exact():
    """Largest numbers of both signs, of all features: bytes and sums of bytes do not overflow."""
    signs = torch.tensor([1.0, -1.0])
    table = signs.repeat(32)[:, None].expand(64, 4096).clone()
    table[:, ::2] *= -1
    queries = table[:20].clone()
    values, exact, bounds = sweep_errors(
        "avx512", queries, table, "dot", [4096], tiers=INT8 | FORCED
    )
    assert ((values - exact).abs() <= bounds).all()
