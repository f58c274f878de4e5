"""The int8 tier of dot products: the same integers as without it, also among near ties."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers
from kgfast.kernels.cpu.views import Machine, Packed, arguments_of
from support import flat
from support.problems import TABLES, cast, no_known, table_of
from support.sampled import threads
from support.tiers import BYTES, FORCED, INT8, assert_same, lacks, pairs_of, serving


@pytest.fixture(autouse=True)
def has_the_tier(isa):
    if "int8" not in tiers.available(isa):
        pytest.skip(lacks("int8") or f"int8 does not go beside {isa}")


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
    """Ties, equal queries, known answers, a bias, strides, a subset."""
    table, targets = rows_of(kind, 301, dim), torch.arange(35) * 7
    queries = rows_of(kind, 35, dim, seed=1)
    queries[::3] = table[targets[::3]]
    queries[1::5] = queries[0]
    bias = torch.linspace(-1, 1, 301) if dim % 2 else None
    known = torch.arange(36) * 3, (torch.arange(105) * 13) % 301
    assert assert_exact(counts_of(queries, table, targets, known, bias=bias))[0] == 35 * 301
    assert_exact(best_of(queries, table, 10, bias=bias))
    spread = torch.stack([table, -table], 2).flatten(1)[:, ::2]
    with threads(2):
        assert_exact(counts_of(queries, spread, targets, bias=bias))
    assert_exact(counts_of(queries, table, targets, candidate_ids=torch.arange(0, 301, 3)))


def near_ties(queries, targets):
    """Return rows whose scores differ from a target's by 1e-9 to 0.1 of both rows' lengths."""
    sizes = torch.logspace(-9, -1, 40, dtype=torch.float64)
    queries, targets = queries.double(), targets.double()
    unit = queries / queries.norm(dim=1, keepdim=True)
    steps = torch.cat([sizes, -sizes])[:, None, None] * targets.norm(dim=1)[:, None]
    return torch.cat([targets, (targets + steps * unit).flatten(0, 1)]).float()


@pytest.mark.parametrize("kind", ["normal", "clustered", "outlier"])
@pytest.mark.parametrize("count", [3, 16, 40])
def test_near_ties_at_every_distance(kind, count):
    """A bound that is too small decides pairs wrongly whose scores are closer than its error."""
    for dim in (7, 64, 130):
        queries, targets = (rows_of(kind, count, dim, seed) for seed in (1, 2))
        table = near_ties(queries, targets)
        calls = [
            counts_of(queries, table, torch.arange(count)),
            *(best_of(queries, table, k) for k in (1, 40)),
        ]
        for call in calls:
            assert_exact(call)
        if count <= 16:
            assert_panels_change_nothing(table, INT8 | FORCED, *calls)


def test_targets_whose_score_cancels():
    """Scores near 0 of long rows: the terms cancel, and the bound is that of their size."""
    table, queries = rows_of("normal", 300, 128), rows_of("normal", 40, 128, seed=1)
    own = table[:40]
    queries -= (queries * own).sum(1, keepdim=True) / own.square().sum(1, keepdim=True) * own
    for size in (1.0, 1e4, 1e15, 1e30, 1e-25):
        if size < 1e19:
            assert_exact(counts_of(size * queries, size * table, torch.arange(40)))
        assert_exact(best_of(size * queries, table, 5))


def test_rows_at_the_ends_of_the_range():
    """Largest numbers of both signs, of all features: no sum overflows."""
    table = torch.tensor([1.0, -1.0]).repeat(32)[:, None].expand(64, 4096).clone()
    table[:, ::2] *= -1
    assert_exact(counts_of(table[:20].clone(), table, torch.arange(20)))


def test_it_decides_almost_all_pairs_of_a_random_table():
    table, queries = rows_of("normal", 3_000, 256), rows_of("normal", 16, 256, seed=1)
    swept, gathered, canonical = assert_exact(counts_of(queries, table, torch.arange(16)))
    assert swept == 16 * 3_000
    assert gathered < swept // 350
    assert canonical < swept // 2_000


@pytest.mark.parametrize("mask", [0, BYTES, INT8, INT8 | BYTES])
def test_it_serves_where_it_may_and_has_many_queries(mask):
    table, queries = rows_of("normal", 5_000, 512), rows_of("normal", 128, 512, seed=1)
    with serving(mask):
        (swept, *_), _ = pairs_of(counts_of(queries, table, torch.arange(128)))
    assert (swept > 0) == bool(mask & INT8 and cpu.isa() != "neon")  # isa_neon.cpp


@contextmanager
def prepared(table: torch.Tensor) -> Iterator[None]:
    """Let calls of ``table`` use panels that are made once."""
    dim = table.shape[1]
    size = -(-len(table) // 64) * cpu.extension.int8_bytes(dim)
    memory = torch.zeros(size + 64, dtype=torch.uint8)
    start = memory.data_ptr() + -memory.data_ptr() % 64
    machine = Machine(cpu.isa(), torch.get_num_threads(), INT8)
    operands = flat.operands_of(table[:1].float(), table, "dot")
    packed = Packed(dim, int8=start)
    assert cpu.extension.pack(machine, arguments_of(operands, None)[1], packed)[1] == -1

    def arguments(operands, bias):
        machine, pointers = arguments_of(operands, bias)
        return machine, pointers._replace(packed=packed)

    with pytest.MonkeyPatch.context() as patch:
        for module in ("kgfast.kernels.cpu.rank", "kgfast.kernels.cpu.topk"):
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
def test_panels_that_are_made_once_serve_few_queries(dtype):
    table, queries = rows_of("normal", 3_001, 256, dtype=dtype), rows_of("normal", 16, 256, seed=1)
    counts = (1, 2, 16)
    swept = assert_panels_change_nothing(
        table,
        INT8,
        *(counts_of(queries[:count], table, torch.arange(count)) for count in counts),
        *(best_of(queries[:count], table, 10) for count in counts),
        best_of(queries, table, 10, candidate_ids=torch.arange(0, 3_001, 2)),  # without them
        best_of(queries, table, 10, dims=[255]),  # likewise
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


@pytest.mark.parametrize("slope", [1.0, -1.0, 0.0])
def test_every_panel_may_need_its_low_bytes(slope):
    """The pauses between panels whose high bytes are read first, and their end."""
    table = rows_of("normal", 1, 100) * (slope * torch.arange(3_000)[:, None] + 1)
    table[2_000:] *= 1e-3
    queries = torch.cat([table[:1], rows_of("normal", 2, 100, seed=1)])
    targets = torch.tensor([5, 2_900, 1_500])
    calls = counts_of(queries, table, targets), best_of(queries, table, 10)
    for count in (1, 2):
        with threads(count):
            assert_panels_change_nothing(table, INT8 | FORCED, *calls)
