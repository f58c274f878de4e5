"""PyKEEN's evaluator and ours on the same trained models: the same ranks, counts and metrics."""

import copy
from functools import cache

import numpy as np
import pytest
import torch

import kgfast

pytest.importorskip("pykeen")

from pykeen import datasets
from pykeen.evaluation import LCWAEvaluationLoop, RankBasedEvaluator, evaluator_resolver
from pykeen.metrics import ranking
from pykeen.models import ERModel, model_resolver
from pykeen.nn.modules import DistMultInteraction
from pykeen.pipeline import pipeline

from kgfast.adapters import pykeen as adapter
from kgfast.adapters.affine import AffineModel
from kgfast.adapters.pykeen import KgfastEvaluator, from_pykeen

NATIVE = {
    "rotate": ("RotatE", {}),
    "transe l1": ("TransE", {"scoring_fct_norm": 1}),
    "transe l2": ("TransE", {"scoring_fct_norm": 2}),
    "transe squared": ("TransE", {"scoring_fct_norm": 2, "power_norm": True}),
    "distmult": ("DistMult", {}),
    "complex": ("ComplEx", {}),
}
AFFINE = ("RESCAL", "TuckER", "HolE", "CP", "QuatE", "SimplE", "ConvE")
ALSO_AFFINE = ("AutoSF", "DistMA")
IN_BLOCKS = ("TransH", "TransR", "TransD", "PairRE", "BoxE")
MODELS = {**NATIVE, **{name: (name, {}) for name in (*AFFINE, *ALSO_AFFINE, *IN_BLOCKS)}}
FAST = [
    *[(name, False) for name in (*NATIVE, "RESCAL", "TuckER", "HolE", "CP", "QuatE")],
    *[(name, True) for name in ("rotate", "SimplE", "ConvE")],
    *[(name, False) for name in ("TransH", "BoxE", "ConvE")],
]


@cache
def graph(name="Nations", inverse=False):
    return getattr(datasets, name)(create_inverse_triples=inverse)


def trained(name, inverse=False):
    """Return a PyKEEN model after a few steps: no values that only initialisers have."""
    return copy.deepcopy(_few_steps(name, inverse))


def _made(name, inverse, on):
    kind, options = MODELS[name]
    torch.manual_seed(0)
    return model_resolver.make(
        kind,
        triples_factory=graph(on, inverse).training,
        embedding_dim=16,
        random_seed=0,
        **options,
    )


@cache
def _few_steps(name, inverse):
    model = _made(name, inverse, "Nations")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    true = graph().training.mapped_triples[:256] * torch.tensor([1, 1 + inverse, 1])
    false = torch.stack([*true[:, :2].T, true[:, 2].roll(1)], 1)
    for _ in range(3):
        optimizer.zero_grad()
        margins = model.score_hrt(false) - model.score_hrt(true)
        torch.nn.functional.softplus(margins).mean().backward()
        optimizer.step()
        model.post_parameter_update()
    return model


def arguments(on="Nations"):
    data = graph(on)
    return {
        "mapped_triples": data.testing.mapped_triples,
        "additional_filter_triples": [data.training.mapped_triples, data.validation.mapped_triples],
        "use_tqdm": False,
    }


def assert_equal_ranks(model, on="Nations"):
    theirs = RankBasedEvaluator(clear_on_finalize=False)
    ours = KgfastEvaluator(clear_on_finalize=False)
    expected = theirs.evaluate(model, batch_size=128, **arguments(on))
    found = ours.evaluate(model, **arguments(on))
    for mine, own in ((ours.ranks, theirs.ranks), (ours.num_candidates, theirs.num_candidates)):
        for key, parts in own.items():
            want, got = np.concatenate(parts), np.concatenate(mine[key])
            assert want.dtype == got.dtype
            assert np.array_equal(want, got)
    assert found.to_flat_dict() == expected.to_flat_dict()


@pytest.mark.parametrize(("name", "inverse"), FAST)
def test_the_same_ranks(name, inverse):
    assert_equal_ranks(trained(name, inverse))


@pytest.mark.parametrize(
    "name", ["transe l1", *(pytest.param(it, marks=pytest.mark.slow) for it in NATIVE)]
)
def test_in_float64_no_rank_differs(name):
    assert_equal_ranks(_made(name, False, "UMLS").double(), "UMLS")


