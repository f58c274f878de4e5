"""PyG's own ``test`` and ours on the same models: its three numbers, and then with a filter."""

import pytest
import torch

import kgfast

kge = pytest.importorskip("torch_geometric.nn.kge")

from kgfast.adapters.pyg import from_pyg  # noqa: E402
from kgfast.adapters.pyg import test as tested  # noqa: E402

NODES, RELATIONS, DIM = 60, 4, 8
MODELS = {
    "transe": (kge.TransE, {"p_norm": 1.0}),
    "transe l2": (kge.TransE, {"p_norm": 2.0}),
    "transe l3": (kge.TransE, {"p_norm": 3.0}),
    "distmult": (kge.DistMult, {}),
    "complex": (kge.ComplEx, {}),
    "rotate": (kge.RotatE, {"margin": 9.0}),
}
KINDS = {"transe l3": kgfast.BlockScorer, "rotate": kgfast.RotatE, "complex": kgfast.ComplEx}


def made(name):
    torch.manual_seed(0)
    kind, options = MODELS[name]
    model = kind(NODES, RELATIONS, DIM, **options)
    with torch.no_grad():  # nodes that are not normalised, relations that are no initialiser's
        for parameter in model.parameters():
            parameter.mul_(1.7).add_(0.01)
    return model


def triples(count=25, seed=0):
    generator = torch.Generator().manual_seed(seed)
    limits = torch.tensor([NODES, RELATIONS, NODES])
    return (torch.rand(count, 3, generator=generator) * limits).long()


@pytest.mark.parametrize("name", MODELS)
def test_the_three_numbers_of_its_own_test(name):
    model, hrt = made(name), triples().T
    theirs = model.test(*hrt, batch_size=20, k=3, log=False)
    found = tested(model, *hrt, batch_size=20, k=3, log=False)
    assert found == pytest.approx(theirs, rel=1e-6)
    assert type(from_pyg(model)) is KINDS.get(name, type(from_pyg(model)))


def test_known_tails_are_no_candidates():
    model, hrt = made("transe"), triples()
    known = triples(400, seed=1)
    found = tested(model, *hrt.T, 20, known=kgfast.KnownTriples(hrt, known), log=False)
    places, every = [], {tuple(it) for it in [*hrt.tolist(), *known.tolist()]}
    for h, r, t in hrt.tolist():
        others = [n for n in range(NODES) if n != t and (h, r, n) not in every]
        tails = torch.tensor([t, *others])
        scores = model(torch.full_like(tails, h), torch.full_like(tails, r), tails)
        places.append(int((scores[1:] > scores[0]).sum()))
    places = torch.tensor(places).double()
    assert found[0] == pytest.approx(float(places.mean()))
    assert found[1] == pytest.approx(float((1 / (1 + places)).mean()))
    assert found[0] < tested(model, *hrt.T, 20, log=False)[0]


class Doubled(kge.DistMult):
    def forward(self, head_index, rel_type, tail_index):
        return -2 * super().forward(head_index, rel_type, tail_index)


def test_a_model_of_ones_own_is_scored_by_its_forward():
    torch.manual_seed(0)
    model = Doubled(NODES, RELATIONS, DIM)
    hrt = triples().T
    assert type(from_pyg(model)) is kgfast.BlockScorer
    theirs = model.test(*hrt, batch_size=20, log=False)
    assert tested(model, *hrt, 20, log=False) == pytest.approx(theirs, rel=1e-6)


def test_what_does_not_fit_is_named(monkeypatch):
    with pytest.raises(TypeError, match=r"must be a torch_geometric.nn.kge.KGEModel; got Linear"):
        from_pyg(torch.nn.Linear(1, 1))
    with pytest.raises(ValueError, match="head_index is empty"):
        tested(made("transe"), *triples(0).T, 20, log=False)
    monkeypatch.setattr(kge.RotatE, "forward", lambda self, *hrt: kge.DistMult.forward(self, *hrt))
    with pytest.raises(ValueError, match="RotatE of PyG: kgfast scores"):
        from_pyg(made("rotate"))


HEAD, RELATION, TAIL = triples().T
BAD = {
    "short": ({"rel_type": RELATION[:3]}, "rel_type must have one id for each of 25 triples, as"),
    "None": ({"tail_index": None}, "tail_index must be ids of one axis; got None"),
    "floats": ({"rel_type": RELATION.double()}, "rel_type must be integers, got dtype torch.float"),
    "out of range": ({"head_index": HEAD + NODES}, "head .* must be in 0..59"),
    "k": ({"k": "3"}, "k must be an int; got '3'"),
}


@pytest.mark.parametrize("name", BAD)
def test_ids_that_do_not_fit_are_named(name):
    change, message = BAD[name]
    given = {"head_index": HEAD, "rel_type": RELATION, "tail_index": TAIL} | change
    with pytest.raises((ValueError, TypeError), match=message):
        tested(made("transe"), **given, batch_size=20, log=False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_by_pyg(dtype):
    model = made("rotate").to(dtype)
    with pytest.raises(
        ValueError, match=rf"computes in {dtype} with the rounding of PyG, .* convert model.float"
    ):
        from_pyg(model)
    assert type(from_pyg(model.float())) is kgfast.RotatE
