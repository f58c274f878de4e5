"""The int8 tier of dot products: the same integers as without it, and a bound that holds.

Each instruction set of this machine has a tier of its own, by products of bytes or of words.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch

from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers
from kgfast.kernels.cpu.views import Machine, Packed, arguments_of
from support import flat
from support.problems import DTYPES, TABLES, cast, no_known, table_of
from support.sampled import threads
from support.sweeps import sweep_errors
from support.tiers import FORCED, INT8, assert_same, lacks, pairs_of, serving


@pytest.fixture(autouse=True)
def has_the_tier(isa):
    if "int8" not in tiers.available(isa):
        pytest.skip(lacks("int8") or f"int8 does not go beside {isa}")


def tries_bytes():
    """Tell whether many queries try rows of one byte a number before words."""
    vnni = next(it for it in tiers.engines() if it.needs == "AVX512-VNNI")
    return vnni.has and vnni.is_built and cpu.isa() == vnni.isa


def counts_of(queries, table, targets, known=None, **kwargs):
    known = known or no_known(len(targets))
    return lambda: flat.cpu.rank_counts(queries, table, targets, *known, "dot", **kwargs)


def best_of(*args, **kwargs):
    return lambda: flat.cpu.topk(*args, **kwargs)


def assert_exact(call):
    """Check that the forced tier changes no result; return the pairs that it swept and left."""
    return assert_same(call, INT8 | FORCED)


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 31, 32, 33, 100, 128, 200, 512])
def test_counts_and_the_best_of_hard_tables(kind, dim):
    table, targets = rows_of(kind, 301, dim), torch.arange(35) * 7
    queries = rows_of(kind, 35, dim, seed=1)
    queries[::3] = table[targets[::3]]  # ties with their own rows
    bias = torch.linspace(-1, 1, 301) if dim % 2 else None
    assert assert_exact(counts_of(queries, table, targets, bias=bias))[0] == 35 * 301
    assert_exact(best_of(queries, table, 10, bias=bias))


def test_targets_whose_score_cancels():
    """Scores near 0 of long rows: the terms cancel, and the bound is that of their size."""
    table = rows_of("normal", 300, 128)
    queries = rows_of("normal", 40, 128, seed=1)
    targets = torch.arange(40)
    own = table[targets]
    queries -= (queries * own).sum(1, keepdim=True) / own.square().sum(1, keepdim=True) * own
    for size in (1.0, 1e4, 1e15, 1e30, 1e-25):
        if size < 1e19:
            assert_exact(counts_of(size * queries, size * table, targets))
        assert_exact(best_of(size * queries, table, 5))


def test_equal_queries_with_targets_of_their_own():
    table = rows_of("normal", 200, 64)
    queries = rows_of("normal", 5, 64, seed=1).repeat(60, 1)
    targets = torch.arange(300) % 200
    assert assert_exact(counts_of(queries, table, targets))[0] == 300 * 200


def test_a_table_of_identical_rows_overflows_the_band():
    table = torch.randn(1, 6).repeat(3_000, 1)
    _, _, canonical = assert_exact(counts_of(torch.randn(20, 6), table, torch.arange(20)))
    assert canonical == 20 * 3_000  # ties are for canonical scores


def test_it_decides_almost_all_pairs_of_a_random_table():
    table, queries = rows_of("normal", 3_000, 256), rows_of("normal", 16, 256, seed=1)
    swept, gathered, canonical = assert_exact(counts_of(queries, table, torch.arange(16)))
    assert swept == 16 * 3_000
    assert gathered < swept // 350
    assert canonical < swept // 2_000 + 16  # a target is a tie of its own


@pytest.mark.parametrize("share", [0.5, 0.999])
def test_bytes_first_step_back_where_targets_lie_amid(share):
    """Check that bytes sweep one panel where they leave an eighth open, and all otherwise."""
    table, queries = rows_of("normal", 6_400, 256), rows_of("normal", 64, 256, seed=1)
    targets = (queries @ table.T).argsort(1)[:, int(share * 6_400)]
    with threads(1):
        swept, gathered, _ = assert_exact(counts_of(queries, table, targets))
    assert swept == 64 * 6_400
    if not tries_bytes():
        return
    per_panel = gathered / 100
    if share < 0.9:
        assert 0.08 * 4_096 < gathered < 0.16 * 4_096 + 0.004 * swept
    else:  # words alone leave far fewer
        assert 0.001 * 4_096 < per_panel < 0.004 * 4_096


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 65, 128, 200])
def test_bytes_first_change_nothing(kind, dim):
    """Compare panels of bytes and of words: ties, known answers, a bias, strides."""
    table, targets = rows_of(kind, 1_301, dim), torch.arange(35) * 37
    queries = rows_of(kind, 35, dim, seed=1)
    queries[::3] = table[targets[::3]]
    queries[1::5] = queries[0]  # equal queries with targets of their own
    known = torch.arange(36) * 3, (torch.arange(105) * 13) % 1_301
    bias = torch.linspace(-1, 1, 1_301) * table.float().abs().amax().clamp(max=1e3)
    strided = torch.stack([table, -table], 1).flatten(0, 1)[::2]
    spread = torch.stack([table, -table], 2).flatten(1)[:, ::2]
    for rows in (table, strided, spread):
        for count in (1, 2):
            with threads(count):
                assert_exact(counts_of(queries, rows, targets, known, bias=bias))
    assert_exact(counts_of(queries, table, targets, candidate_ids=torch.arange(0, 1_301, 3)))


@contextmanager
def prepared(table: torch.Tensor) -> Iterator[None]:
    """Let calls of ``table`` use panels that are made once."""
    dim = table.shape[1]
    memory = torch.zeros(cpu.extension.int8_bytes(*table.shape) + 64, dtype=torch.uint8)
    start = memory.data_ptr() + -memory.data_ptr() % 64
    machine = Machine(cpu.isa(), torch.get_num_threads(), INT8)
    operands = flat.operands_of(table[:1].float(), table, "dot")
    assert cpu.extension.pack_int8(machine, arguments_of(operands, None)[1], dim, start)[0] == -1

    def arguments(operands, bias):
        machine, pointers = arguments_of(operands, bias)
        return machine, pointers._replace(packed=Packed(dim, int8=start))

    with pytest.MonkeyPatch.context() as patch:
        for module in ("kgfast.kernels.cpu.rank", "kgfast.kernels.cpu.topk", "support.sweeps"):
            patch.setattr(f"{module}.arguments_of", arguments)
        yield


def assert_panels_change_nothing(table, mask, *calls):
    """Check calls of panels that are made once; return the pairs that a call swept."""
    with serving(0):
        expected = [call() for call in calls]
    with prepared(table), serving(mask):
        found = [pairs_of(call) for call in calls]
    for without, (_, with_panels) in zip(expected, found, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(without, with_panels, strict=True))
    return [pairs[0] for pairs, _ in found]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [33, 256])
def test_panels_that_are_made_once_serve_few_queries(dim, dtype):
    table, queries = rows_of("normal", 3_001, dim, dtype=dtype), rows_of("normal", 16, dim, seed=1)
    counts = (1, 2, 16)
    swept = assert_panels_change_nothing(
        table,
        INT8,
        *(counts_of(queries[:count], table, torch.arange(count)) for count in counts),
        *(best_of(queries[:count], table, 10) for count in counts),
        best_of(queries, table, 10, candidate_ids=torch.arange(0, 3_001, 2)),  # without them
        best_of(queries, table, 10, dims=[dim - 1]),  # likewise
    )
    most = 2 if cpu.isa() == "neon" else 16  # queries that wait for the memory there
    assert swept[:3] == [count * 3_001 * (count <= most) for count in counts]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 65, 200])
def test_high_bytes_first_change_nothing(kind, dim):
    """Ties, duplicates, denormals, known answers, a bias, fewer candidates than are asked for."""
    table, calls = rows_of(kind, 301, dim), []
    for count, bias in ((1, None), (2, torch.linspace(-1, 1, 301)), (16, None)):
        queries, targets = rows_of(kind, count, dim, seed=1), torch.arange(count) * 7
        queries[::3] = table[targets[::3]]
        known = torch.arange(count + 1) * 3, (torch.arange(3 * count) * 13) % 301
        calls.append(counts_of(queries, table, targets, known, bias=bias))
        calls += [best_of(queries, table, k, *known, bias=bias) for k in (1, 10, 301)]
    assert_panels_change_nothing(table, INT8 | FORCED, *calls)


@pytest.mark.parametrize("order", ["rising", "falling", "equal"])
def test_every_panel_may_need_its_low_bytes(order):
    """The pauses between panels whose high bytes are read first, and their end."""
    table = rows_of("normal", 1, 100).expand(3_000, 100).clone()
    table *= {"rising": 1.0, "falling": -1.0, "equal": 0.0}[order] * torch.arange(3_000)[
        :, None
    ] + 1
    table[2_000:] *= 1e-3
    queries = torch.cat([table[:1], rows_of("normal", 2, 100, seed=1)])
    calls = (
        counts_of(queries, table, torch.tensor([5, 2_900, 1_500])),
        best_of(queries, table, 10),
    )
    for count in (1, 2):
        with threads(count):
            assert_panels_change_nothing(table, INT8 | FORCED, *calls)


def test_a_bad_row_of_ready_panels_is_named():
    table = rows_of("normal", 200, 64)
    table[77, 5] = torch.nan
    with prepared(table), serving(INT8 | FORCED), pytest.raises(ValueError, match="row 77"):
        flat.cpu.topk(table[:2], table, 3)


def errors_of(queries, table):
    """Return the tier's distances, the canonical ones, and the claimed bound: ``[B, N]`` each."""
    widths = table.shape[1:]
    found = sweep_errors(cpu.isa(), queries, table, "dot", widths, tiers=INT8 | FORCED)
    return [values[0] for values in found]


