"""Checks of values switched off: what is still checked, what wrong ids do, who refuses."""

import threading

import pytest
import torch

import kgfast
from kgfast import losses, ops
from kgfast.kernels.backend import AdamStep
from kgfast.kernels.checks import checks_values

N, D, B = 7, 4, 3
PAST = torch.tensor([[0, 6, 10**15], [1, -(10**15), 2], [3, 7, -1]])  # ids of rows, and others
FORCED = PAST.clamp(0, N - 1)
TRIPLES = torch.tensor([[0, 0, 1], [3, 1, 6], [2, 0, 2]])
NEGATIVES = torch.tensor([[4, 5], [0, 1], [6, 3]])


@pytest.fixture
def rows():
    rng = torch.Generator().manual_seed(0)
    return torch.randn(B, D, generator=rng), torch.randn(N, D, generator=rng)


def graded(function, *leaves):
    """Return a result and the gradients of its sum."""
    leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    result = function(*leaves)
    return [result.detach(), *torch.autograd.grad(result.sum(), leaves)]


def same(found, expected) -> None:
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("score", ["l1", "dot", "rotate"])
def test_wrong_ids_of_indexed_scores_are_forced_into_range(backend, rows, score, sparse) -> None:
    """In the backward, too, though it runs after the block."""

    def scores(index):
        return graded(lambda q, c: ops.indexed_scores(q, c, index, score, sparse=sparse), *rows)

    with kgfast.unchecked():
        leaves = [leaf.clone().requires_grad_() for leaf in rows]
        late = ops.indexed_scores(*leaves, PAST, score, sparse=sparse)
        found = scores(PAST)
    expected = scores(FORCED)
    found, late_rows, expected = (
        [part.to_dense() for part in parts]
        for parts in (found, torch.autograd.grad(late.sum(), leaves), expected)
    )
    same(found, expected)
    same(late_rows, expected[1:])
    with pytest.raises(ValueError, match=r"index\[0, 2\] must be in 0 .. 6"):
        scores(PAST)


def test_wrong_ids_of_losses_over_all_candidates_are_forced_into_range(backend, rows) -> None:
    bias, indptr = torch.zeros(N), torch.tensor([0, 1, 2, 3])
    wrong, right = torch.tensor([3, 9, -4]), torch.tensor([3, 6, 0])

    def bce(queries, table, ids, indptr=indptr):
        return ops.bce(queries, table, bias, indptr, ids, 1.0, 0.0, "l1")

    def cross_entropy(queries, table, ids):
        return ops.cross_entropy(queries, table, bias, ids, 0.0, "l1")

    for loss in (bce, cross_entropy):
        with kgfast.unchecked():
            found = graded(lambda q, c, loss=loss: loss(q, c, wrong), *rows)
            leaves = [leaf.clone().requires_grad_() for leaf in rows]
            late = loss(*leaves, wrong)
        expected = graded(lambda q, c, loss=loss: loss(q, c, right), *rows)
        same(found, expected)
        same(torch.autograd.grad(late.sum(), leaves), expected[1:])  # runs after the block
        with pytest.raises(ValueError, match=r"must be in 0 .. 6"):
            loss(*rows, wrong)
    with kgfast.unchecked():  # pointers that do not rise give all to the first row
        found = bce(*rows, right, torch.tensor([0, 3, 1, 9]))
        assert torch.equal(found, bce(*rows, right, torch.tensor([0, 3, 3, 3])))


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("make", [kgfast.RotatE, kgfast.TransE])
def test_wrong_ids_of_sampled_negatives_are_forced_into_range(backend, make, pool) -> None:
    model = make.init(N, 2, dim=D, seed=0)
    triples = torch.tensor([[0, 5, 99], [-7, 1, 2], [3, -1, 7]])
    right = torch.tensor([[0, 1, 6], [0, 1, 2], [3, 0, 6]])
    negatives, forced = (PAST[2], FORCED[2]) if pool else (PAST, FORCED)
    with kgfast.unchecked():
        found = losses.nssa(model, triples, negatives)
    assert torch.equal(found, losses.nssa(model, right, forced))
    with pytest.raises(ValueError, match="must be"):
        losses.nssa(model, triples, forced)
    with pytest.raises(ValueError, match="must be in"):
        losses.nssa(model, right, negatives)


