"""Losses over all candidates on every engine, against the reference in float64 and the oracle."""

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from kgfast.kernels.cpu import backend as cpu_backend
from kgfast.kernels.labels import Bce, CrossEntropy, LossChecks, LossNeed
from kgfast.kernels.reference import backend as reference_backend
from kgfast.kernels.scores import get_score
from support.engines import CAN_RUN, INTERPRETED, ISAS, Engine, assert_same, engines
from support.flat import operands_of, reference
from support.problems import SCORES
from support.sampled import assert_close, threads

ON_CPU = (*ISAS, "baseline")
ENGINES = (*ON_CPU, "triton")
SEEDS = st.integers(0, 2**31 - 1)
FAST = ("dot", "rotate")  # for interpreted kernels: with tensor cores, and without
SMALL = pytest.mark.usefixtures("small_passes")
EVERY_NEED = True, True, True


@pytest.fixture
def small_passes(monkeypatch) -> None:
    """Make several blocks of queries, chunks of candidates, and sums that are added on the way."""
    # tests of the reference split further
    whole = reference_backend.losses.plan._replace(scratch=1 << 20)
    small = cpu_backend.losses.plan._replace(scratch=7 * 64, queries=7)
    monkeypatch.setattr(reference_backend.losses, "plan", whole)
    monkeypatch.setattr(cpu_backend.losses, "plan", small)
    if CAN_RUN:
        from kgfast.kernels.triton import loss_tiles
        from kgfast.kernels.triton import losses as triton_losses

        monkeypatch.setattr(loss_tiles, "CHUNK_BYTES", 4 * 17 * 35)
        monkeypatch.setattr(loss_tiles, "QUERY_BYTES", 0)
        monkeypatch.setattr(triton_losses, "SUM_BYTES", 4 * 3 * 17)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def loss_problem(score: str, dtype: torch.dtype = torch.float32) -> tuple:
    """Draw 17 queries, 70 candidates with a bias, and labels, some of which occur twice."""
    facts = get_score(score)
    queries, table = normal(0, 17, 3 * facts.planes), normal(1, 70, 3 * facts.planes).to(dtype)
    queries[0] = table[-1].float()
    if facts.is_rscf:
        queries = torch.cat([queries, 1 + 0.1 * normal(5, *queries.shape)], 1)
    generator = torch.Generator().manual_seed(6)
    lengths = torch.randint(1, 4, (17,), generator=generator)
    lengths[3] = 9  # more than the six drawn
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    indices = torch.randint(70, (int(indptr[-1]),), generator=generator)
    first = int(indptr[3])
    indices[first : first + 9] = torch.tensor([64, 0, 63, 69, 0, 5, 64, 0, 2])
    return queries, table, normal(3, 70), indptr, indices