def test_kinds_of_models():
    assert type(from_pykeen(trained("rotate"))) is kgfast.RotatE
    assert type(from_pykeen(trained("transe squared"))) is kgfast.TransE
    assert type(from_pykeen(trained("RESCAL"))) is kgfast.RESCAL
    assert type(from_pykeen(trained("TuckER"))) is AffineModel
    assert type(from_pykeen(trained("RESCAL", True))) is kgfast.Reciprocal
    assert type(from_pykeen(trained("TransH"))) is kgfast.BlockScorer
    for inverse in (False, True):
        converted = from_pykeen(trained("complex", inverse))
        assert converted.num_relations == graph().num_relations
    model = trained("distmult")
    weight = model.entity_representations[0]._embeddings.weight
    assert from_pykeen(model).entity.data_ptr() == weight.data_ptr()  # read in place


def test_modes_and_gradients_stay_as_they_were():
    model = trained("TuckER").train()
    model.interaction.eval()
    modes = [module.training for module in model.modules()]
    from_pykeen(model)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_wrong_conversion_is_not_silent(monkeypatch):
    kind = next(it for it in adapter._NATIVE if it.__name__ == "RotatEInteraction")
    for wrong in (
        lambda _, e, r: adapter._rotate(e, r, norm="modulus"),  # another function
        lambda _, e, r: adapter._rotate(e, r.conj().resolve_conj()),  # turns back
    ):
        monkeypatch.setitem(adapter._NATIVE, kind, wrong)
        with pytest.raises(ValueError, match=r"RotatE of PyKEEN: kgfast scores .*, not "):
            from_pykeen(trained("rotate"))


def test_pipelines_find_it_by_name_and_stop_early():
    assert evaluator_resolver.lookup("kgfast") is KgfastEvaluator
    options = dict(
        dataset="nations",
        model="distmult",
        model_kwargs={"embedding_dim": 8},
        training_kwargs={"num_epochs": 2, "use_tqdm": False, "batch_size": 1024},
        evaluation_kwargs={"use_tqdm": False},
        stopper="early",
        stopper_kwargs={"frequency": 1, "patience": 5},
        random_seed=0,
        device="cpu",
    )
    result = pipeline(evaluator="kgfast", **options)
    model = result.model
    assert len(result.stopper.results) == 2
    theirs = RankBasedEvaluator().evaluate(model, **arguments())
    assert result.metric_results.to_flat_dict() == theirs.to_flat_dict()


def test_scores_that_are_brought_are_processed_as_pykeen_does():
    model, results = trained("distmult"), []
    for kind in (KgfastEvaluator, RankBasedEvaluator):
        loop = LCWAEvaluationLoop(
            model=model,
            triples_factory=graph().testing,
            evaluator=kind(),
            additional_filter_triples=arguments()["additional_filter_triples"],
        )
        results.append(loop.evaluate(batch_size=64, use_tqdm=False).to_flat_dict())
    assert results[0] == results[1]


def test_one_side_and_raw_ranks():
    model, data = trained("distmult"), arguments()
    evaluator = KgfastEvaluator(filtered=False, clear_on_finalize=False)
    evaluator.evaluate(model, targets=("tail",), **data)
    assert {side for side, _ in evaluator.ranks} == {"tail"}
    expected = kgfast.rank(from_pykeen(model), data["mapped_triples"], sides=("tail",))
    found = np.concatenate(evaluator.ranks["tail", "optimistic"])
    assert np.array_equal(found, expected.optimistic[:, 0].numpy())


@pytest.mark.parametrize("candidates", [None, [3, 5, 7, 11]])
def test_metrics_set_against_chance(candidates):
    model, triples = from_pykeen(trained("distmult")), graph().testing.mapped_triples
    known = kgfast.KnownTriples(graph().training.mapped_triples)
    ranks = kgfast.rank(model, triples, known=known, candidate_ids=candidates)
    arrays = ranks.realistic.flatten().numpy(), ranks.num_candidates.flatten().numpy()
    theirs = {
        "amr": ranking.AdjustedArithmeticMeanRank(),
        "amri": ranking.AdjustedArithmeticMeanRankIndex(),
        "amrr": ranking.AdjustedInverseHarmonicMeanRank(),
        "z_mr": ranking.ZArithmeticMeanRank(),
        "z_mrr": ranking.ZInverseHarmonicMeanRank(),
        **{f"ahits@{k}": ranking.AdjustedHitsAtK(k=k) for k in (1, 2)},
        **{f"z_hits@{k}": ranking.ZHitsAtK(k=k) for k in (1, 2)},
    }
    values = ranks.metrics(hits=(1, 2))
    for name, metric in theirs.items():
        assert values[name] == pytest.approx(metric(*arrays), rel=1e-9), name


