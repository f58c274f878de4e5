"""Ranks on a real GPU: the CPU's integers, bounded memory, the tensor's own device and stream."""

import pytest
import torch

import kgfast
from kgfast import ops
from support.flat import reference
from support.problems import DTYPES, SCORES, make_problem, no_known
from support.waits import count_waits

SEEDS = range(60)


def moved(values, device):
    return [it.to(device) if isinstance(it, torch.Tensor) else it for it in values]


def moved_kwargs(kwargs, device):
    return {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("nonfinite", [False, True])
def test_counts_equal_the_reference_on_the_cpu(seed, nonfinite):
    problem = make_problem(seed, nonfinite)
    expected = reference.rank_counts(*problem.args, **problem.kwargs)
    counted = ops.rank_counts(*moved(problem.args, "cuda"), **moved_kwargs(problem.kwargs, "cuda"))
    for a, b in zip(expected, counted, strict=True):
        assert b.device.type == "cuda"
        assert torch.equal(a, b.cpu()), problem


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_large_table(score, dtype):
    """Tens of thousands of candidates, a number that no tile divides."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(14_541, 128, generator=generator).to(dtype)
    queries = torch.randn(64, 128, generator=generator)
    queries = queries.double() if dtype == torch.float64 else queries
    targets = torch.randint(14_541, (64,), generator=generator)
    with ops.use_backend("cpu" if _has_extension() else "reference"):
        expected = ops.rank_counts(queries, table, targets, *no_known(64), score)
    counted = ops.rank_counts(*moved((queries, table, targets, *no_known(64)), "cuda"), score)
    for a, b in zip(expected, counted, strict=True):
        assert torch.equal(a, b.cpu())


def _has_extension() -> bool:
    from kgfast.kernels import cpu

    return cpu.is_available()


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("batch", [1, 3, 16, 17])
def test_few_queries(score, batch):
    """Those of up to 16 are swept in place: the same integers as packed, at every crop."""
    generator = torch.Generator().manual_seed(batch)
    table = torch.randn(40_943, 256, generator=generator).half()
    queries = torch.randn(batch, 256, generator=generator)
    targets = torch.randint(len(table), (batch,), generator=generator)
    ids = torch.randperm(len(table), generator=generator)[:30_001]
    with ops.use_backend("cpu" if _has_extension() else "reference"):
        expected = ops.rank_counts(
            queries, table, targets, *no_known(batch), score, dims=[128, 37], candidate_ids=ids
        )
    args = moved((queries, table, targets, *no_known(batch)), "cuda")
    for _ in range(2):
        counted = ops.rank_counts(*args, score, dims=[128, 37], candidate_ids=ids.cuda())
        for a, b in zip(expected, counted, strict=True):
            assert torch.equal(a, b.cpu())


def test_rank_of_a_whole_graph_equals_the_cpu():
    data = kgfast.datasets.synthetic(2_000, 11, 5_000, 200, 400)
    entity, phase = data.planted(96)
    model = kgfast.RotatE(entity, phase, relation_format="phase")
    expected = kgfast.rank(model, data.test, known=data.known())
    ranks = kgfast.rank(model.cuda(), data.test, known=data.known())
    for field in ("greater", "equal", "num_candidates"):
        assert torch.equal(getattr(ranks, field), getattr(expected, field))
        assert torch.equal(getattr(ranks.raw, field), getattr(expected.raw, field))


def problem_on_gpu(rows=40_943, batch=512, width=1024):
    generator = torch.Generator("cuda").manual_seed(0)
    table = torch.randn(rows, width, generator=generator, device="cuda")
    queries = torch.randn(batch, width, generator=generator, device="cuda")
    return queries, table, torch.arange(batch, device="cuda"), *moved(no_known(batch), "cuda")


@pytest.mark.parametrize("batch", [1, 128, 4096])
def test_peak_memory_beyond_the_inputs(batch):
    args = problem_on_gpu(batch=batch)
    ops.rank_counts(*args, "rotate")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    ops.rank_counts(*args, "rotate")
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before <= 64 << 20


def test_evaluations_between_training_steps_leave_the_reserve_flat():
    """20 evaluations at 128, 256 and 512 dims among allocations like those of training."""
    args = problem_on_gpu(rows=20_000, batch=128)
    sizes = []
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    try:
        for step in range(20):
            training = [torch.empty(1 << (14 + (step + i) % 8), device="cuda") for i in range(16)]
            ops.rank_counts(*args, "rotate", dims=[128, 256, 512])
            del training
            torch.cuda.synchronize()
            sizes.append(torch.cuda.memory_reserved())
        snapshot = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    assert sizes[-1] == sizes[2]
    asked = [
        event["size"]
        for trace in snapshot["device_traces"]
        for event in trace
        if event["action"] == "alloc"
    ]
    assert max(asked) <= 64 << 20


def test_a_stream_of_its_own():
    args = problem_on_gpu(rows=5_000, batch=64, width=128)
    expected = torch.stack(ops.rank_counts(*args, "rotate"))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        counted = torch.stack(ops.rank_counts(*args, "rotate"))
    stream.synchronize()
    assert torch.equal(counted, expected)


@pytest.mark.parametrize("dims", [None, [16, 64]])
def test_the_operator_waits_once(dims):
    args = problem_on_gpu(rows=5_000, batch=64, width=128)
    options = {
        "bias": torch.randn(5_000, device="cuda"),
        "candidate_ids": torch.arange(100, 4_000, device="cuda"),
        "dims": dims,
    }
    ops.rank_counts(*args, "rotate", **options)  # compiles
    assert count_waits(lambda: ops.rank_counts(*args, "rotate", **options)) == 1


@pytest.mark.parametrize("known_on", [None, "cpu", "cuda"])
@pytest.mark.parametrize("has_subset", [False, True])
def test_rank_waits_once_a_batch(known_on, has_subset):
    triples = torch.randint(50, (4_000, 3), generator=torch.Generator().manual_seed(0))
    known = None if known_on is None else kgfast.KnownTriples(triples).to(known_on)
    model = kgfast.TransE(torch.randn(50, 8, device="cuda"), torch.randn(50, 8, device="cuda"))
    subset = torch.arange(30) if has_subset else None

    def waits(batch_size: int) -> int:
        return count_waits(
            lambda: kgfast.rank(
                model, triples, known=known, candidate_ids=subset, batch_size=batch_size
            )
        )

    waits(500)  # compiles
    assert waits(250) - waits(500) == 2 * (16 - 8)  # both sides


def test_bands_that_overflow_between_streams():
    """Identical rows: every pair is open. Another stream allocates and writes meanwhile."""
    queries, table, targets, *known = problem_on_gpu(rows=20_000, batch=300, width=32)
    table[:] = table[0]
    noise = torch.cuda.Stream()
    own = torch.cuda.Stream()
    own.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(own):
        counted = ops.rank_counts(queries, table, targets, *known, "rotate", dims=[16, 3])
    with torch.cuda.stream(noise):
        for _ in range(50):
            torch.full((4 << 20,), -1, device="cuda")
    torch.cuda.synchronize()
    assert not counted[0].any()
    assert torch.equal(counted[1], torch.full_like(counted[1], 19_999))


def test_a_table_of_more_than_2_to_the_31_elements():
    stride = (1 << 30) + 8
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GiB")
    table = torch.empty(4 * stride + 64, dtype=torch.float16, device="cuda").as_strided(
        (5, 32), (stride, 1)
    )
    table.copy_(torch.randn(5, 32).half())
    queries, targets = torch.randn(3, 32, device="cuda"), torch.tensor([4, 0, 2], device="cuda")
    known = torch.tensor([0, 1, 2, 2], device="cuda"), torch.tensor([3, 4], device="cuda")
    for score in SCORES:
        counted = ops.rank_counts(queries, table, targets, *known, score)
        args = moved((queries, table.contiguous(), targets, *known), "cpu")
        for a, b in zip(reference.rank_counts(*args, score), counted, strict=True):
            assert torch.equal(a, b.cpu())


def test_the_tensors_device_is_used():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    args = moved(problem_on_gpu(rows=2_000, batch=16, width=64), "cuda:1")
    counted = ops.rank_counts(*args, "rotate")
    assert counted[0].device == torch.device("cuda:1")
    expected = ops.rank_counts(*moved(args, "cpu"), "rotate")
    assert torch.equal(counted[0].cpu(), expected[0])


def test_two_runs_are_equal():
    args = problem_on_gpu(rows=9_000, batch=64, width=256)
    first, second = (torch.stack(ops.rank_counts(*args, "rotate")) for _ in range(2))
    assert torch.equal(first, second)


def test_numbers_that_are_not_finite_are_named():
    queries, table, targets, *known = problem_on_gpu(rows=300, batch=4, width=16)
    table[123, 5] = float("nan")
    with pytest.raises(ValueError, match="candidates: row 123 holds a NaN"):
        ops.rank_counts(queries, table, targets, *known, "rotate")
    table[123, 5] = 0
    queries[2, 1] = float("inf")
    with pytest.raises(ValueError, match="queries: row 2 holds a NaN"):
        ops.rank_counts(queries, table, targets, *known, "rotate")


def test_tensors_on_two_devices():
    queries, table, targets, *known = problem_on_gpu(rows=300, batch=4, width=16)
    with pytest.raises(ValueError, match="queries must be on cuda:0"):
        ops.rank_counts(queries.cpu(), table, targets, *known, "rotate")
    with ops.use_backend("cpu"), pytest.raises(ValueError, match="cannot serve tensors on cuda"):
        ops.rank_counts(queries, table, targets, *known, "rotate")


def test_ids_out_of_range_are_an_error_not_an_assert():
    queries, table, targets, *known = problem_on_gpu(rows=300, batch=4, width=16)
    targets[3] = 300
    with pytest.raises(ValueError, match=r"targets\[3\] must be in 0 .. 299; got 300"):
        ops.rank_counts(queries, table, targets, *known, "rotate")
    torch.cuda.synchronize()  # the device is still well