def exact(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.double()


def check_bce(engine: Engine, grad: Tensor, operands: tuple, *labels) -> list[Tensor | None]:
    """Hold rows, sums of scores and gradients against the reference; return the gradients."""
    inputs = *map(exact, operands), *labels
    found, expected = engine.bce(*operands, *labels), reference.bce(*inputs)
    assert found[0].dtype == torch.float32
    made = engine.bce_backward(grad, *operands, *labels)
    of_reference = reference.bce_backward(grad.double(), *inputs)
    for got, right in zip((*found, *made), (*expected, *of_reference), strict=True):
        assert (got is None) == (right is None)
        if right is not None:
            assert_close(got, right)
    return made


def check_cross_entropy(engine: Engine, grad: Tensor, operands: tuple, *rest, need=EVERY_NEED):
    inputs = *map(exact, operands), *rest
    found, expected = engine.cross_entropy(*operands, *rest), reference.cross_entropy(*inputs)
    for got, right in zip(found, expected, strict=True):
        assert_close(got, right)
    made = engine.cross_entropy_backward(grad, found[1], *operands, *rest, need)
    of_reference = reference.cross_entropy_backward(grad.double(), expected[1], *inputs, need=need)
    for got, right, like in zip(made, of_reference, operands, strict=True):
        assert (got is None) == (right is None)
        if right is not None:
            assert got.dtype == like.dtype
            assert_close(got, right)


@SMALL
@engines(*ENGINES, scores=SCORES, quick=FAST)
def test_bce(engine, score):
    queries, table, bias, *labels = loss_problem(score)
    check_bce(engine, normal(4, 17), (queries, table, bias), *labels, 0.9, 0.01, score)


@SMALL
@engines(*ENGINES, scores=SCORES, quick=FAST)
def test_cross_entropy(engine, score):
    *operands, _, indices = loss_problem(score, torch.bfloat16)
    check_cross_entropy(engine, normal(4, 17), (*operands,), indices[-17:], 0.1, score)


def everything(engine: Engine, score: str, problem: tuple) -> list[Tensor]:
    """Make totals, rows and gradients of both losses."""
    queries, table, bias, indptr, indices = problem
    operands, targets = (queries, table, bias), indices[-len(queries) :]
    grad = normal(4, len(queries))
    labels = indptr, indices, 0.9, 0.01, score
    total = engine.bce_total(*operands, *labels, divisor=3.0)
    softmax = engine.cross_entropy(*operands, targets, 0.1, score)
    back = engine.cross_entropy_backward(grad, softmax[1], *operands, targets, 0.1, score)
    rows = engine.bce(*operands, *labels), engine.bce_backward(grad, *operands, *labels)
    return [total[0], total[1], *total[2], *softmax, *back, *rows[0], *rows[1]]


@engines("reference", *ON_CPU, scores=SCORES)
def test_bits_do_not_depend_on_threads(engine, score):
    table = normal(1, 500, 12).bfloat16()
    indices = torch.arange(20)[:, None] * torch.tensor([1, 0, 1]) + torch.tensor([0, 499, 0])
    problem = normal(0, 20, 12), table, normal(2, 500), 3 * torch.arange(21), indices.flatten()
    whole = everything(engine, score, problem)
    for count in (1, 5):
        with threads(count):
            assert_same(everything(engine, score, problem), whole)


@pytest.mark.skipif(not INTERPRETED, reason="a GPU orders programs as it likes")
@SMALL
@engines("triton", scores=FAST, quick=("dot",))
def test_bits_do_not_depend_on_the_order_of_programs(engine, score):
    from support.interpreter import shuffled_programs

    made = everything(engine, score, loss_problem(score))
    with shuffled_programs(7):
        assert_same(everything(engine, score, loss_problem(score)), made)


@SMALL
@engines(*ENGINES, quick=True)
@pytest.mark.parametrize("shift", [-30.0, 0.0, 30.0])
def test_small_and_large_scores_keep_their_digits(engine, shift):
    """A softplus of 1e-13 is no zero, a sigmoid no one."""
    queries, table, _, *labels = loss_problem("dot")
    operands = queries, table, torch.full((1,), shift)
    check_bce(engine, torch.ones(17), operands, *labels, float(shift >= 0), 0.0, "dot")
    operands = queries, table, torch.full((70,), 3 * shift)
    check_cross_entropy(engine, torch.ones(17), operands, labels[1][-17:], 0.1, "dot")


@engines("triton", scores=["dot", "l1"], quick=True)
def test_a_chunk_may_be_narrower_than_its_tile(engine, score, monkeypatch):
    whole = everything(engine, score, loss_problem(score))
    monkeypatch.setattr("kgfast.kernels.triton.loss_tiles.CHUNK_BYTES", 4 * 17 * 20)
    assert_close(everything(engine, score, loss_problem(score))[0], whole[0])


@SMALL
@engines(*ENGINES, quick=True)
def test_a_mask_leaves_candidates_out(engine):
    """Whole tiles of them, too."""
    queries, table, bias, *_ = loss_problem("rotate")
    bias[:64] = -torch.inf
    targets = 65 + torch.arange(17) % 5
    labels = torch.arange(18), targets, 1.0, 0.0, "rotate"
    made = engine.bce_backward(torch.ones(17), queries, table, bias, *labels)
    inputs = exact(queries), exact(table), exact(bias)
    expected = reference.bce_backward(torch.ones(17).double(), *inputs, *labels)
    for got, right in zip(made, expected, strict=True):
        assert_close(got, right)
    assert not made[1][:64].any()
    found = engine.cross_entropy(queries, table, bias, targets, 0.0, "rotate")
    expected = reference.cross_entropy(*inputs, targets, 0.0, "rotate")
    for got, right in zip(found[:2], expected[:2], strict=True):
        assert_close(got, right)


WRONG_WITH_A_MASK = {  # functions of a table, its bias, the targets
    "a label of all candidates": lambda c, bias, targets: None,
    "a target": lambda c, bias, targets: targets[5:6].fill_(3),
    "a NaN among biases": lambda c, bias, targets: bias[66:67].fill_(torch.nan),
    "an infinity among biases": lambda c, bias, targets: bias[66:67].fill_(torch.inf),
    "a NaN that is left out": lambda c, bias, targets: c[7].fill_(torch.nan),
    "an infinity that is left out": lambda c, bias, targets: c[7].fill_(torch.inf),
}


@SMALL
@engines("triton", scores=FAST, quick=("dot",))
@pytest.mark.parametrize("wrong", [None, *WRONG_WITH_A_MASK])
def test_the_host_looks_closer_for_what_is_wrong_alone(engine, score, wrong):
    """Not for a mask; for a NaN beside one, also in a row that the mask leaves out."""
    queries, table, bias, *_ = loss_problem(score)
    bias[:64] = -torch.inf
    targets = 65 + torch.arange(17) % 5
    if wrong is not None:
        WRONG_WITH_A_MASK[wrong](table, bias, targets)
    every = 0.1 if wrong == "a label of all candidates" else 0.0
    operands, indptr, targets = engine.there(((queries, table, bias), torch.arange(18), targets))
    labels = Bce(indptr, targets, 1.0, every)
    looked: list[str] = []
    checks = LossChecks(lambda: looked.append("labels"), lambda sums: looked.append("scores"))
    problem = operands_of(*operands[:2], score, operands[2])
    backend = engine.flat.backend.losses
    for look in (
        lambda: backend.value(problem, labels, checks),
        lambda: backend.value_and_gradients(problem, labels, 2.0, LossNeed(*EVERY_NEED), checks),
        lambda: backend.value(problem, CrossEntropy(targets, every), checks),
    ):
        looked.clear()
        look()
        assert looked == ([] if wrong is None else ["labels", "scores"])


@SMALL
@engines(*ENGINES, quick=True)
def test_operands_of_any_strides(engine):
    queries, table = normal(0, 9, 6)[::3, 1:], normal(1, 5, 31).T  # misaligned, and columns
    targets = torch.tensor([3, 30, 0])
    check_cross_entropy(
        engine, normal(4, 3), (queries, table, None), targets, 0.1, "dot", need=(True, True, False)
    )


@SMALL
@engines(*ENGINES, scores=["dot", "l1"], quick=True)
@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_a_gradient_is_the_same_alone(engine, score, wanted):
    *operands, _, indices = loss_problem(score)
    given = *operands, indices[-17:], 0.0, score
    made = torch.ones(17), engine.cross_entropy(*given)[1], *given
    need = [place == wanted for place in range(3)]
    alone = engine.cross_entropy_backward(*made, need)
    assert [part is not None for part in alone] == need
    assert_close(alone[wanted], engine.cross_entropy_backward(*made)[wanted].double())


@engines(*ENGINES, quick=True)
@pytest.mark.parametrize(("queries", "others"), [(0, 3), (0, 0)])
def test_no_pairs(engine, queries, others):
    operands = torch.randn(queries, 4), torch.randn(others, 4), None
    indptr = torch.zeros(queries + 1, dtype=torch.int64)
    labels = indptr, indptr[:0], 1.0, 0.0, "rotate"
    total, linear, gradients = engine.bce_total(*operands, *labels, divisor=2.0)
    assert float(total) == 0
    assert linear.shape == (0,)
    for made, like in zip(gradients, (*operands[:2], operands[1][:, 0]), strict=True):
        assert torch.equal(made, torch.zeros_like(like))
    assert engine.cross_entropy(*operands, indptr[:0], 0.0, "rotate")[0].shape == (0,)


@engines("triton", quick=True)
@pytest.mark.parametrize("factor", [1.0, -2.5])
def test_gradients_are_scaled_in_place(engine, factor):
    given = [normal(0, 70, 91), normal(1, 0, 3), normal(2, 3)]
    values = engine.there([it.clone() for it in given])
    engine.flat.backend.losses.scale(values, engine.there(torch.tensor(factor)))
    assert all(torch.equal(x.cpu(), factor * y) for x, y in zip(values, given, strict=True))
