"""Scores, gradients and losses on a real GPU: the reference's numbers, bounded memory, streams."""

import pytest
import torch

from kgfast import ops
from kgfast.kernels.scores import get_score
from support.problems import DTYPES, SCORES
from support.waits import count_waits

SHAPES = [(1, 5, 3), (64, 999, 100), (300, 1500, 65)]


def make(score, batch, rows, dim, dtype=torch.float32, device="cuda"):
    generator = torch.Generator().manual_seed(0)
    width = dim * get_score(score).planes
    table = torch.randn(rows, width, generator=generator).to(dtype)
    queries = torch.randn(batch, width, generator=generator)
    queries[0] = table[-1].float()
    return queries.to(device).requires_grad_(), table.to(device).requires_grad_()


def positives(batch, rows):
    indptr = torch.arange(batch + 1, device="cuda") * 3
    generator = torch.Generator().manual_seed(1)
    return indptr, torch.randint(rows, (3 * batch,), generator=generator).cuda()


def gradients(run, *leaves):
    """The result of ``run`` and gradients of a fixed weighting of it."""
    result = run()
    weights = torch.linspace(-1, 2, result.numel(), device=result.device).view(result.shape)
    return [result.detach(), *torch.autograd.grad(result, leaves, weights.to(result.dtype))]


def close(found, expected, rel=2e-5):
    """Within ``rel`` of the largest number of a row, or the rounding of its dtype."""
    rel = max(rel, {torch.bfloat16: 4e-3, torch.float16: 6e-4}.get(found.dtype, 0.0))
    expected = expected.double()
    scale = expected.abs().amax(-1, keepdim=True)
    error = (found.cpu().double() - expected).abs()
    assert bool((error <= rel * scale + 1e-12).all()), float((error / (scale + 1e-12)).max())


def exact(values):
    return values.detach().cpu().double().requires_grad_()


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_pairwise(score, dtype, shape):
    queries, table = make(score, *shape, dtype)
    for dims in (None, [shape[2], 1, shape[2]]):
        bias = torch.randn(shape[1], device="cuda", requires_grad=True)
        run = lambda: ops.pairwise_scores(queries, table, score, bias=bias, dims=dims)  # noqa: B023, E731
        found = gradients(run, queries, table, bias)
        again = gradients(run, queries, table, bias)
        assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
        leaves = [exact(it) for it in (queries, table, bias)]
        expected = gradients(
            lambda: ops.pairwise_scores(leaves[0], leaves[1], score, bias=leaves[2], dims=dims),  # noqa: B023
            *leaves,
        )
        for a, b in zip(found, expected, strict=True):
            close(a, b)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("sparse", [False, True])
def test_indexed(score, sparse):
    queries, table = make(score, 40, 500, 70)
    index = torch.randint(500, (40, 700), generator=torch.Generator().manual_seed(2))
    index[:, :300] = 7  # a hot id
    on_gpu = index.cuda()
    run = lambda: ops.indexed_scores(queries, table, on_gpu, score, sparse=sparse)  # noqa: E731
    found = [it.to_dense() for it in gradients(run, queries, table)]
    again = [it.to_dense() for it in gradients(run, queries, table)]
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    leaves = [exact(it) for it in (queries, table)]
    expected = gradients(lambda: ops.indexed_scores(*leaves, index, score), *leaves)
    for a, b in zip(found, expected, strict=True):
        close(a, b)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("loss", ["bce", "bce_total", "cross_entropy", "cross_entropy_total"])
def test_losses(score, loss):
    queries, table = make(score, 100, 14_541, 50)
    bias = torch.randn(len(table), device="cuda", requires_grad=True)
    indptr, indices = positives(100, len(table))

    def run(q, c, b, device="cuda"):
        if loss.startswith("bce"):
            index = indptr.to(device), indices.to(device)
            return getattr(ops, loss)(q, c, b, *index, 0.9, 1e-5, score)
        return getattr(ops, loss)(q, c, b, indices[:100].to(device), 0.1, score)

    found = gradients(lambda: run(queries, table, bias), queries, table, bias)
    again = gradients(lambda: run(queries, table, bias), queries, table, bias)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    leaves = [exact(it) for it in (queries, table, bias)]
    for a, b in zip(found, gradients(lambda: run(*leaves, "cpu"), *leaves), strict=True):
        close(a, b, 1e-4)  # a score of -90 errs by 5e-5, and its exponential by as much of itself


