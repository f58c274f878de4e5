"""RSCF and MED against dense arithmetic by the papers' formulas."""

import math
import weakref

import pytest
import torch

from fuzz.models import Drawn, score_of
from kgfast import MED, RSCF, KnownTriples, RotatE, losses, rank, topk
from kgfast.losses import sampled_scores
from kgfast.losses.med import med_of_scores
from kgfast.ops import use_backend
from support.wrapped_models import TRIPLES, D, N, R, base, wrapped


@pytest.fixture(autouse=True)
def reference():
    with use_backend("reference"):
        yield


def dense(model, rscf, dim, crop="prefix"):
    """Scores ``[T, N]`` of every tail of TRIPLES and of every head, without gamma."""
    outer, name = model if rscf is None else rscf, type(model).__name__.lower()
    drawn = Drawn(outer, name, rscf=rscf is not None, split=crop == "split")
    tables = {name.rpartition(".")[2]: it for name, it in outer.named_parameters()}
    found, gamma = {}, getattr(model, "gamma", 0.0)
    for side, place in (("tail", 2), ("head", 0)):
        triples = TRIPLES[:, None].repeat(1, N, 1)
        triples[..., place] = torch.arange(N)
        found[side] = score_of(drawn, tables, triples, side, dim) - gamma
    return found


KINDS = ["rotate", "transe l1", "transe l2", "distmult", "complex"]


@pytest.mark.parametrize(
    ("kind", "is_filtered"),
    [(kind, False) for kind in KINDS] + [(kind, True) for kind in KINDS[:3]],
)
@pytest.mark.parametrize("crop", ["prefix", "split"])
@pytest.mark.parametrize("dim", [3, D])
def test_scores_are_those_of_the_formula(kind, is_filtered, crop, dim):
    model, rscf = wrapped(kind, is_filtered)
    med = MED(rscf if is_filtered else model, [3, D], crop=crop)
    expected = dense(model, rscf, dim, crop)
    gamma = getattr(model, "gamma", 0.0)
    everyone = torch.arange(N).expand(len(TRIPLES), -1)
    for side, exact in expected.items():
        positive, negative = sampled_scores(med, TRIPLES, everyone, side, [dim])
        torch.testing.assert_close(negative[0], exact + gamma)
        own = TRIPLES[:, 2 if side == "tail" else 0, None]
        torch.testing.assert_close(positive[0], exact.gather(1, own)[:, 0] + gamma)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("crop", ["prefix", "split"])
def test_ranks_of_sub_models(kind, crop):
    model = base(kind)
    med = MED(model, [3, 5, D], crop=crop)
    found = rank(med, TRIPLES, dims=med.dims)
    assert list(found) == [3, 5, D]
    for dim, ranks in found.items():
        for side, exact in dense(model, None, dim, crop).items():
            own = exact.gather(1, TRIPLES[:, 2 if side == "tail" else 0, None])
            near = (exact - own).abs() < 1e-12  # the target, and what rounding may move
            above = ((exact > own) & ~near).sum(1)
            counts = ranks.side(side)
            assert torch.equal(counts.optimistic[:, 0] - 1, above)


@pytest.mark.parametrize("crop", ["prefix", "split"])
@pytest.mark.parametrize("kind", KINDS)
def test_answers_of_sub_models(kind, crop):
    model, rscf = wrapped(kind, kind in KINDS[:3])
    med = MED(rscf or model, [3, D], crop=crop)
    for dim in (3, D):
        exact = dense(model, rscf, dim, crop)["tail"]
        found = topk(med, heads=TRIPLES[:, 0], relations=TRIPLES[:, 1], k=4, dims=dim)
        torch.testing.assert_close(found.scores, exact.sort(1, descending=True).values[:, :4])
    whole = topk(med, heads=TRIPLES[:, 0], relations=TRIPLES[:, 1], k=4)
    assert torch.equal(whole.ids, found.ids)