@pytest.mark.parametrize(
    ("dtype", "of_high", "count"),
    [
        *((it, False, count) for it in DTYPES for count in (16, 70)),  # bytes before words
        *((it, True, 16) for it in DTYPES if it != torch.float16),
    ],
)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "huge"])
def test_errors_stay_below_the_bound(kind, dtype, of_high, count):
    for dim in (1, 64, 130) if of_high else (1, 7, 64, 130):
        table, queries = (
            rows_of(kind, n, dim, seed=seed, dtype=dtype) for seed, n in enumerate((70, count))
        )
        queries = queries if dtype == torch.float64 else queries.float()
        queries[::2] = rows_of("normal", count // 2, dim, seed=2, dtype=queries.dtype)
        with prepared(table) if of_high else nullcontext():
            values, exact, bounds = errors_of(queries, table)
        fits = ~bounds.isnan()  # rows whose products may overflow are left open
        assert fits.any()
        assert ((values - exact).abs() <= bounds)[fits].all()


@pytest.mark.parametrize(
    ("of_high", "count"),
    [(False, 16), (True, 16), (False, 40)],
    ids=["all bytes", "high bytes", "bytes first"],
)
def test_the_bound_says_something(of_high, count):
    table, queries = rows_of("normal", 100, 256), rows_of("normal", count, 256, seed=1)
    with prepared(table) if of_high else nullcontext():
        values, exact, bounds = errors_of(queries, table)
    norms = queries.double().norm(dim=1)[:, None] * table.double().norm(dim=1)
    most = 3e-2 if of_high else 2.5e-4
    if tries_bytes() and count > 16:
        most = 2.2e-2
    assert (bounds < most * norms).all()
    least = (1e-2 if of_high else 1e-3) * bounds.amin()
    assert ((values - exact).abs().amax() > least).all()


@pytest.mark.parametrize("count", [16, 20])
def test_rows_at_the_ends_of_the_range_stay_exact(count):
    """Largest numbers of both signs, of all features: bytes and sums of bytes do not overflow."""
    signs = torch.tensor([1.0, -1.0])
    table = signs.repeat(32)[:, None].expand(64, 4096).clone()
    table[:, ::2] *= -1
    queries = table[:count].clone()
    values, exact, bounds = errors_of(queries, table)
    assert ((values - exact).abs() <= bounds).all()
