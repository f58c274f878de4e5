"""bce and cross_entropy: values, gradients, and their contract with torch."""

import pytest
import torch

from kgfast import ops
from kgfast.kernels import cpu, losses
from kgfast.kernels.scores import get_score
from kgfast.ops.dispatch import get_backend
from kgfast.ops.run import operands_of
from support import oracles
from support.memory import PeakMemory
from support.problems import DTYPES, SCORES, cast, strided

EACH_SCORE = pytest.mark.parametrize("score", SCORES)
POSITIVES = [[22, 3], [0], [5, 9, 5, 22], [3, 3], [1]]  # in no order, some twice
TARGETS = [22, 0, 5, 3, 3]


def operands(score: str, batch: int = 5, rows: int = 23, dim: int = 17) -> list[torch.Tensor]:
    """Float32 queries, table and bias that require gradients; a query equals a row."""
    generator = torch.Generator().manual_seed(1)
    width = dim * get_score(score).planes
    shapes = (batch, width), (rows, width), (rows,)
    tensors = [torch.randn(*shape, generator=generator) / 3 for shape in shapes]
    if batch and rows:
        tensors[1][-1] = tensors[0][0]
    return [it.requires_grad_() for it in tensors]


def csr(positives) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([0] + [len(ids) for ids in positives])
    return lengths.cumsum(0), torch.tensor([i for ids in positives for i in ids]).long()


def bce(queries, table, bias, score):
    return ops.bce(queries, table, bias, *csr(POSITIVES), 0.9, 0.1 / 23, score)


def dense_bce(queries, table, bias, score):
    scores = oracles.dense_scores(queries[:, None], table, score, bias=bias)
    return oracles.binary_cross_entropy(scores, POSITIVES, 0.9, 0.1 / 23)


def cross_entropy(queries, table, bias, score):
    return ops.cross_entropy(
        queries, table, bias, torch.tensor(TARGETS, dtype=torch.int64), 0.1, score
    )


def dense_cross_entropy(queries, table, bias, score):
    scores = oracles.dense_scores(queries[:, None], table, score, bias=bias)
    return oracles.softmax_cross_entropy(scores, torch.tensor(TARGETS, dtype=torch.int64), 0.1)


EACH_LOSS = pytest.mark.parametrize(
    ("loss", "dense"),
    [(bce, dense_bce), (cross_entropy, dense_cross_entropy)],
    ids=["bce", "cross_entropy"],
)


def doubles(tensors):
    return [it.detach().double().requires_grad_() for it in tensors]


@EACH_SCORE
@EACH_LOSS
@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.usefixtures("backend")
def test_rows_and_gradients_are_those_of_float64(loss, dense, score, with_bias):
    tensors = operands(score)
    exact, twin = doubles(tensors), [it.detach().requires_grad_() for it in tensors]
    count = 3 if with_bias else 2
    results = [
        make(*them[:count], *[None] * (3 - count), score)
        for make, them in ((loss, tensors), (dense, exact), (dense, twin))
    ]
    assert results[0].dtype == torch.float32
    oracles.assert_accurate(*(it.detach() for it in results))
    grad = torch.randn(len(tensors[0]), generator=torch.Generator().manual_seed(9))
    gradients = [
        torch.autograd.grad(result, them[:count], grad.to(result.dtype))
        for result, them in zip(results, (tensors, exact, twin), strict=True)
    ]
    for got, expected, float32 in zip(*gradients, strict=True):
        assert got.dtype == torch.float32
        oracles.assert_accurate(got, expected, float32)


@pytest.mark.parametrize("score", ["dot", "rotate"])
@EACH_LOSS
@pytest.mark.usefixtures("backend")
def test_many_chunks_of_candidates(loss, dense, score, monkeypatch):
    """More candidates than one chunk holds, positives on the seams."""
    rows = 40_000
    ids = [[0, rows - 1], [16_383, 16_384], [4096], [8192, 8191], [20_000]]
    monkeypatch.setitem(globals(), "POSITIVES", ids)
    monkeypatch.setitem(globals(), "TARGETS", [it[0] for it in ids])
    tensors = operands(score, rows=rows, dim=4)
    exact = doubles(tensors)
    result, expected = loss(*tensors, score), dense(*exact, score)
    oracles.assert_accurate(result.detach(), expected.detach())
    gradients = torch.autograd.grad(result.sum(), tensors)
    for got, right in zip(gradients, torch.autograd.grad(expected.sum(), exact), strict=True):
        oracles.assert_accurate(got, right)