@pytest.mark.parametrize("kind", KINDS[:3])
def test_ranks_with_filters_equal_those_of_the_formula(kind):
    model, rscf = wrapped(kind)
    med = MED(rscf.float(), [3, D])
    known = KnownTriples(TRIPLES)
    found = rank(med, TRIPLES, dims=med.dims, known=known)
    alone = {dim: rank(med, TRIPLES, dims=dim, known=known) for dim in med.dims}
    for dim, ranks in found.items():
        assert torch.equal(ranks.optimistic, alone[dim].optimistic)
        exact = dense(model.double(), rscf.double(), dim)
        for side, scores in exact.items():
            own = scores.gather(1, TRIPLES[:, 2 if side == "tail" else 0, None])
            margin = (scores - own).abs()
            margin[margin == 0] = 1
            assert margin.min() > 1e-5, "the float32 operands could decide otherwise"
            raw = ranks.raw.side(side).optimistic[:, 0]
            assert torch.equal(raw - 1, (scores > own).sum(1))


def test_the_factor_is_made_once_and_only_one_is_held(monkeypatch):
    model = RSCF(RotatE.init(N, R, D, seed=0), seed=1)
    inner, alive, held = RSCF.candidates, [], []

    def candidates(self, *asked):
        held.append((*asked, sum(factor() is not None for factor in alive)))
        found = inner(self, *asked)
        alive.append(weakref.ref(found.factor))
        return found

    monkeypatch.setattr(RSCF, "candidates", candidates)
    rank(model, TRIPLES.repeat(20, 1), batch_size=8)
    assert held == [("head", 0), ("tail", 0)]
    held.clear()
    rank(MED(model, [2, D]), TRIPLES, dims=[2, D])
    assert [left for *_, left in held] == [0, 0, 0, 0]


@pytest.mark.parametrize("shared", [True, False])
def test_gradients_are_those_of_the_formula(shared):
    model, rscf = wrapped("rotate")
    everyone = torch.arange(N)
    ids = everyone if shared else everyone.expand(len(TRIPLES), -1)
    _, negative = sampled_scores(rscf, TRIPLES, ids, "head")
    exact = dense(model, rscf, D)["head"] + model.gamma
    grad = torch.randn_like(exact)
    parameters = [it for it in rscf.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad(negative, parameters, grad),
        torch.autograd.grad(exact, parameters, grad),
    )


@pytest.mark.parametrize("kind", ["rotate", "transe l1", "distmult"])
@pytest.mark.parametrize("dims", [[3, 5, D], [3, 5]])
@pytest.mark.parametrize("side", ["head", "tail"])
@pytest.mark.parametrize("crop", ["prefix", "split"])
def test_gradients_of_a_step_are_the_sum_over_crops(kind, dims, side, crop):
    model, rscf = wrapped(kind, kind != "distmult")
    med = MED(rscf or model, [3, 5, D], crop=crop)
    negatives = torch.arange(20).view(5, 4)

    def gradients(*parts):
        scores = [sampled_scores(med, TRIPLES, negatives, side, part) for part in parts]
        total = sum((p.sum() + n.square().sum()) for p, n in scores)
        return torch.autograd.grad(total, list(med.model.parameters()))

    together, one_by_one = gradients(dims), gradients(*([dim] for dim in dims))
    torch.testing.assert_close(together, one_by_one)
    assert all(it.abs().max() > 0 for it in together)


def test_rows_of_zeros_are_not_filtered():
    rscf = wrapped("rotate")[1]
    with torch.no_grad():
        rscf.entity[3] = 0.0
    for factor in (rscf.candidates("tail").factor, rscf.candidates("tail", 3).factor):
        assert bool((factor[3] == 1).all())
    with torch.no_grad():
        assert bool((rscf.candidates("head").factor[3] == 1).all())


