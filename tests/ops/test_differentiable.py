"""Differentiable operators: values, gradients, and their contract with torch."""

import pytest
import torch
from torch.autograd import forward_ad

from kgfast import ops
from kgfast.kernels import cpu
from kgfast.kernels.labels import Bce, CrossEntropy
from kgfast.ops import run, scores
from kgfast.ops.dispatch import get_backend
from kgfast.ops.run import operands_of
from support import oracles
from support.memory import PeakMemory
from support.operators import (
    INDEX,
    LABELS,
    LOSSES,
    NAMES,
    SCORED,
    TARGETS,
    TOTALS,
    B,
    N,
    csr,
    dense,
    doubles,
    gradients,
    opcheck,
    operands,
    served,
)
from support.problems import DTYPES, RSCF_SCORES, SCORES, cast, strided

EACH = pytest.mark.parametrize("name", NAMES)
EACH_SCORED = pytest.mark.parametrize("name", SCORED)
EACH_LOSS = pytest.mark.parametrize("name", LOSSES)
CROPS = pytest.mark.parametrize("dims", [None, [3, 8, 17]], ids=["full", "crops"])
CASES = [
    *((name, score, dims) for name in SCORED for score in (*SCORES, *RSCF_SCORES)
      for dims in (None, [3, 8, 17])),
    *((name, score, None) for name in (*LOSSES, *TOTALS) for score in (*SCORES, *RSCF_SCORES)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "score", "dims"), CASES, ids=str)
@pytest.mark.usefixtures("backend")
def test_values_and_gradients_are_those_of_float64(name, score, dims):
    whole = operands(name, score)
    without_bias = [] if len(whole) == 4 else [whole[:2]]
    for tensors in (whole, *without_bias):
        exact, twin = doubles(tensors), [it.detach().requires_grad_() for it in tensors]
        results = [
            make(name, them, score, dims)
            for make, them in ((served, tensors), (dense, exact), (dense, twin))
        ]
        assert results[0].dtype == torch.float32
        oracles.assert_accurate(*(it.detach() for it in results))
        made = map(gradients, results, (tensors, exact, twin))
        for got, expected, float32 in zip(*made, strict=True):
            assert got.dtype == torch.float32
            oracles.assert_accurate(got, expected, float32)


@EACH
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.usefixtures("backend")
def test_tables_of_any_dtype_and_stride(name, dtype):
    for score in ("dot", "rotate"):
        for layout in ("plain", "rows", "columns"):
            queries, table, bias = (it.detach() for it in operands(name, score))
            table = strided(cast(table.double(), dtype), layout).requires_grad_()
            queries = strided(queries, "columns").requires_grad_()
            given = [queries, table, bias.requires_grad_()]
            exact = doubles(given)
            result, expected = served(name, given, score), dense(name, exact, score)
            oracles.assert_accurate(result.detach(), expected.detach())
            made = gradients(result, given), gradients(expected, exact)
            for tensor, gradient, right in zip(given, *made, strict=True):
                assert gradient.dtype == tensor.dtype
                allowed = max(torch.finfo(dtype).eps, 1e-5) * right.abs().max()
                assert (gradient.double() - right).abs().max() <= allowed


@EACH
@pytest.mark.usefixtures("backend")
def test_a_bias_for_all_gets_the_sum(name):
    queries, table, _ = operands(name)
    one = torch.tensor([2.5], requires_grad=True)
    many = one.detach().expand(N).clone().requires_grad_()
    results = [served(name, (queries, table, it)) for it in (one, many)]
    assert torch.equal(*results)
    total, each = (gradients(*it)[0] for it in zip(results, (one, many), strict=True))
    assert total.shape == (1,)
    torch.testing.assert_close(total, each.sum(0, keepdim=True), rtol=1e-5, atol=1e-6)


@EACH
@pytest.mark.usefixtures("backend")
def test_an_empty_batch(name):
    tensors = operands(name)
    tensors[0] = tensors[0].detach()[:0].requires_grad_()
    result = served(name, tensors)
    assert result.shape == (() if name in TOTALS else (0, *dense(name, operands(name)).shape[1:]))
    assert not result.any()
    for gradient, tensor in zip(gradients(result, tensors), tensors, strict=True):
        assert torch.equal(gradient, torch.zeros_like(tensor))