@EACH_SCORE
@EACH_LOSS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.usefixtures("backend")
def test_tables_of_any_dtype_and_stride(loss, dense, score, dtype):
    for layout in ("plain", "rows", "columns"):
        queries, table, bias = (it.detach() for it in operands(score))
        table = strided(cast(table.double(), dtype), layout).requires_grad_()
        queries = strided(queries, "columns").requires_grad_()
        given = [queries, table, bias.requires_grad_()]
        exact = doubles(given)
        result, expected = loss(*given, score), dense(*exact, score)
        oracles.assert_accurate(result.detach(), expected.detach())
        gradients = torch.autograd.grad(result.sum(), given)
        wanted = torch.autograd.grad(expected.sum(), exact)
        for tensor, gradient, right in zip(given, gradients, wanted, strict=True):
            assert gradient.dtype == tensor.dtype
            allowed = max(torch.finfo(dtype).eps, 1e-5) * right.abs().max()
            assert (gradient.double() - right).abs().max() <= allowed


@EACH_LOSS
@pytest.mark.usefixtures("backend")
def test_a_bias_for_all_gets_the_sum(loss, dense):
    queries, table, _ = operands("rotate")
    one = torch.tensor([2.5], requires_grad=True)
    many = one.detach().expand(len(table)).clone().requires_grad_()
    rows = [loss(queries, table, it, "rotate") for it in (one, many)]
    assert torch.equal(*rows)
    total, each = (
        torch.autograd.grad(row.sum(), it)[0] for row, it in zip(rows, (one, many), strict=True)
    )
    assert total.shape == (1,)
    torch.testing.assert_close(total, each.sum(0, keepdim=True), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("backend")
def test_order_and_repetition_of_positives_do_not_matter():
    tensors = operands("rotate")
    rows = bce(*tensors, "rotate")
    sets = csr([sorted(set(ids), reverse=True) for ids in POSITIVES])
    again = ops.bce(*tensors, *sets, 0.9, 0.1 / 23, "rotate")
    assert torch.equal(rows, again)
    for one, other in zip(
        torch.autograd.grad(rows.sum(), tensors),
        torch.autograd.grad(again.sum(), tensors),
        strict=True,
    ):
        assert torch.equal(one, other)


@EACH_SCORE
@EACH_LOSS
@pytest.mark.usefixtures("backend")
def test_two_runs_are_bit_equal_for_any_number_of_threads(loss, dense, score):
    tensors, threads, runs = operands(score, dim=70), torch.get_num_threads(), []
    try:
        for count in (1, 2, 2, 3):
            torch.set_num_threads(count)
            rows = loss(*tensors, score)
            runs.append([rows, *torch.autograd.grad(rows.square().sum(), tensors)])
    finally:
        torch.set_num_threads(threads)
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))


@EACH_LOSS
@pytest.mark.usefixtures("backend")
def test_large_scores_neither_overflow_nor_lose_the_gradient(loss, dense):
    queries, table, bias = (it.detach() for it in operands("dot"))
    tensors = [(300 * queries).requires_grad_(), table.requires_grad_(), bias.requires_grad_()]
    exact, twin = doubles(tensors), [it.detach().requires_grad_() for it in tensors]
    rows = [make(*it, "dot") for make, it in ((loss, tensors), (dense, exact), (dense, twin))]
    oracles.assert_accurate(*(it.detach() for it in rows))
    gradients = [
        torch.autograd.grad(it.sum(), them)
        for it, them in zip(rows, (tensors, exact, twin), strict=True)
    ]
    for triple in zip(*gradients, strict=True):
        oracles.assert_accurate(*triple)


@EACH_LOSS
@pytest.mark.usefixtures("backend")
def test_an_empty_batch(loss, dense, monkeypatch):
    monkeypatch.setitem(globals(), "POSITIVES", [])
    monkeypatch.setitem(globals(), "TARGETS", [])
    tensors = operands("rotate", batch=0)
    rows = loss(*tensors, "rotate")
    assert rows.shape == (0,)
    for gradient, tensor in zip(torch.autograd.grad(rows.sum(), tensors), tensors, strict=True):
        assert torch.equal(gradient, torch.zeros_like(tensor))