def test_autocast_leaves_filters_alone():
    rscf = RSCF(RotatE.init(N, R, D, seed=0), seed=1)
    plain = rscf.queries(TRIPLES[:, 0], TRIPLES[:, 1], "tail")
    factor = rscf.candidates("tail").factor
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(rscf.queries(TRIPLES[:, 0], TRIPLES[:, 1], "tail"), plain)
        assert torch.equal(rscf.candidates("tail").factor, factor)


def huber(x):
    return torch.where(x.abs() <= 1, 0.5 * x * x, x.abs() - 0.5)


@pytest.mark.parametrize("loss_weight", ["exp", "sigmoid"])
def test_med_loss(loss_weight):
    generator = torch.Generator().manual_seed(3)
    positive = 2 + torch.rand(3, 4, generator=generator, dtype=torch.float64)
    negative = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    mask = torch.rand(4, 5, generator=generator) < 0.8
    w = tuple(torch.tensor(it, dtype=torch.float64) for it in (0.7, 1.3, 0.4))
    expected = 0.0
    for i, share in enumerate((0.25, 0.5, 1.0)):
        p, n = torch.full((4,), 0.25), torch.full((int(mask.sum()),), 1 / int(mask.sum()))
        if i:
            before, others = positive[i - 1], negative[i - 1][mask]
            logits = -w[0] * before
            p, n = logits.exp() / logits.exp().sum(), (w[1] * others).exp()
            n = n / n.sum()
            expected += huber(before - positive[i]).mean()
            expected += huber(others - negative[i][mask]).mean()
        improving = -(p * positive[i].sigmoid().log()).sum()
        improving -= (n * (-negative[i][mask]).sigmoid().log()).sum()
        weight = math.exp(w[2] * share)
        if loss_weight == "sigmoid":
            weight = 1 / (1 + math.exp(-w[2] * (share - 0.5)))
        expected += weight * improving
    found = med_of_scores(positive, negative, (0.25, 0.5, 1.0), w, loss_weight, mask)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("cast", ["double", "made"])
def test_a_loss_of_float64_tables_is_precise(cast):
    """The scales are numbers that float32 does not have, and so are their powers."""
    tables = [it.detach() for it in RotatE.init(N, R, D, seed=0).parameters()]
    if cast == "made":
        tables = [it.double() for it in tables]
    med = MED(RotatE(*tables), [2, D], scales=(0.7, 1.3, 0.4)).double()
    scales = [it.detach() for it in (med.w1, med.w2, med.w3)]
    if cast == "made":
        assert [it.item() for it in scales] == [0.7, 1.3, 0.4]
    ids = torch.randint(N, (len(TRIPLES), 6), generator=torch.Generator().manual_seed(0))
    positive, negative = sampled_scores(med, TRIPLES, ids, dims=med.dims)
    wanted = med_of_scores(positive, negative, (2 / D, 1.0), tuple(scales), "exp", None)
    found = losses.med(med, TRIPLES, ids)
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx(wanted.item(), rel=1e-12)


def test_weights_of_the_smaller_model_carry_no_gradient():
    positive = torch.randn(2, 4, requires_grad=True)
    negative = torch.zeros(2, 4, 3)
    one = torch.tensor(1.0)
    med_of_scores(positive, negative, (0.5, 1.0), (one, one, one), "exp", None).backward()
    with torch.no_grad():
        difference = positive[0] - positive[1]
        mutual = difference.clamp(-1, 1) / 4
        own = -math.exp(0.5) * (-positive[0]).sigmoid() / 4
    torch.testing.assert_close(positive.grad[0], mutual + own)


def test_sub_models_of_a_step_are_consecutive_and_scales_start_where_they_are_asked_to():
    med = MED(base("rotate"), [1, 2, 4, 8], 2, scales=(0, 0.5, -1.5), learnable=False)
    assert [it.item() for it in (med.w1, med.w2, med.w3)] == [0, 0.5, -1.5]
    assert {tuple(med.draw(number)) for number in range(20)} == {(1, 2), (2, 4), (4, 8)}
