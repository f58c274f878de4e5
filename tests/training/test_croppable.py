"""Training of sub-models: a row each at every evaluation, the same on resume, one pass a step."""

import json

import pytest
import torch

from kgfast import MED, RSCF, Ranks
from kgfast.extras.report.figures import curves
from kgfast.ops.dispatch import get_backend
from kgfast.training.logs import read_rows
from support.small_runs import NO_GAMMA, trainer_of

DIMS = [4, 8, 16]
MODELS = {
    "rotate": {"name": "rotate"},
    "filtered rotate": {"name": "rotate", "use_rscf": True},
    "filtered transe": {"name": "transe", "use_rscf": True},
    "complex": {"name": "complex", **NO_GAMMA},
}


def cropped(folder=None, *, model="rotate", steps=12, negatives="shared", med=None, lr=0.01):
    """Make a trainer of sub-models, two a step."""
    return trainer_of(
        folder,
        model=MODELS[model],
        med={"dims": DIMS, "submodels_per_step": 2} | (med or {}),
        optim={"lr": lr},
        train={"steps": steps, "eval_every": 4, "log_every": 2},
        data={"train_bs": 64, "neg_size": 16, "negatives": negatives},
    )


@pytest.mark.parametrize("negatives", ["shared", "per_row"])
@pytest.mark.parametrize("model", MODELS)
def test_every_parameter_trains(model, negatives):
    trainer = cropped(model=model, negatives=negatives)
    before = {name: it.clone() for name, it in trainer.model.state_dict().items()}
    trainer.fit()
    same = [
        name for name, it in trainer.model.state_dict().items() if torch.equal(it, before[name])
    ]
    assert same == []


def test_it_learns():
    result = cropped(steps=400, lr=0.1).fit()
    for dim in DIMS:
        assert result.test_of_submodels[str(dim)]["mrr"] > 0.15  # chance: 0.03
    assert result.test == result.test_of_submodels["16"]


def test_a_row_for_each_sub_model(tmp_path, capsys):
    trainer = cropped(tmp_path)
    trainer.progress = True
    result = trainer.fit()
    rows = [row for row in read_rows(tmp_path) if row.get("split") == "valid"]
    assert [(row["step"], row["dim"]) for row in rows] == [
        (step, dim) for step in (4, 8, 12) for dim in DIMS
    ]
    weights = [row["w3"] for row in read_rows(tmp_path) if "loss" in row]
    assert len(set(weights)) == 6
    shown = capsys.readouterr().err
    for dim in DIMS:
        assert shown.count(f"dim {dim:>4}  MRR ") == 3
    written = json.loads((tmp_path / "result.json").read_text())
    assert list(written["test_of_submodels"]) == ["4", "8", "16"]
    assert written["test_of_submodels"] == result.test_of_submodels
    assert "test, 4" in repr(result)
    found = trainer.evaluate("valid")
    assert [type(found[dim]) for dim in DIMS] == [Ranks] * 3
    pytest.importorskip("matplotlib")
    svg = curves(tmp_path)
    assert all(f"MRR, {dim}" in svg for dim in DIMS)


def test_plain_sub_models_come_from_one_pass(monkeypatch):
    asked, backend = [], get_backend("cpu")
    for name in ("scores", "rank_counts"):
        inner = getattr(backend, name)

        def watched(operands, *args, inner=inner, name=name, **kwargs):
            is_indexed = name == "scores" and args[:1] not in ((), (None,))
            asked.append((name, is_indexed, operands.dims))
            return inner(operands, *args, **kwargs)

        monkeypatch.setattr(backend, name, watched)
    cropped(steps=1, med={"submodels_per_step": 3}).fit()
    dims = tuple(DIMS)
    swept = [call for call in asked if call[0] == "scores"]
    assert swept == [("scores", True, dims), ("scores", False, dims)]
    assert {call for call in asked if call[0] == "rank_counts"} == {("rank_counts", False, dims)}


def test_the_model_is_what_the_config_says():
    scales = [0, 0.5, 2]
    med = {"crop": "split", "scales": scales, "learnable": False}
    model = cropped(model="filtered rotate", med=med).model
    assert isinstance(model, MED)
    assert isinstance(model.model, RSCF)
    assert (model.crop, model.dims, model.w1.requires_grad) == ("split", DIMS, False)
    assert [float(it) for it in (model.w1, model.w2, model.w3)] == scales