@EACH
@pytest.mark.parametrize("score", [*SCORES, *RSCF_SCORES])
@pytest.mark.usefixtures("backend")
def test_float64_queries_are_served_in_float64_whatever_the_backend(name, score):
    tensors, exact = doubles(operands(name, score)), doubles(operands(name, score))
    result, expected = served(name, tensors, score), dense(name, exact, score)
    torch.testing.assert_close(result, expected, rtol=1e-13, atol=0)
    torch.testing.assert_close(gradients(result, tensors), gradients(expected, exact))


@EACH
def test_the_backward_runs_on_the_backend_of_its_forward(name, monkeypatch):
    asked = []

    def record(name):
        asked.append(name)
        return get_backend("reference")

    for module in (run, scores):
        monkeypatch.setattr(module, "get_backend", record)
    tensors = operands(name)
    with ops.use_backend("cpu"):
        result = served(name, tensors)
    with ops.use_backend("reference"):
        result.sum().backward()
    assert set(asked) == {"cpu"}


@EACH
@pytest.mark.usefixtures("backend")
def test_there_is_no_second_derivative(name):
    tensors = operands(name)

    def twice():
        first = torch.autograd.grad(served(name, tensors).sum(), tensors[:2], create_graph=True)
        sum(it.sum() for it in first).backward()

    with pytest.raises(RuntimeError, match="differentiated once"):
        twice()


@EACH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.usefixtures("backend")
def test_autocast_computes_in_float32(name, dtype):
    queries, table, bias = operands(name, "dot")
    half = queries.detach().to(dtype).requires_grad_()
    expected = served(name, (half.float(), table, bias), "dot")
    with torch.autocast("cpu", dtype=dtype):
        result = served(name, (half, table, bias), "dot")
        found = torch.autograd.grad(result.sum(), (half, table))
    assert result.dtype == torch.float32
    assert torch.equal(result, expected)
    assert [it.dtype for it in found] == [dtype, torch.float32]
    assert torch.equal(found[1], torch.autograd.grad(expected.sum(), table)[0])


@pytest.mark.parametrize("names", [SCORED, LOSSES, TOTALS], ids=str)
@pytest.mark.usefixtures("backend")
def test_torch_compile_full_graph(names):
    tensors = operands("bce")

    def loss(queries, table, bias):
        first, second = names
        doubled = served(first, (queries * 2, table, bias)).sum()
        return doubled + served(second, (queries, table, bias), "l1").square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    results = [it(*tensors) for it in (loss, compiled)]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(it, tensors) for it in results))


@pytest.mark.parametrize("score", [*SCORES, *RSCF_SCORES])
@pytest.mark.usefixtures("backend")
def test_a_sparse_gradient_holds_the_rows_of_the_index(score):
    tensors = operands("indexed_scores", score)
    grads = []
    for sparse in (False, True):
        scores = served("indexed_scores", tensors, score, sparse=sparse)
        grads.append(torch.autograd.grad(scores.square().sum(), tensors))
    assert grads[1][1].is_coalesced()
    assert grads[1][1].indices().tolist() == [INDEX.unique().tolist()]
    for one, other in zip(*grads, strict=True):
        assert torch.equal(one, other.to_dense())
    served("indexed_scores", tensors, score, sparse=True).sum().backward()
    optimizer = torch.optim.SparseAdam([tensors[1]])
    before = tensors[1].detach().clone()
    optimizer.step()
    moved = (tensors[1] != before).any(1).nonzero()[:, 0]
    assert set(moved.tolist()) <= set(INDEX.unique().tolist())


@EACH
@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacfwd, torch.func.hessian])
def test_forward_mode_and_transforms_are_refused(name, transform):
    queries, *others = (tensor.detach() for tensor in operands(name))
    with pytest.raises((RuntimeError, NotImplementedError), match=r"forward-mode|functorch"):
        transform(lambda queries: served(name, [queries, *others]).sum())(queries)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward-mode"):
        served(name, [forward_ad.make_dual(queries, torch.ones_like(queries)), *others])


