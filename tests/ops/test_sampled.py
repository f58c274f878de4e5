"""pairwise_scores and indexed_scores: values, gradients, and their contract with torch."""

import pytest
import torch

from kgfast import ops
from kgfast.kernels.scores import get_score
from kgfast.ops.dispatch import get_backend
from support import oracles
from support.memory import PeakMemory
from support.problems import RSCF_SCORES, SCORES

CROPS = pytest.mark.parametrize("dims", [None, [3, 17, 8, 3]], ids=["full", "crops"])
EACH_SCORE = pytest.mark.parametrize("score", [*SCORES, *RSCF_SCORES])


def operands(score: str, batch: int = 5, rows: int = 23, dim: int = 17) -> list[torch.Tensor]:
    """Float32 queries, table, bias and a factor that require gradients; a query equals a row."""
    generator, facts = torch.Generator().manual_seed(1), get_score(score)
    shapes = (batch, dim * facts.planes), (rows, dim * facts.planes), (rows,)
    tensors = [torch.randn(*shape, generator=generator) for shape in shapes]
    if batch and rows and not facts.is_rscf:
        tensors[1][-1] = tensors[0][0]
    if facts.is_rscf:
        scale = 1 + 0.2 * torch.randn(*shapes[0], generator=generator)
        move = 3 * torch.randn(batch, dim, generator=generator)
        tensors[0] = torch.cat([tensors[0], scale, move], 1)
        tensors.append(1 + 0.1 * torch.randn(rows, dim, generator=generator))
    return [it.requires_grad_() for it in tensors]


def an_index(rows: int = 23, batch: int = 5, width: int = 7) -> torch.Tensor:
    """Ids with many duplicates, within rows and across."""
    generator = torch.Generator().manual_seed(3)
    index = torch.randint(rows, (batch, width), generator=generator)
    index[:, 0] = rows - 1
    return index


def dense(tensors, score, index=None, dims=None):
    """Return the scores by dense torch."""
    queries, *others = tensors
    rows, bias, *factor = others if index is None else (it[index] for it in others)
    options = {"bias": bias, "factor": (*factor, None)[0]}
    results = [
        oracles.dense_scores(queries[:, None], rows, score, dim=dim, **options)
        for dim in dims or [None]
    ]
    return results[0] if dims is None else torch.stack(results)


def served(tensors, score, index=None, dims=None, **options):
    queries, table, bias, *factor = tensors
    options |= {"bias": bias, "factor": (*factor, None)[0], "dims": dims}
    if index is None:
        return ops.pairwise_scores(queries, table, score, **options)
    return ops.indexed_scores(queries, table, index, score, **options)


def doubles(tensors):
    return [it.detach().double().requires_grad_() for it in tensors]


EITHER = pytest.mark.parametrize("index", [None, an_index()], ids=["pairwise", "indexed"])


@EACH_SCORE
@CROPS
@EITHER
@pytest.mark.usefixtures("backend")
def test_scores_and_gradients_are_those_of_float64(score, dims, index):
    tensors = operands(score)
    exact, twin = doubles(tensors), [it.detach().requires_grad_() for it in tensors]
    results = [
        make(them, score, index, dims)
        for make, them in ((served, tensors), (dense, exact), (dense, twin))
    ]
    assert results[0].dtype == torch.float32
    oracles.assert_accurate(*(it.detach() for it in results))
    grad = torch.randn(results[0].shape, generator=torch.Generator().manual_seed(9))
    gradients = [
        torch.autograd.grad(result, them, grad.to(result.dtype))
        for result, them in zip(results, (tensors, exact, twin), strict=True)
    ]
    for got, expected, float32 in zip(*gradients, strict=True):
        assert got.dtype == torch.float32
        oracles.assert_accurate(got, expected, float32)


