"""``test_step`` in place of the official code's, on a model with its members and its equations."""

import math
from argparse import Namespace

import pytest
import torch

import kgfast
from kgfast.adapters.official import from_official, test_step
from support.official_scores import score

ENTITIES, RELATIONS, DIM, GAMMA = 40, 3, 6, 9.0
SINGLE = ("pRotatE", "TransE", "DistMult")
WIDTHS = {"RotatE": (2, 1), "ComplEx": (2, 2), **dict.fromkeys(SINGLE, (1, 1))}
ARGS = Namespace(nentity=ENTITIES, nrelation=RELATIONS, countries=False)


class Official(torch.nn.Module):
    """The members of ``KGEModel`` that its ``forward`` and ``test_step`` use, and its equations."""

    def __init__(self, model_name, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.model_name, self.nentity, self.nrelation = model_name, ENTITIES, RELATIONS
        self.hidden_dim, limit = DIM, (GAMMA + 2) / DIM
        entity, relation = WIDTHS.get(model_name, (1, 1))
        self.gamma = torch.nn.Parameter(torch.tensor([GAMMA]), requires_grad=False)
        self.embedding_range = torch.nn.Parameter(torch.tensor([limit]), requires_grad=False)
        tables = (torch.empty(ENTITIES, entity * DIM), torch.empty(RELATIONS, relation * DIM))
        self.entity_embedding, self.relation_embedding = (
            torch.nn.Parameter(table.uniform_(-limit, limit)) for table in tables
        )
        self.modulus = torch.nn.Parameter(torch.tensor([[limit / 2]]))

    def forward(self, sample, mode="single"):
        if mode == "single":
            h, r, t = (sample[:, i : i + 1] for i in range(3))
        else:
            positive, candidates = sample
            h, r, t = (positive[:, i : i + 1] for i in range(3))
            h, t = (candidates, t) if mode == "head-batch" else (h, candidates)
        head, tail = self.entity_embedding[h], self.entity_embedding[t]
        return self.equation(head, self.relation_embedding[r], tail)

    def equation(self, head, relation, tail):
        if self.model_name == "pRotatE":
            angles = (head + relation - tail) * (math.pi / self.embedding_range)
            return self.gamma - angles.sin().abs().sum(-1) * self.modulus
        name = "TransE_l1" if self.model_name == "TransE" else self.model_name
        return score(name, head, relation, tail, self.gamma, self.embedding_range)


class Cubed(Official):
    """Somebody's own model in that code."""

    def equation(self, head, relation, tail):
        return -((head + relation - tail) ** 3).abs().sum(-1)


def triples(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    limits = torch.tensor([ENTITIES, RELATIONS, ENTITIES])
    return [
        tuple(it) for it in (torch.rand(count, 3, generator=generator) * limits).long().tolist()
    ]


TEST, TRUE = triples(30), triples(30) + triples(300, seed=1)


def obvious(model, test, true):
    """Return the five numbers, entity by entity, in float64."""
    model, known, logs = model.double(), set(true), []
    for triple in test:
        for place in (0, 2):
            others = [
                (*triple[:place], n, *triple[place + 1 :])
                for n in range(ENTITIES)
                if n != triple[place]
            ]
            scores = model(torch.tensor([triple, *[it for it in others if it not in known]]))[:, 0]
            logs.append(1 + int((scores[1:] > scores[0]).sum()))
    ranks = torch.tensor(logs).double()
    hits = {f"HITS@{k}": float((ranks <= k).double().mean()) for k in (1, 3, 10)}
    return {"MRR": float((1 / ranks).mean()), "MR": float(ranks.mean())} | hits


@pytest.mark.parametrize("name", WIDTHS)
def test_the_five_numbers(name):
    model = Official(name).train()
    found = test_step(model, TEST, TRUE, ARGS)
    assert not model.training
    assert list(found) == ["MRR", "MR", "HITS@1", "HITS@3", "HITS@10"]
    assert found == pytest.approx(obvious(Official(name), TEST, TRUE), abs=1e-12)


def test_a_model_of_its_own_is_scored_by_its_forward():
    model = Cubed("Cubed")
    assert type(from_official(model)) is kgfast.BlockScorer
    assert test_step(model, TEST, TRUE, ARGS) == pytest.approx(obvious(Cubed("x"), TEST, TRUE))


def changed(gamma):
    model = Official("RotatE")
    model.gamma = torch.nn.Parameter(torch.tensor([gamma]))
    return model


PLAIN = Official("TransE")


@pytest.mark.parametrize(
    ("model", "test", "true", "args", "error", "message"),
    [
        (torch.nn.Linear(1, 1), TEST, TRUE, ARGS, TypeError, "Linear has no model_name, nentity"),
        (Cubed("TransE"), TEST, TRUE, ARGS, ValueError, r"TransE of the .*: kgfast scores .* not"),
        (changed(gamma=8.0), TEST, TRUE, ARGS, ValueError, "embedding_range must be .gamma"),
        (PLAIN, TEST, TRUE, Namespace(nentity=7), ValueError, "args.nentity is 7, but the .* 40"),
        (PLAIN, TEST, TRUE, Namespace(countries=True), ValueError, "AUC-PR"),
        (PLAIN, [], TRUE, ARGS, ValueError, "test_triples is empty"),
        (PLAIN, None, TRUE, ARGS, ValueError, "test_triples must be triples; got None"),
        (PLAIN, TEST, None, ARGS, ValueError, "all_true_triples must be triples; got None"),
        (PLAIN, [(0, 0, 40)], TRUE, ARGS, ValueError, r"tail 40 must be in 0..39"),
    ],
)
def test_what_does_not_fit_is_named(model, test, true, args, error, message):
    with pytest.raises(error, match=message):
        test_step(model, test, true, args)