def test_a_sparse_gradient_is_eager_only():
    tensors = operands("indexed_scores", "l1")

    def scores():
        return served("indexed_scores", tensors, "l1", sparse=True)

    with pytest.raises(RuntimeError, match="eager only"):
        torch.compile(scores, backend="aot_eager", fullgraph=True)()
    assert torch.equal(torch.compile(scores, backend="aot_eager")(), scores())  # a graph break


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("width", [0, 3])
@pytest.mark.parametrize("dims", [None, [1, 2]])
def test_an_index_of_nothing(width, dims):
    """Neither of no queries nor of no columns has scores, and its gradients are zeros."""
    batch = 0 if width else 3
    tensors = operands("indexed_scores", rows=6, dim=2)
    tensors[0] = tensors[0].detach()[:batch].requires_grad_()
    index = torch.empty(batch, width, dtype=torch.int64)
    for sparse in (False, True):
        options = {"bias": tensors[2], "dims": dims, "sparse": sparse}
        scores = ops.indexed_scores(*tensors[:2], index, "rotate", **options)
        assert scores.shape == (*(() if dims is None else (2,)), batch, width)
        for gradient, tensor in zip(gradients(scores, tensors), tensors, strict=True):
            assert torch.equal(gradient.to_dense(), torch.zeros_like(tensor))


@EACH_LOSS
@pytest.mark.usefixtures("backend")
def test_an_overflow_of_finite_numbers_is_a_loss_that_is_not_finite(name):
    queries, table, bias = (it.detach() for it in operands(name, "dot"))
    assert not served(name, [queries * 1e30, table * 1e30, bias], "dot").isfinite().all()


@CROPS
@pytest.mark.parametrize("has_bias", [False, True], ids=["no bias", "bias"])
def test_opcheck(dims, has_bias, backend):
    queries, table, bias = operands("bce")
    asked = operands_of(queries, table, "rotate", bias if has_bias else None, dims=dims)
    for index in (None, INDEX):
        opcheck("scores", asked, index, False, None, backend)
    if dims is None:
        opcheck("loss_over_all", asked, Bce(*csr(), *LABELS), None, backend)
        opcheck("loss_over_all", asked, None, CrossEntropy(TARGETS, 0.1), backend)


@CROPS
@pytest.mark.parametrize(
    "need",
    [[True, True, True], pytest.param([False, True, False], marks=pytest.mark.slow)],
    ids=str,
)
def test_opcheck_of_the_backward(dims, need, backend):
    queries, table, bias = [it.detach() for it in operands("bce")]
    asked, name = operands_of(queries, table, "rotate", bias, dims=dims), "scores_backward"
    grad, needed = torch.ones(*(() if dims is None else (len(dims),)), B, N), [*need, False]
    opcheck(name, grad, asked, None, False, None, backend, needed)
    grad = grad[..., : INDEX.shape[1]].clone()
    opcheck(name, grad, asked, INDEX, False, None, backend, needed)
    if dims is None:
        grad, logsumexp = torch.ones(B), torch.ones(B, dtype=torch.float64)
        losses = (Bce(*csr(), *LABELS), None), (None, CrossEntropy(TARGETS, 0.1))
        for pair in losses:
            opcheck("loss_over_all_backward", grad, logsumexp, asked, *pair, backend, need)


@EACH_SCORED
@pytest.mark.parametrize("score", ["rotate", pytest.param("rscf_rotate", marks=pytest.mark.slow)])
def test_memory_of_scores_stays_below_64_mib(name, backend, score):
    """A broadcast would hold 512 MiB of differences (pool), or gather 256 MiB (own rows)."""
    batch, rows, dim = (256, 2048, 128) if backend == "cpu" else (64, 1024, 64)
    tensors = operands(name, score, batch=batch, rows=rows, dim=dim)
    columns, index = rows, []
    if name == "indexed_scores":
        columns = 1024 if backend == "cpu" else 128
        index = [torch.randint(rows, (batch, columns))]
    queries, table, bias, *factor = tensors
    options = {"bias": bias, "factor": (*factor, None)[0]}
    with PeakMemory("cpu") as peak:
        getattr(ops, name)(queries, table, *index, score, **options).sum().backward()
    own = 2 * 4 * batch * columns + sum(4 * it.numel() for it in tensors)  # results, gradients
    assert peak.bytes < own + (64 << 20)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("score", ["dot", pytest.param("l2", marks=pytest.mark.slow)])
@pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
def test_memory_of_losses_stays_below_64_mib(loss, score):
    """Dense scores alone would take 128 MiB, and as much again for gradients."""
    for rows in (256, 131_072):  # imports of a first call are not counted
        tensors, targets = operands(loss, score, batch=256, rows=rows, dim=2), torch.arange(256)
        labels = (torch.arange(257), targets, 0.9, 0.1) if loss == "bce" else (targets, 0.1)
        with PeakMemory("cpu") as peak:
            getattr(ops, loss)(*tensors, *labels, score).sum().backward()
    assert peak.bytes < sum(4 * tensor.numel() for tensor in tensors) + (64 << 20)