@pytest.mark.parametrize("loss", ["bce", "bce_total", "cross_entropy", "cross_entropy_total"])
@pytest.mark.parametrize("masked", [0, 2_500])
def test_a_mask_costs_no_wait(loss, masked):
    queries, table = make("rotate", 100, 5_000, 20)
    bias = torch.zeros(len(table), device="cuda")
    bias[:masked] = -torch.inf
    targets = 2_500 + torch.arange(100, device="cuda")
    labels = (targets, 0.0)
    if loss.startswith("bce"):
        labels = (torch.arange(101, device="cuda"), targets, 1.0, 0.0)
    run = lambda: getattr(ops, loss)(queries, table, bias, *labels, "rotate")  # noqa: E731
    run()  # compiles
    assert count_waits(run) == 1


def peak_of(run):
    """Bytes allocated at the peak of ``run`` beyond what stands before and after it."""
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = run()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    kept_bytes = sum(it.numel() * it.element_size() for it in kept)
    return peak - kept_bytes


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("batch", [1, 512, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_workspace_is_bounded(score, batch, dtype):
    queries, table = make(score, batch, 40_943, 200, dtype)
    indptr, indices = positives(batch, len(table))
    index = torch.randint(len(table), (batch, 64), device="cuda")
    shared = table.detach()[:512].requires_grad_()
    runs = {
        "bce": lambda: ops.bce(queries, table, None, indptr, indices, 0.9, 0.0, score),
        "cross_entropy": lambda: ops.cross_entropy(
            queries, table, None, indices[:batch], 0.1, score
        ),
    }
    for name, run in runs.items():
        assert peak_of(lambda: gradients(run, queries, table)) <= 64 << 20, name  # noqa: B023
    pairwise = peak_of(
        lambda: gradients(lambda: ops.pairwise_scores(queries, shared, score), queries, shared)
    )
    pairs = batch * 512 * 4  # the weights that the test makes
    assert pairwise <= (64 << 20) + 2 * pairs
    sparse = peak_of(
        lambda: [
            it.coalesce().values() if it.is_sparse else it
            for it in gradients(
                lambda: ops.indexed_scores(queries, table, index, score, sparse=True),
                queries,
                table,
            )
        ]
    )
    rows = index.unique().numel() * table.shape[1] * table.element_size()
    assert sparse <= (64 << 20) + 200 * index.numel() + rows  # coalesce copies the rows


def test_a_stream_of_its_own():
    queries, table = make("rotate", 128, 5000, 64)
    indptr, indices = positives(128, 5000)
    run = lambda: ops.bce(queries, table, None, indptr, indices, 1.0, 0.0, "rotate")  # noqa: E731
    expected = gradients(run, queries, table)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        found = gradients(run, queries, table)
    stream.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("score", ["dot", "rotate"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_in_float32(score, dtype):
    queries, table = make(score, 32, 700, 40)
    expected = gradients(lambda: ops.pairwise_scores(queries, table, score), queries, table)
    with torch.autocast("cuda", dtype):
        found = gradients(lambda: ops.pairwise_scores(queries, table, score), queries, table)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("score", ["dot", "l2", "rotate"])
def test_compiled(score):
    queries, table = make(score, 32, 700, 40)
    indptr, indices = positives(32, 700)

    def step(q, c):
        scores = ops.pairwise_scores(q * 2, c, score).sum(1)
        return scores + ops.bce(q, c, None, indptr, indices, 1.0, 0.0, score)

    expected = gradients(lambda: step(queries, table), queries, table)
    compiled = torch.compile(step, fullgraph=True)
    for a, b in zip(gradients(lambda: compiled(queries, table), queries, table), expected,
                    strict=True):  # fmt: skip
        close(a, b.cpu())


def test_tensors_beyond_two_billion_elements():
    """Offsets are 64 bits wide: a view whose rows lie 2**22 elements apart."""
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GiB of free memory")
    storage = torch.zeros(2**31 + 2**23, device="cuda")
    table = torch.as_strided(storage, (513, 8), (2**22, 1))
    table.copy_(torch.randn(513, 8, generator=torch.Generator().manual_seed(0)))
    queries = torch.randn(3, 8, device="cuda", requires_grad=True)
    leaf = table.detach().requires_grad_()
    found = gradients(lambda: ops.pairwise_scores(queries, leaf, "rotate"), queries, leaf)
    compact = table.clone().requires_grad_()
    expected = gradients(lambda: ops.pairwise_scores(queries, compact, "rotate"), queries, compact)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    index = torch.tensor([[512, 511, 0]] * 3, device="cuda")
    scores = ops.indexed_scores(queries, leaf, index, "rotate").detach()
    close(scores, expected[0][:, [512, 511, 0]].cpu())
