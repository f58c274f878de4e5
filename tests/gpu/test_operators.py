"""Operators at the sizes of a GPU: the CPU's integers and gradients, memory, waits and streams.

Random and hard problems: ``tests/kernels/test_ranks.py`` and its neighbours, with their engine
``triton``.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kgfast import ops
from kgfast.kernels import cpu
from kgfast.kernels.scores import get_score
from support.engines import assert_same, host
from support.problems import DTYPES, RSCF_SCORES, SCORES, no_known
from support.waits import count_waits


def most() -> int:
    """Return the most bytes of scratch: 64 MiB, or a 256th of the GPU's memory."""
    return max(64 << 20, torch.cuda.get_device_properties("cuda").total_memory // 256)


def moved(value: Any, device: str) -> Any:
    if isinstance(value, dict):
        return {name: moved(it, device) for name, it in value.items()}
    if isinstance(value, list | tuple):
        return [moved(it, device) for it in value]
    return value.to(device) if isinstance(value, Tensor) else value


def problem(score, rows, batch, dim, dtype=torch.float32, reach=3.0):
    """Return Queries, a table, and a factor where the score takes one."""
    generator, facts = torch.Generator().manual_seed(0), get_score(score)

    def normal(count, width):
        return torch.randn(count, width, generator=generator)

    table = normal(rows, dim * facts.planes).to(dtype)
    queries = normal(batch, dim * facts.planes).to(torch.promote_types(dtype, torch.float32))
    if not facts.is_rscf:
        return queries, table, {}
    move = reach * (2 * torch.rand(batch, dim, generator=generator) - 1)
    scale = 1 + 0.1 * normal(batch, dim * facts.planes)
    factor = {"factor": 1 + 0.2 * normal(rows, dim)}
    return torch.cat([queries, scale, move], 1), table, factor


def csr(batch: int, rows: int) -> tuple[Tensor, Tensor]:
    """Three ids of each query."""
    generator = torch.Generator().manual_seed(1)
    return 3 * torch.arange(batch + 1), torch.randint(rows, (3 * batch,), generator=generator)


CALLS: dict[str, Callable[..., Any]] = {
    "rank_counts": lambda q, c, known, score, **o: ops.rank_counts(
        q, c, torch.arange(len(q), device=q.device) % len(c), *known, score, **o
    ),
    "topk": lambda q, c, known, score, **o: ops.topk(q, c, 10, *known, score, pad=True, **o),
    "bce": lambda q, c, known, score: ops.bce(q, c, None, *known, 0.9, 1e-5, score),
    "bce_total": lambda q, c, known, score: ops.bce(
        q, c, None, *known, 0.9, 1e-5, score, divisor=1.0
    ),
    "cross_entropy": lambda q, c, known, score: ops.cross_entropy(
        q, c, None, known[1][: len(q)], 0.1, score
    ),
    "cross_entropy_total": lambda q, c, known, score: ops.cross_entropy(
        q, c, None, known[1][: len(q)], 0.1, score, divisor=1.0
    ),
    "pairwise_scores": lambda q, c, known, score, **o: ops.pairwise_scores(q, c, score, **o),
    "indexed_scores": lambda q, c, known, score, **o: ops.indexed_scores(
        q, c, known[1].view(len(q), 3).repeat(1, 200), score, **o
    ),
}
SWEEPS = ("rank_counts", "topk")
LOSSES = ("bce", "bce_total", "cross_entropy", "cross_entropy_total")
GRADED = (*LOSSES, "pairwise_scores", "indexed_scores")


def results_of(name, queries, table, known, score, **options) -> list[Tensor]:
    """Results, and gradients of a fixed weighting of them where there are."""
    if name in SWEEPS:
        return list(CALLS[name](queries, table, known, score, **options))
    leaves = [it.detach().requires_grad_() for it in (queries, table, *options.values())]
    own = dict(zip(options, leaves[2:], strict=True))
    result = CALLS[name](*leaves[:2], known, score, **own)
    weights = torch.linspace(-1, 2, result.numel(), device=result.device).view(result.shape)
    return [result.detach(), *torch.autograd.grad(result, leaves, weights.to(result.dtype))]


def close(found: Tensor, exact: Tensor, rel: float) -> None:
    """Within ``rel`` of the largest number of a row, or the rounding of its dtype."""
    rel = max(rel, {torch.bfloat16: 4e-3, torch.float16: 6e-4}.get(found.dtype, 0.0))
    scale = exact.abs().amax(-1, keepdim=True)
    error = (found.double() - exact).abs()
    assert bool((error <= rel * scale + 1e-12).all()), float((error / (scale + 1e-12)).max())


def sizes(device: str) -> tuple[int, int]:
    """Candidates, which no tile divides, and features."""
    return (14_541, 48) if device == "cuda" else (1_501, 12)


@pytest.mark.parametrize("name", SWEEPS)
@pytest.mark.parametrize("score", [*SCORES, *RSCF_SCORES])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_integers_of_a_large_table(device, name, score, dtype):
    """Sweep packed and in place, with more survivors than a band holds, and near and far angles."""
    rows, dim = sizes(device)
    for batch, reach in ((1, 3.0), (16, 300.0), (17, 3.0), (64, 300.0)):
        queries, table, factor = problem(score, rows, batch, dim, dtype, reach)
        args = queries, table, csr(batch, rows), score
        with ops.use_backend("cpu" if cpu.is_available() and device == "cuda" else "reference"):
            expected = results_of(name, *args, **factor)
        found = results_of(name, *moved(args, device), **moved(factor, device))
        assert found[0].device.type == device
        assert_same(host(found), expected, zeros_have_signs=False)


def error_of(name: str, score: str) -> float:
    """Return the allowed error: a score of -90 errs by 5e-5, its exponential by as much of itself.

    Sines of a GPU's gradients err by 8 units of float32, which turns the short differences.
    """
    return 1e-4 if name in LOSSES or score == "rscf_rotate" else 2e-5


@pytest.mark.parametrize("name", GRADED)
@pytest.mark.parametrize("score", [*SCORES, *RSCF_SCORES])
def test_values_and_gradients_of_a_large_table(device, name, score):
    if name in LOSSES and score in RSCF_SCORES:
        pytest.skip("losses over all candidates take no factor")
    rows, dim = sizes(device)
    for dtype in (torch.float32, torch.bfloat16):
        queries, table, factor = problem(score, rows // 10, 40, dim, dtype)
        args = queries, table, csr(40, len(table)), score
        given = moved(args, device), moved(factor, device)
        found, again = (results_of(name, *given[0], **given[1]) for _ in range(2))
        assert_same(found, again)
        exact = queries.double(), table.double(), *args[2:]
        expected = results_of(name, *exact, **{k: v.double() for k, v in factor.items()})
        for a, b in zip(host(found), expected, strict=True):
            close(a, b, error_of(name, score))


@pytest.mark.parametrize("name", [*SWEEPS, "bce", "pairwise_scores"])
def test_compiled(device, name):
    queries, table, _ = problem("rotate", 700, 32, 20)
    known = moved(csr(32, 700), device)

    def call(q, c):
        result = CALLS[name](q * 1.5, c, known, "rotate")
        return result[1] if name in SWEEPS else result

    given = moved((queries, table), device)
    how = {} if device == "cuda" else {"backend": "aot_eager"}
    found, expected = torch.compile(call, fullgraph=True, **how)(*given), call(*given)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_in_float32(device, dtype):
    args = moved((*problem("rotate", 700, 32, 20)[:2], csr(32, 700)), device)
    for name in ("pairwise_scores", "bce"):
        expected = results_of(name, *args, "rotate")
        with torch.autocast(device, dtype):
            assert_same(results_of(name, *args, "rotate"), expected)


# Checks that only a GPU can make.


@pytest.mark.usefixtures("cuda")
@pytest.mark.skipif(torch.version.hip is not None, reason="tensor cores of NVIDIA")
@pytest.mark.parametrize("batch", [64, 300])
@pytest.mark.parametrize("steps", [1, 3, 20])
def test_tensor_cores_cut_off_no_more_than_the_bound_assumes(batch, steps):
    """Beside a product of 1 all others are cut, as far as the bound has room for it, or wholly."""
    from kgfast.kernels.triton.host import configs
    from kgfast.kernels.triton.host.launch import architecture
    from kgfast.kernels.triton.host.split import hard_rows

    swept_products = pytest.importorskip("support.triton_split").swept_products
    tile = configs.split_tile(batch, architecture(torch.device("cuda")))
    for bits in range(20, 32):
        query, candidate = hard_rows(steps, bits)
        sign = 1 - 2 * (torch.arange(batch * 32 * steps) % 7 % 2).view(batch, -1)
        queries, table = query * sign, candidate.repeat(500, 1)
        with torch.cuda.device("cuda"):
            swept, allowed = swept_products(queries.cuda(), table.cuda(), tile)
        exact = -(queries.double() @ table.double().T)
        assert bool(((swept.double().cpu() - exact).abs() <= allowed.cpu()).all()), bits
        targets, known = torch.arange(batch) % 500, no_known(batch)
        given = queries, table * torch.linspace(0.9, 1.1, 500)[:, None], targets, *known
        found = ops.rank_counts(*moved(given, "cuda"), "dot")
        with ops.use_backend("cpu"):
            assert_same(host(found), ops.rank_counts(*given, "dot"))


def on_gpu(score="rotate", rows=20_000, batch=128, dim=64):
    queries, table, factor = problem(score, rows, batch, dim)
    return moved((queries, table, csr(batch, rows), score), "cuda"), moved(factor, "cuda")


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("name", CALLS)
def test_a_stream_of_its_own(name):
    args, _ = on_gpu(rows=5_000)
    expected = results_of(name, *args)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        found = results_of(name, *args)
    stream.synchronize()
    assert_same(found, expected)


def peak_of(run: Callable[[], Any]) -> int:
    """Bytes allocated at the peak of ``run`` beyond what stands before and after it."""
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = run()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    return peak - sum(it.numel() * it.element_size() for it in kept)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("name", [*SWEEPS, "bce", "cross_entropy", "pairwise_scores"])
@pytest.mark.parametrize("score", [*SCORES, "rscf_rotate"])
@pytest.mark.parametrize("batch", [1, 512, 4096])
def test_memory_beyond_inputs_and_results(name, score, batch):
    if name in LOSSES and score in RSCF_SCORES:
        pytest.skip("losses over all candidates take no factor")
    rows, pairs = (512, 2 * batch * 512 * 4) if name == "pairwise_scores" else (40_943, 0)
    args, options = on_gpu(score, rows, batch, 200)
    crops = {"dims": [50, 100, 200]} if name in SWEEPS else {}
    for own in (options, options | crops):
        assert peak_of(lambda: results_of(name, *args, **own)) <= most() + pairs  # noqa: B023


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("batch", [1, 512, 5000])
def test_memory_of_sparse_gradients(batch):
    queries, table, *_ = on_gpu(rows=40_943, batch=batch, dim=200)[0]
    index = torch.randint(len(table), (batch, 64), device="cuda")

    def run():
        leaves = queries.requires_grad_(), table.requires_grad_()
        scores = ops.indexed_scores(*leaves, index, "rotate", sparse=True)
        made = torch.autograd.grad(scores.sum(), leaves)
        return [made[0], made[1].coalesce().values()]

    rows = index.unique().numel() * table.shape[1] * table.element_size()
    assert peak_of(run) <= most() + 200 * index.numel() + rows  # coalesce copies the rows


@pytest.mark.usefixtures("cuda")
def test_evaluations_between_training_steps_leave_the_reserve_flat():
    """20 evaluations at 128, 256 and 512 dims among allocations like those of training."""
    args, _ = on_gpu(dim=512)
    sizes = []
    torch.cuda.memory._record_memory_history(max_entries=100_000)
    try:
        for step in range(20):
            training = [torch.empty(1 << (14 + (step + i) % 8), device="cuda") for i in range(16)]
            CALLS["rank_counts"](*args, dims=[128, 256, 512])
            del training
            torch.cuda.synchronize()
            sizes.append(torch.cuda.memory_reserved())
        snapshot = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    assert sizes[-1] == sizes[2]
    events = [event for trace in snapshot["device_traces"] for event in trace]
    assert max(event["size"] for event in events if event["action"] == "alloc") <= most()


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("name", [*SWEEPS, *LOSSES])
@pytest.mark.parametrize("batch", [1, 300, 3000])
def test_an_operator_waits_once(name, batch):
    """However many chunks and passes there are; with a bias, a subset and crops too."""
    args, _ = on_gpu(rows=200_000 if batch < 3000 else 40_943, batch=batch)
    ways = [{}]
    if name == "rank_counts":
        ids = torch.arange(100, 4_000, device="cuda")
        ways.append({"bias": torch.randn(len(args[1]), device="cuda"), "candidate_ids": ids})
        ways += [ways[-1] | {"dims": [16, 64]}]
    for options in ways:
        call = lambda: CALLS[name](*args, **options)  # noqa: B023, E731
        call()  # compiles
        assert count_waits(call) == 1


@pytest.mark.usefixtures("cuda")
def test_bands_that_overflow_between_streams():
    """Identical rows: every pair is open. Another stream allocates and writes meanwhile."""
    (queries, table, *_), _ = on_gpu(batch=300, dim=16)
    table[:] = table[0]
    targets, known = torch.arange(300, device="cuda"), moved(no_known(300), "cuda")
    noise, own = torch.cuda.Stream(), torch.cuda.Stream()
    own.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(own):
        counted = ops.rank_counts(queries, table, targets, *known, "rotate", dims=[3, 16])
    with torch.cuda.stream(noise):
        for _ in range(50):
            torch.full((4 << 20,), -1, device="cuda")
    torch.cuda.synchronize()
    assert not counted[0].any()
    assert torch.equal(counted[1], torch.full_like(counted[1], len(table) - 1))


@pytest.mark.usefixtures("cuda")
def test_offsets_are_64_bits_wide():
    """A table of more than 2^31 elements, of rows that lie far from each other.

    The stride is a multiple of 16, like that of the copy: the compiler then makes the same code.
    """
    stride = (1 << 30) + 16
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GiB of free memory")
    storage = torch.empty(4 * stride + 64, dtype=torch.float16, device="cuda")
    table = storage.as_strided((5, 32), (stride, 1))
    table.copy_(torch.randn(5, 32).half())
    queries, known = torch.randn(3, 32, device="cuda"), moved(csr(3, 5), "cuda")
    for score in SCORES:
        for name in ("rank_counts", "pairwise_scores", "indexed_scores"):
            far, near = (
                results_of(name, queries, it, known, score) for it in (table, table.clone())
            )
            assert_same(far, near)


@pytest.mark.usefixtures("cuda")
def test_the_tensors_device_is_used():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    args = moved(on_gpu(rows=2_000, batch=16)[0], "cuda:1")
    counted = CALLS["rank_counts"](*args)
    assert counted[0].device == torch.device("cuda:1")
    assert_same(host(counted), CALLS["rank_counts"](*moved(args, "cpu")))


@pytest.mark.usefixtures("cuda")
def test_what_is_wrong_is_an_error_that_leaves_the_device_well():
    (queries, table, *_), _ = on_gpu(rows=300, batch=4, dim=8)
    targets, known = torch.arange(4, device="cuda"), moved(no_known(4), "cuda")
    with pytest.raises(ValueError, match="queries must be on cuda:0"):
        ops.rank_counts(queries.cpu(), table, targets, *known, "rotate")
    with ops.use_backend("cpu"), pytest.raises(ValueError, match="cannot serve tensors on cuda"):
        ops.rank_counts(queries, table, targets, *known, "rotate")
    targets[3] = 300
    with pytest.raises(ValueError, match=r"targets\[3\] must be in 0 .. 299; got 300"):
        ops.rank_counts(queries, table, targets, *known, "rotate")
    torch.cuda.synchronize()
