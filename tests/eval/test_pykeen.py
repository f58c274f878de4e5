"""PyKEEN's own evaluator on its packaged graphs gives the same integers.

Its models are cast to float64, where its rounding errors (1e-16) cannot reorder distinct scores;
in float32 it may swap candidates whose scores it cannot tell apart, and only those.
"""

import pytest
import torch

import kgfast
from support.flat import canonical_scores

pykeen_datasets = pytest.importorskip("pykeen.datasets")

from pykeen.evaluation import RankBasedEvaluator  # noqa: E402  (after importorskip)
from pykeen.models import ComplEx, DistMult, RotatE, TransE  # noqa: E402

DIM = 16


def weights(model) -> tuple[torch.Tensor, torch.Tensor]:
    entity = model.entity_representations[0](indices=None).detach()
    relation = model.relation_representations[0](indices=None).detach()
    return tuple(
        torch.view_as_real(it).flatten(1) if it.is_complex() else it for it in (entity, relation)
    )


CASES = {
    "transe l1": (
        lambda factory: TransE(triples_factory=factory, embedding_dim=DIM, scoring_fct_norm=1),
        lambda entity, relation: kgfast.TransE(entity, relation, norm="l1"),
    ),
    "transe l2": (
        lambda factory: TransE(triples_factory=factory, embedding_dim=DIM, scoring_fct_norm=2),
        lambda entity, relation: kgfast.TransE(entity, relation, norm="l2"),
    ),
    "distmult": (
        lambda factory: DistMult(triples_factory=factory, embedding_dim=DIM),
        kgfast.DistMult,
    ),
    "complex": (
        lambda factory: ComplEx(triples_factory=factory, embedding_dim=DIM),
        lambda entity, relation: kgfast.ComplEx(entity, relation, layout="interleaved"),
    ),
    "rotate": (
        lambda factory: RotatE(triples_factory=factory, embedding_dim=DIM),
        lambda entity, relation: kgfast.RotatE(
            entity, relation, relation_format="complex", norm="l2", layout="interleaved"
        ),
    ),
}


@pytest.mark.parametrize("graph", ["Nations", "UMLS"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_same_integers(graph, case, dtype):
    dataset = getattr(pykeen_datasets, graph)()
    torch.manual_seed(0)
    make_theirs, make_ours = CASES[case]
    theirs = make_theirs(dataset.training).to(dtype).eval()
    train, valid, test = (
        factory.mapped_triples
        for factory in (dataset.training, dataset.validation, dataset.testing)
    )
    evaluator = RankBasedEvaluator(clear_on_finalize=False)
    evaluator.evaluate(
        theirs, test, batch_size=64, additional_filter_triples=[train, valid], use_tqdm=False
    )
    ours = make_ours(*weights(theirs))
    ranks = kgfast.rank(ours, test, known=kgfast.KnownTriples(train, valid, test))
    for side in ("head", "tail"):
        expected = torch.cat(
            [torch.as_tensor(part) for part in evaluator.ranks[side, "realistic"]]
        ).double()
        assert torch.equal(
            torch.cat([torch.as_tensor(it) for it in evaluator.num_candidates[side]]),
            ranks.side(side).num_candidates[:, 0],
        )
        counted = ranks.side(side).realistic[:, 0]
        differs = (counted != expected).nonzero()[:, 0]
        if dtype == torch.float64:
            assert not len(differs)
        for row in differs.tolist():
            assert has_near_tie(ours, test[row], side), f"{side} rank of triple {row}"


def has_near_tie(model, triple, side) -> bool:
    """Whether another candidate's exact score is within float32 rounding of the target's."""
    h, r, t = triple.tolist()
    anchor, target = (h, t) if side == "tail" else (t, h)
    query = model.queries(torch.tensor([anchor]), torch.tensor([r]), side)
    scores = canonical_scores(query, model.entity, model.score)
    gaps = (scores - scores[target]).abs()
    gaps[target] = torch.inf
    return bool(gaps.min() <= 1e-5 * scores[target].abs().clamp(min=1e-3))


def test_the_comparison_can_fail():
    """A model with another norm gets other ranks: the integers above are no accident."""
    dataset = pykeen_datasets.Nations()
    torch.manual_seed(0)
    theirs = TransE(triples_factory=dataset.training, embedding_dim=DIM, scoring_fct_norm=1)
    entity, relation = weights(theirs)
    test = dataset.testing.mapped_triples
    l1 = kgfast.rank(kgfast.TransE(entity, relation, norm="l1"), test)
    l2 = kgfast.rank(kgfast.TransE(entity, relation, norm="l2"), test)
    assert not torch.equal(l1.greater, l2.greater)
