"""Tables under torch.nn.utils.parametrize: the ranks, losses and gradients of what they come to."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import kgfast
from kgfast import MED, RSCF, ComplEx, ConvE, DistMult, Reciprocal, RotatE, losses
from support.ranked_models import random_triples

N, R, DIM, SCALE = 20, 3, 8, 1.5
TRIPLES = random_triples(9, N, R)
NEGATIVES = torch.randint(N, (9, 4), generator=torch.Generator().manual_seed(1))


class Scaled(nn.Module):
    def forward(self, table):
        return SCALE * table


def parametrized(model, name):
    parametrize.register_parametrization(model, name, Scaled())
    return model


def plain(model, name):
    with torch.no_grad():
        getattr(model, name).mul_(SCALE)
    return model


TABLES = ("entity", "relation")
MODELS = {
    "plain": (TABLES, lambda of, name: of(RotatE.init(N, R, DIM, seed=0), name)),
    "rscf": (TABLES, lambda of, name: RSCF(of(RotatE.init(N, R, DIM, seed=0), name), seed=1)),
    "rscf of products": (
        TABLES,
        lambda of, name: RSCF(of(DistMult.init(N, R, DIM, seed=0), name), False, seed=1),
    ),
    "filters": (
        ("A1", "A3"),
        lambda of, name: of(RSCF(RotatE.init(N, R, DIM, seed=0), seed=1), name),
    ),
    "med": (TABLES, lambda of, name: MED(of(RotatE.init(N, R, DIM, seed=0), name), [4, DIM])),
    "split": (
        TABLES,
        lambda of, name: MED(of(RotatE.init(N, R, DIM, seed=0), name), [4, DIM], crop="split"),
    ),
    "split filters": (
        ("A1", "A2"),
        lambda of, name: MED(
            of(RSCF(RotatE.init(N, R, DIM, seed=0), seed=1), name), [4, DIM], crop="split"
        ),
    ),
    "reciprocal": (
        TABLES,
        lambda of, name: Reciprocal(of(ComplEx.init(N, 2 * R, DIM, seed=0), name)),
    ),
    "conve": (
        TABLES,
        lambda of, name: of(ConvE.init(N, R, 16, embedding_height=4, seed=0), name).eval(),
    ),
}
CASES = [(model, name) for model, (names, _) in MODELS.items() for name in names]


@pytest.mark.parametrize(("model", "name"), CASES)
def test_ranks_and_losses_are_those_of_the_values(model, name):
    _, make = MODELS[model]
    own, other = make(parametrized, name), make(plain, name)
    dims = getattr(own, "dims", None)
    counts = []
    for one in (own, other):
        ranks = kgfast.rank(one, TRIPLES, dims=dims)
        found = ranks.values() if isinstance(ranks, dict) else [ranks]
        counts.append(torch.stack([it.greater for it in found]))
    assert torch.equal(*counts)
    best = [kgfast.topk(it, heads=[0, 1], relations=2, k=3).scores for it in (own, other)]
    assert torch.equal(*best)

    def loss(one):
        if model == "conve":
            return losses.bce(one, TRIPLES)
        sampled = losses.med if dims else losses.nssa
        return sampled(one, TRIPLES, NEGATIVES) + losses.regularizers.l2(one, TRIPLES)

    values = [loss(it) for it in (own, other)]
    assert torch.equal(*(it.detach() for it in values))
    for value in values:
        value.backward()
    wanted = {key: it.grad for key, it in other.named_parameters()}
    for key, it in own.named_parameters():
        path = key.replace("parametrizations.", "").removesuffix(".original")
        factor = 1.0 if path == key else SCALE
        torch.testing.assert_close(it.grad, factor * wanted[path])


def test_a_copy_is_a_model_of_its_own():
    model = parametrized(RotatE.init(N, R, DIM, seed=0), "entity")
    rows = torch.randn(3, 2 * DIM)
    local = model.with_entity(rows)
    assert type(local) is RotatE
    assert local.entity is rows
    assert parametrize.is_parametrized(model, "entity")
    assert model.with_relation(rows[:, :DIM]).entity.requires_grad


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("negatives", [NEGATIVES, NEGATIVES[0]], ids=["lists", "pool"])
def test_rows_that_are_computed_keep_their_biases(monkeypatch, negatives, waits):
    """Also where the host would wait for the number of distinct rows."""
    monkeypatch.setattr("kgfast.losses.sampled.ops.waits_for", lambda device: waits)
    _, make = MODELS["conve"]
    own, other = make(parametrized, "entity"), make(plain, "entity")
    for one in (own, other):
        with torch.no_grad():
            one.bias.copy_(torch.arange(float(N)))
        losses.nssa(one, TRIPLES, negatives, sparse=True).backward()
    assert other.bias.grad.any()
    torch.testing.assert_close(own.bias.grad, other.bias.grad)
    of_rows = own.parametrizations["entity"].original.grad.to_dense()
    torch.testing.assert_close(of_rows, SCALE * other.entity.grad.to_dense())