class OfItsOwn(DistMultInteraction):
    def forward(self, h, r, t):
        return super().forward(h, r, t).abs()


def test_what_is_not_ranked_here_goes_to_pykeen_and_says_so(recwarn):
    own = ERModel(
        triples_factory=graph().training,
        interaction=OfItsOwn,
        entity_representations_kwargs={"shape": 8},
        relation_representations_kwargs={"shape": 8},
    )
    cases = [
        (own, {}, "OfItsOwn is none of PyKEEN's"),
        (trained("distmult"), {"restrict_entities_to": list(range(14))}, "restrict_entities_to"),
    ]
    for model, options, reason in cases:
        evaluator = KgfastEvaluator()
        recwarn.clear()
        results = evaluator.evaluate(model, **arguments(), **options)
        said = [str(it.message) for it in recwarn if "ranks this itself" in str(it.message)]
        assert len(said) == 1
        assert reason in said[0]
        theirs = RankBasedEvaluator().evaluate(model, **arguments(), **options)
        assert results.to_flat_dict() == theirs.to_flat_dict()
    with pytest.warns(UserWarning, match="relation"), pytest.raises(NotImplementedError):
        KgfastEvaluator().evaluate(own, targets=("relation",), **arguments())
    nothing = dict.fromkeys(("restrict_entities_to", "restrict_relations_to"))
    reason = KgfastEvaluator(mode="testing")._not_here({**nothing, "targets": ("head",)})
    assert reason == "inductive mode 'testing'"


def test_models_of_the_wrong_kind():
    with pytest.raises(TypeError, match=r"must be a pykeen.models.ERModel; got Linear"):
        from_pykeen(torch.nn.Linear(2, 2))

    class Scored(type(trained("distmult"))):
        def score_t(self, *args, **kwargs):
            return -super().score_t(*args, **kwargs)

    model = Scored(triples_factory=graph().training, embedding_dim=8)
    with pytest.raises(TypeError, match=r"Scored has a score_t of its own: rank it through"):
        from_pykeen(model)


def test_triples_of_another_graph():
    other = arguments() | {"mapped_triples": torch.tensor([[0, 0, 99]])}
    with pytest.raises(ValueError, match=r"tail 99 must be in 0..13"):
        KgfastEvaluator().evaluate(trained("complex"), **other)


BAD = {
    "None": ({"mapped_triples": None}, "mapped_triples must be a tensor .* got NoneType"),
    "an array": ({"mapped_triples": np.zeros((3, 3), int)}, "mapped_triples must .* ndarray"),
    "two columns": ({"mapped_triples": torch.zeros(3, 2).long()}, r"mapped_triples .* \[3, 2\]"),
    "one triple": ({"mapped_triples": torch.zeros(3).long()}, r"mapped_triples must be .* \[3\]"),
    "floats": ({"mapped_triples": torch.zeros(3, 3)}, "mapped_triples must be integers, got dtype"),
    "none": ({"mapped_triples": torch.zeros(0, 3).long()}, "mapped_triples is empty"),
    "a filter": ({"additional_filter_triples": 3}, "additional_filter_triples must be .* got int"),
    "filters": ({"additional_filter_triples": [None]}, "additional_filter_triples .* got NoneType"),
}


@pytest.mark.parametrize("name", BAD)
def test_triples_that_do_not_fit_are_named(name):
    change, message = BAD[name]
    with pytest.raises((ValueError, TypeError), match=message):
        KgfastEvaluator().evaluate(trained("complex"), **arguments() | change)


def test_half_precision_is_rounded_by_pykeen():
    model = trained("transe l1").bfloat16()
    with pytest.raises(ValueError, match=r"computes in torch.bfloat16 with the rounding of PyKEEN"):
        from_pykeen(model)


def test_nan_is_an_error_unless_it_is_asked_to_be_the_worst():
    model = trained("distmult")
    with torch.no_grad():
        model.relation_representations[0]._embeddings.weight[3] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        KgfastEvaluator().evaluate(model, **arguments())
    result = KgfastEvaluator(nan="worst").evaluate(model, **arguments())
    assert 0 < result.get_metric("mrr") < 1