def test_numbers_are_not_looked_at(backend, rows) -> None:
    queries, table = rows
    table[2, 1] = torch.nan
    with pytest.raises(ValueError, match="row 2 holds a NaN"):
        ops.pairwise_scores(queries, table, "l1")
    with kgfast.unchecked():
        assert not ops.pairwise_scores(queries, table, "l1").isfinite().all()


def test_shapes_and_dtypes_are_checked_as_ever(backend, rows) -> None:
    queries, table = rows
    with kgfast.unchecked():
        with pytest.raises(ValueError, match="queries must have 4 columns"):
            ops.pairwise_scores(queries[:, :3], table, "l1")
        with pytest.raises((TypeError, ValueError), match="index"):
            ops.indexed_scores(queries, table, PAST.int(), "l1")
        with pytest.raises(ValueError, match="empty"):  # no row to force an id to
            ops.indexed_scores(queries, table[:0], PAST, "l1")
        with pytest.raises(ValueError, match="alpha must be finite"):
            losses.nssa(kgfast.TransE.init(N, 1, dim=D, seed=0), [(0, 0, 1)], PAST[:1], alpha=-1)


def test_ranks_and_the_best_refuse_it(rows) -> None:
    model, triples = kgfast.TransE.init(N, 1, dim=D, seed=0), torch.tensor([[0, 0, 1]])
    queries, table = rows
    indptr, nothing = torch.zeros(B + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    with kgfast.unchecked():
        for name, call in {
            r"rank\(\)": lambda: kgfast.rank(model, triples),
            r"topk\(\)": lambda: kgfast.topk(model, heads=[0], relations=0, k=1),
            r"above\(\)": lambda: kgfast.above(model, 0.0, heads=[0], relations=0),
            "rank_counts": lambda: ops.rank_counts(queries, table, PAST[0], indptr, nothing, "l1"),
            "topk": lambda: ops.topk(queries, table, 1, score="l1"),
        }.items():
            with pytest.raises(RuntimeError, match=name + ".*outside of kgfast.unchecked"):
                call()
    assert len(kgfast.rank(model, triples).greater) == 1


def test_what_writes_checks_its_ids_nonetheless() -> None:
    tables = torch.zeros(3, 2, 1).unbind()
    if not ops.serves_rows(tables[0]):
        pytest.skip("the extension is not built")
    step = AdamStep(0.1, (0.9, 0.999), 1e-8, 0.0, 1)
    with kgfast.unchecked(), pytest.raises(ValueError, match=r"ids\[0\] must be in 0 .. 1"):
        ops.update_rows(tables, torch.tensor([2]), torch.ones(1, 1), step)


def test_a_block_holds_in_its_own_thread() -> None:
    seen = []
    with kgfast.unchecked():
        thread = threading.Thread(target=lambda: seen.append(checks_values()))
        thread.start()
        thread.join()
    assert seen == [True]


@pytest.mark.slow
def test_a_compiled_function_obeys_the_block_that_it_is_called_in(rows) -> None:
    """Operators look when they run, not when they are compiled."""
    compiled = torch.compile(
        lambda q, c, i: ops.indexed_scores(q, c, i, "l1"), backend="eager", fullgraph=True
    )
    with kgfast.unchecked():
        assert torch.equal(compiled(*rows, PAST), compiled(*rows, FORCED))
    with pytest.raises(ValueError, match=r"index\[0, 2\] must be in"):
        compiled(*rows, PAST)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "given"),
    [
        (losses.nssa, (TRIPLES, NEGATIVES)),
        (losses.nssa, (TRIPLES, NEGATIVES[0])),
        (losses.margin, (TRIPLES, NEGATIVES)),
        (losses.bce, (TRIPLES,)),
        (losses.cross_entropy, (TRIPLES,)),
    ],
    ids=["nssa", "nssa of a pool", "margin", "bce", "cross entropy"],
)
@pytest.mark.parametrize("model", [kgfast.RotatE, kgfast.ComplEx])
def test_the_loss_of_a_model_is_one_graph(model, loss, given) -> None:
    own = model.init(N, 2, D, seed=0)
    torch.compiler.reset()
    compiled = torch.compile(lambda *given: loss(own, *given), backend="aot_eager", fullgraph=True)
    with kgfast.unchecked():
        found, expected = (
            [result.detach(), *torch.autograd.grad(result, own.parameters())]
            for result in (compiled(*given), loss(own, *given))
        )
    torch.testing.assert_close(found, expected)