@EACH_SCORE
@EACH_LOSS
def test_gradcheck(loss, dense, score):
    tensors = doubles(operands(score, dim=3))
    tensors[1].data[-1] += 0.1  # a distance has no derivative where both are equal
    with ops.use_backend("reference"):
        assert torch.autograd.gradcheck(lambda *them: loss(*them, score), tensors, fast_mode=True)


@EACH_LOSS
@pytest.mark.usefixtures("backend")
def test_float64_queries_are_served_in_float64_whatever_the_backend(loss, dense):
    tensors = doubles(operands("rotate"))
    rows = loss(*tensors, "rotate")
    torch.testing.assert_close(rows, dense(*tensors, "rotate"), rtol=1e-13, atol=0)


@EACH_LOSS
@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_only_gradients_that_are_needed_are_computed(loss, dense, wanted, monkeypatch):
    inner, asked = getattr(losses.ChunkedLosses, f"{loss.__name__}_gradients"), []

    def record(*args):
        asked.append(args[-1])
        return inner(*args)

    monkeypatch.setattr(losses.ChunkedLosses, f"{loss.__name__}_gradients", record)
    tensors = [it.detach() for it in operands("l2")]
    tensors[wanted].requires_grad_()
    with ops.use_backend("reference"):
        loss(*tensors, "l2").sum().backward()
    assert asked == [tuple(i == wanted for i in range(3))]
    assert [it.grad is not None for it in tensors] == [i == wanted for i in range(3)]


@EACH_LOSS
def test_the_backward_runs_on_the_backend_of_its_forward(loss, dense, monkeypatch):
    asked = []

    def record(name):
        asked.append(name)
        return get_backend("reference")

    monkeypatch.setattr(ops.run, "get_backend", record)
    with ops.use_backend("cpu"):
        rows = loss(*operands("rotate"), "rotate")
    with ops.use_backend("reference"):
        rows.sum().backward()
    assert asked == ["cpu", "cpu"]


@EACH_LOSS
def test_there_is_no_second_derivative(loss, dense):
    tensors = operands("rotate")
    with ops.use_backend("reference"):
        rows = loss(*tensors, "rotate")
        (first,) = torch.autograd.grad(rows.sum(), tensors[0], create_graph=True)
        with pytest.raises(RuntimeError, match="can be differentiated once"):
            first.sum().backward()


@EACH_LOSS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.usefixtures("backend")
def test_autocast_computes_in_float32(loss, dense, dtype):
    queries, table, bias = operands("dot")
    half = queries.detach().to(dtype).requires_grad_()
    expected = loss(half.float(), table, bias, "dot")
    with torch.autocast("cpu", dtype=dtype):
        rows = loss(half, table, bias, "dot")
        gradients = torch.autograd.grad(rows.sum(), (half, table))
    assert rows.dtype == torch.float32
    assert torch.equal(rows, expected)
    assert [it.dtype for it in gradients] == [dtype, torch.float32]
    assert torch.equal(gradients[1], torch.autograd.grad(expected.sum(), table)[0])


@pytest.mark.parametrize("with_bias", [False, True], ids=["no bias", "bias"])
def test_opcheck(with_bias, backend):
    queries, table, bias = operands("rotate")
    bias, targets, kgfast = (
        bias if with_bias else None,
        torch.tensor(TARGETS, dtype=torch.int64),
        torch.ops.kgfast,
    )
    head, tail = (queries, table, bias), ("rotate", "float32", backend)
    torch.library.opcheck(kgfast.bce, (*head, *csr(POSITIVES), 0.9, 0.1, *tail))
    torch.library.opcheck(kgfast.cross_entropy, (*head, targets, 0.1, *tail))
    head = [None if it is None else it.detach() for it in head]
    grad, logsumexp = torch.ones(5), torch.ones(5, dtype=torch.float64)
    for need in ([True, True, with_bias], [False, True, False]):
        args = (grad, *head, *csr(POSITIVES), 0.9, 0.1, *tail, need)
        torch.library.opcheck(kgfast.bce_backward, args)
        args = (grad, logsumexp, *head, targets, 0.1, *tail, need)
        torch.library.opcheck(kgfast.cross_entropy_backward, args)