@EITHER
@pytest.mark.usefixtures("backend")
def test_a_bias_for_all_gets_the_sum(index):
    queries, table, _ = operands("rotate")
    bias = torch.tensor([3.0], requires_grad=True)
    scores = served((queries, table, bias), "rotate", index, dims=[2, 5])
    expected = served((queries, table, bias.detach().expand(len(table))), "rotate", index, [2, 5])
    assert torch.equal(scores, expected)
    weight = torch.randn(scores.shape, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad((scores * weight).sum(), bias)
    torch.testing.assert_close(gradient, weight.sum().reshape(1))


@EACH_SCORE
@pytest.mark.usefixtures("backend")
def test_a_sparse_gradient_holds_the_rows_of_the_index(score):
    tensors, index = operands(score), an_index()
    grads = []
    for sparse in (False, True):
        scores = served(tensors, score, index, sparse=sparse)
        grads.append(torch.autograd.grad(scores.square().sum(), tensors))
    assert grads[1][1].is_coalesced()
    assert grads[1][1].indices().tolist() == [index.unique().tolist()]
    for one, other in zip(*grads, strict=True):
        assert torch.equal(one, other.to_dense())
    served(tensors, score, index, sparse=True).sum().backward()
    optimizer = torch.optim.SparseAdam([tensors[1]])
    before = tensors[1].detach().clone()
    optimizer.step()
    moved = (tensors[1] != before).any(1).nonzero()[:, 0]
    assert set(moved.tolist()) <= set(index.unique().tolist())


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(("batch", "width"), [(0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("dims", [None, [1, 2]])
def test_empty_operands(batch, width, dims):
    shape = (batch, width) if dims is None else (2, batch, width)
    queries, table, bias = operands("rotate", batch, 6, 2)
    index = torch.empty(batch, width, dtype=torch.int64)
    pool = (queries, table[:width], bias[:width])
    for scores in (served((queries, table, bias), "rotate", index, dims), served(pool, "rotate")):
        assert scores.shape in (shape, (batch, width))
        gradients = torch.autograd.grad(scores.sum(), (queries, table, bias))
        for gradient, tensor in zip(gradients, (queries, table, bias), strict=True):
            assert torch.equal(gradient, torch.zeros_like(tensor))
    scores = served((queries, table, bias), "rotate", index, dims, sparse=True)
    assert torch.autograd.grad(scores.sum(), table)[0].shape == table.shape


@EACH_SCORE
@EITHER
def test_gradcheck(score, index):
    tensors = doubles(operands(score, 3, 6, 3))
    tensors[1].data[-1] += 0.1  # a distance has no derivative where both are equal
    index = None if index is None else index[:3] % 6
    with ops.use_backend("reference"):
        assert torch.autograd.gradcheck(
            lambda *them: served(them, score, index, dims=[3, 1]), tensors
        )


def test_float64_queries_are_served_in_float64_whatever_the_backend(backend):
    tensors = doubles(operands("rotate"))
    scores = served(tensors, "rotate")
    assert scores.dtype == torch.float64
    torch.testing.assert_close(scores, dense(tensors, "rotate"), rtol=1e-14, atol=0)
    (gradient,) = torch.autograd.grad(scores.sum(), tensors[0])
    assert gradient.dtype == torch.float64


@EITHER
@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_only_gradients_that_are_needed_are_computed(index, wanted, monkeypatch):
    asked = []
    backend = get_backend("reference")
    inner = backend.backward

    def record(*args, **kwargs):
        asked.append(kwargs["need"])
        return inner(*args, **kwargs)

    monkeypatch.setattr(backend, "backward", record)
    tensors = [it.detach() for it in operands("l2")]
    tensors[wanted].requires_grad_()
    with ops.use_backend("reference"):
        served(tensors, "l2", index).sum().backward()
    assert asked == ([] if wanted == 2 else [(wanted == 0, wanted == 1, False)])
    assert [it.grad is not None for it in tensors] == [i == wanted for i in range(3)]


@EITHER
def test_the_backward_runs_on_the_backend_of_its_forward(index, monkeypatch):
    asked = []

    def record(name):
        asked.append(name)
        return get_backend("reference")

    monkeypatch.setattr(ops.run, "get_backend", record)
    tensors = operands("rotate")
    with ops.use_backend("cpu"):
        scores = served(tensors, "rotate", index)
    with ops.use_backend("reference"):
        scores.sum().backward()
    assert asked == ["cpu", "cpu"]


@EITHER
def test_there_is_no_second_derivative(index):
    tensors = operands("rotate")
    with ops.use_backend("reference"):
        scores = served(tensors, "rotate", index)
        first = torch.autograd.grad(scores.sum(), tensors[:2], create_graph=True)
        with pytest.raises(RuntimeError, match="_scores can be differentiated once"):
            sum(it.sum() for it in first).backward()


@EITHER
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.usefixtures("backend")
def test_autocast_computes_in_float32(index, dtype):
    queries, table, bias = operands("dot")
    half = queries.detach().to(dtype).requires_grad_()
    expected = served((half.float(), table, bias), "dot", index)
    with torch.autocast("cpu", dtype=dtype):
        scores = served((half, table, bias), "dot", index)
    assert scores.dtype == torch.float32
    assert torch.equal(scores, expected)
    with torch.autocast("cpu", dtype=dtype):
        gradients = torch.autograd.grad(scores.sum(), (half, table))
    assert [it.dtype for it in gradients] == [dtype, torch.float32]
    assert torch.equal(gradients[1], torch.autograd.grad(expected.sum(), table)[0])


@CROPS
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.usefixtures("backend")
def test_opcheck(dims, with_bias, backend):
    queries, table, bias = operands("rotate")
    bias, index = bias if with_bias else None, an_index()
    named, own = torch.ops.kgfast.pairwise_scores, torch.ops.kgfast.indexed_scores
    torch.library.opcheck(named, (queries, table, "rotate", bias, None, dims, backend))
    args = (queries, table, index, "rotate", bias, None, dims, False, None, backend)
    torch.library.opcheck(own, args)


@CROPS
@pytest.mark.parametrize("need", [[True, True, True, False], [False, True, False, False]], ids=str)
@pytest.mark.usefixtures("backend")
def test_opcheck_of_the_backward(dims, need, backend):
    queries, table, bias = (it.detach() for it in operands("rotate"))
    index = an_index()
    head, tail = ("rotate", bias, None, dims), (backend, need)
    kgfast = torch.ops.kgfast
    grad = torch.ones(*(() if dims is None else (len(dims),)), len(queries), len(table))
    torch.library.opcheck(kgfast.pairwise_scores_backward, (grad, queries, table, *head, *tail))
    grad = grad[..., : index.shape[1]].clone()
    for rows in ((False, None), (True, None), (True, torch.tensor([1, 0]))):
        args = grad, queries, table, index, *head, *rows, *tail
        torch.library.opcheck(kgfast.indexed_scores_backward, args)


@pytest.mark.usefixtures("backend")
def test_torch_compile_full_graph():
    tensors, index = operands("rotate"), an_index()

    def loss(queries, table, bias):
        pool = ops.pairwise_scores(queries * 2, table, "rotate", bias=bias)
        own = ops.indexed_scores(queries, table, index, "l1", bias=bias, dims=[3, 5])
        return pool.sum() + own.square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    results = [it(*tensors) for it in (loss, compiled)]
    torch.testing.assert_close(*results)
    gradients = [torch.autograd.grad(it, tensors) for it in results]
    torch.testing.assert_close(*gradients)


def test_a_sparse_gradient_is_eager_only():
    (queries, table, _), index = operands("l1"), an_index()

    def scores():
        return ops.indexed_scores(queries, table, index, "l1", sparse=True)

    with pytest.raises(RuntimeError, match="eager only"):
        torch.compile(scores, backend="aot_eager", fullgraph=True)()
    assert torch.equal(torch.compile(scores, backend="aot_eager")(), scores())  # a graph break


@EITHER
@pytest.mark.parametrize("score", ["rotate", "rscf_rotate"])
def test_memory_stays_below_64_mib(index, backend, score):
    """A broadcast would hold 512 MiB of differences (pool), or gather 256 MiB (own rows)."""
    batch, rows, dim = (256, 2048, 128) if backend == "cpu" else (64, 1024, 64)
    tensors = operands(score, batch, rows, dim)
    if index is not None:
        index = torch.randint(rows, (batch, 1024 if backend == "cpu" else 128))
    with PeakMemory("cpu") as peak:
        served(tensors, score, index).sum().backward()
    results = 4 * batch * (rows if index is None else index.shape[1]) * 2  # and their gradient
    own = results + sum(4 * it.numel() for it in tensors)
    assert peak.bytes < own + (64 << 20)


@pytest.mark.parametrize("score", RSCF_SCORES)
@pytest.mark.usefixtures("backend")
def test_losses_of_moved_queries_without_a_factor(score):
    queries, table, *_ = operands(score)
    queries = queries.detach()[:, : 2 * table.shape[1]]
    bias, targets = torch.tensor([2.0]), torch.arange(5)
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [it.detach().to(dtype).requires_grad_() for it in (queries, table)]
        rows = ops.bce(*leaves, bias, torch.arange(6), targets, 0.9, 0.1, score)
        rows = rows + ops.cross_entropy(*leaves, bias, targets, 0.1, score)
        results.append((rows.detach(), *torch.autograd.grad(rows.sum(), leaves)))
    for got, exact in zip(*results, strict=True):
        oracles.assert_accurate(got, exact)


BAD = {
    "unknown score": ({"score": "cosine"}, ValueError, "score must be one of dot, l1"),
    "table not a tensor": ({"table": [[1.0]]}, TypeError, "table must be a tensor"),
    "integer queries": ({"queries": torch.zeros(2, 4).long()}, TypeError, "queries must be float"),
    "widths differ": ({"queries": torch.zeros(2, 6)}, ValueError, "queries must have 4 columns"),
    "bias": ({"bias": torch.zeros(5)}, ValueError, r"bias must have shape \[6\]"),
    "dims": ({"dims": [1, 3]}, ValueError, r"dims\[1\] must be in 1 .. 2; got 3"),
    "factor": ({"factor": torch.zeros(6, 2)}, ValueError, "factor: score rotate takes none"),
    "index not a tensor": ({"index": [[0]]}, TypeError, "index must be a tensor"),
    "int32 index": ({"index": torch.zeros(2, 3).int()}, TypeError, "index must be int64"),
    "flat index": ({"index": torch.arange(2)}, ValueError, r"index must have shape \[2, K\]"),
    "short index": ({"index": torch.zeros(1, 3).long()}, ValueError, r"shape \[2, K\]"),
    "index elsewhere": (
        {"index": torch.zeros(2, 3, dtype=torch.int64, device="meta")},
        ValueError,
        "index must be on cpu",
    ),
    "id too large": (
        {"index": torch.tensor([[0, 5, 1], [2, 6, 9]])},
        ValueError,
        r"index\[1, 1\] must be in 0 .. 5; got 6",
    ),
    "negative id": (
        {"index": torch.tensor([[0, -1, 1], [2, 6, 9]])},
        ValueError,
        r"index\[0, 1\] must be in 0 .. 5; got -1",
    ),
}


MOVED = {
    "no angles": (
        {"queries": torch.zeros(2, 8)},
        ValueError,
        "queries must have 10 columns, query,",
    ),
    "angles without a factor": ({"factor": None}, ValueError, "queries must have 8 columns, query"),
    "factor of another table": (
        {"factor": torch.zeros(5, 2)},
        ValueError,
        r"shape \[6, 2\]; got \[5",
    ),
    "factor too narrow": ({"factor": torch.zeros(6, 1)}, ValueError, r"must have shape \[6, 2\]"),
    "factor as wide as a row": (
        {"factor": torch.zeros(6, 4)},
        ValueError,
        r"must have shape \[6, 2\]",
    ),
    "flat factor": ({"factor": torch.zeros(12)}, ValueError, r"must have shape \[6, 2\]"),
    "integer factor": ({"factor": torch.zeros(6, 2).int()}, TypeError, "factor must be a floating"),
    "odd rows": ({"table": torch.zeros(6, 3)}, ValueError, "needs rows of pairs re, im"),
    "too many turns": (
        {"factor": torch.full((6, 2), 2.0**12)},
        ValueError,
        r"angles up to 1.68e\+07 radians; at most 2\^20",
    ),
    "a score that takes none": ({"score": "rotate"}, ValueError, "score rotate takes none"),
}


@pytest.mark.parametrize("name", [*BAD, *MOVED])
def test_bad_input_is_named(name):
    change, error, message = (BAD | MOVED)[name]
    given = {
        "queries": torch.zeros(2, 4),
        "table": torch.zeros(6, 4),
        "index": torch.zeros(2, 3, dtype=torch.int64),
        "score": "rotate",
    }
    if name in MOVED:
        queries = torch.full((2, 10), 2.0**12)
        given |= {"queries": queries, "factor": torch.zeros(6, 2), "score": "rscf_rotate"}
    given |= change
    with pytest.raises(error, match=message):
        ops.indexed_scores(**given)
    if name in MOVED or not {"table", "index"} & change.keys():
        given["candidates"] = given.pop("table")
        given.pop("index")
        with pytest.raises(error, match=message):
            ops.pairwise_scores(**given)