@pytest.mark.usefixtures("backend")
def test_torch_compile_full_graph():
    tensors, positives, targets = (
        operands("rotate"),
        csr(POSITIVES),
        torch.tensor(TARGETS, dtype=torch.int64),
    )

    def loss(queries, table, bias):
        rows = ops.bce(queries * 2, table, bias, *positives, 0.9, 0.1, "rotate")
        return rows.sum() + ops.cross_entropy(queries, table, bias, targets, 0.1, "l1").mean()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    results = [it(*tensors) for it in (loss, compiled)]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(it, tensors) for it in results))


@pytest.mark.parametrize("loss", ["bce", "cross_entropy"])
@pytest.mark.parametrize(("backend", "score"), [("reference", "l1"), ("cpu", "dot"), ("cpu", "l2")])
def test_memory_stays_below_64_mib(loss, score, backend):
    """Dense scores alone would take 128 MiB (reference: 32), and as much again for gradients."""
    if backend == "cpu" and not cpu.is_available():
        pytest.skip("the extension is not built")
    if backend == "cpu":
        batch, rows, dim, limit = 256, 131_072, 2, 64 << 20
    else:  # slow: a quarter of it, and float64
        batch, rows, dim, limit = 64, 65_536, 1, 24 << 20
    tensors, targets = operands(score, batch, rows, dim), torch.arange(batch)

    def run(queries, table, bias):
        if loss == "bce":
            indptr = torch.arange(batch + 1)
            result = ops.bce(queries, table, bias, indptr, targets, 0.9, 0.1, score)
        else:
            result = ops.cross_entropy(queries, table, bias, targets, 0.1, score)
        result.sum().backward()

    with ops.use_backend(backend):
        run(*operands(score, batch, batch, dim))  # what a first call imports is not counted
        with PeakMemory("cpu") as peak:
            run(*tensors)
    assert peak.bytes < sum(4 * it.numel() for it in tensors) + limit


@EACH_LOSS
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.usefixtures("backend")
def test_numbers_that_are_not_finite_are_named(loss, dense, value):
    for position, name, row in ((0, "queries", 1), (1, "candidates", 20), (2, "bias", 4)):
        tensors = [it.detach().clone() for it in operands("rotate")]
        tensors[position][row] = value
        with pytest.raises(ValueError, match=f"{name}: row {row} holds a NaN or an infinity"):
            loss(*tensors, "rotate")


@EACH_LOSS
@pytest.mark.usefixtures("backend")
def test_an_overflow_of_finite_numbers_is_a_loss_that_is_not_finite(loss, dense):
    queries, table, bias = (it.detach() for it in operands("dot"))
    rows = loss(queries * 1e30, table * 1e30, bias, "dot")
    assert not rows.isfinite().all()


def test_kept_scores_serve_one_backward_and_change_no_bit(monkeypatch):
    """A second backward through a retained graph scores again; so do many scores."""
    backend = get_backend("cpu")
    generator = torch.Generator().manual_seed(3)
    queries = torch.randn(9, 8, generator=generator).requires_grad_()
    table = torch.randn(300, 8, generator=generator).requires_grad_()
    targets = torch.randint(300, (9,), generator=generator)
    scored: list[int] = []
    scores = backend.scores

    def counting(operands, *args, **kwargs):
        scored.append(operands.num_queries * operands.candidates.num_rows)
        return scores(operands, *args, **kwargs)

    monkeypatch.setattr(backend, "scores", counting)
    total = ops.cross_entropy(queries, table, None, targets, 0.1, "dot").sum()
    first = torch.autograd.grad(total, (queries, table), retain_graph=True)
    assert sum(scored) == 9 * 300
    second = torch.autograd.grad(total, (queries, table))
    assert sum(scored) == 2 * 9 * 300
    plan = backend.loss_plan(operands_of(queries, table, "dot"))
    monkeypatch.setattr(backend, "loss_plan", lambda _: plan._replace(kept=9 * 300 - 1))
    total = ops.cross_entropy(queries, table, None, targets, 0.1, "dot").sum()
    third = torch.autograd.grad(total, (queries, table))
    assert sum(scored) == 4 * 9 * 300
    for a, b, c in zip(first, second, third, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)
