"""RecBole's evaluation: its metrics from streamed scores, and its own way for other models."""

import logging
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kgfast.adapters.recbole import attach
from support.overlay import run_tests_with

USERS, ITEMS, DIM, K = 7, 40, 4, 6


class Facts(dict):
    def update_tensor(self, name, value):
        self[name] = torch.cat([self[name], value]) if name in self else value


class Model:
    """A recommender whose scores are a product, as most of RecBole's are."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.user = torch.randn(USERS, DIM, generator=generator)
        self.item = torch.randn(ITEMS, DIM, generator=generator)
        self.item[9] = self.item[5]

    def full_sort_predict(self, interaction):
        return torch.matmul(self.user[interaction.users], self.item.transpose(0, 1)).view(-1)


class Scaled(Model):
    def full_sort_predict(self, interaction):
        return super().full_sort_predict(interaction) / 2


class Written(Model):
    def full_sort_predict(self, interaction):
        scores = self.user[interaction.users] @ self.item.T
        scores += 1.0
        return scores


class Twice(Model):
    def full_sort_predict(self, interaction):
        square = torch.randn(USERS, ITEMS).mm(torch.zeros(ITEMS, ITEMS))
        return (self.user + square[:, :DIM])[interaction.users].matmul(self.item.T)


class Interaction(SimpleNamespace):
    def to(self, device):
        return self


def trainer(model, needs=("rec.items", "rec.topk")):
    """Stand-in for a trainer: the steps of RecBole that the adapter replaces."""

    def own_scores(batch):
        interaction, history, users, items = batch
        scores = made.model.full_sort_predict(interaction).view(-1, ITEMS).clone()
        scores[:, 0] = -torch.inf
        if history is not None:
            scores[history] = -torch.inf
        return interaction, scores, users, items

    def own_collect(scores, interaction, users, items):
        made.eval_collector.data_struct["dense"] = scores

    collector = SimpleNamespace(
        register=SimpleNamespace(need=lambda name: name in needs),
        topk=[3, K],
        data_struct=Facts(),
        eval_batch_collect=own_collect,
    )
    made = SimpleNamespace(
        model=model,
        device=torch.device("cpu"),
        tot_item_num=ITEMS,
        eval_collector=collector,
        _full_sort_batch_eval=own_scores,
    )
    return made


def batch():
    history = {0: [5, 3, 3], 2: [1, 2], 4: list(range(1, ITEMS - 3))}
    positive = {0: [9, 7], 1: [5], 2: [30, 8, 4], 3: [1], 4: [38], 5: [2], 6: [39, 9]}
    rows = [
        tuple(torch.tensor(it) for it in zip(*((u, i) for u in of for i in of[u]), strict=True))
        for of in (history, positive)
    ]
    return Interaction(users=torch.arange(USERS)), rows[0], *rows[1]


def collected(made, given):
    interaction, scores, users, items = made._full_sort_batch_eval(given)
    made.eval_collector.eval_batch_collect(scores, interaction, users, items)
    return made.eval_collector.data_struct


def expected(model, given):
    """Find the best items and hits by sorting all scores in float64."""
    interaction, history, users, items = given
    scores = (model.user.double() @ model.item.double().T).numpy()[interaction.users]
    scores[:, 0] = -np.inf
    if history is not None:
        scores[history] = -np.inf
    order = np.argsort(-scores, 1, kind="stable")
    order = np.where(np.take_along_axis(scores, order, 1) == -np.inf, 0, order)[:, :K]
    positive = [items[users == user].tolist() for user in range(USERS)]
    hits = [
        [int(it in own) for it in row] + [len(own)]
        for row, own in zip(order, positive, strict=True)
    ]
    return order.tolist(), hits


@pytest.mark.parametrize("has_history", [True, False])
def test_facts_are_those_of_sorted_scores(has_history, backend):
    given = batch() if has_history else (batch()[0], None, *batch()[2:])
    made = trainer(Model())
    assert attach(made) is made
    for _ in range(2):  # two batches, one after the other
        found = collected(made, given)
    order, hits = expected(made.model, given)
    assert found["rec.items"].tolist() == 2 * order
    assert found["rec.topk"].tolist() == 2 * hits
    assert "dense" not in found


@pytest.mark.parametrize("kind", [Scaled, Written, Twice])
def test_other_models_are_scored_by_recbole_which_is_said_once(kind):
    made = attach(trainer(kind()))
    with pytest.warns(RuntimeWarning, match=f"full_sort_predict of {kind.__name__} returns no"):
        found = collected(made, batch())
    assert found["dense"].shape == (USERS, ITEMS)
    assert found["dense"][1, 3] != 0
    collected(made, batch())  # a second warning would be an error
    assert "rec.topk" not in found


def test_trainers_that_do_not_fit_are_named():
    with pytest.raises(TypeError, match=r"trainer must be a recbole.trainer.Trainer; got 3"):
        attach(3)
    with pytest.raises(ValueError, match="trainer: a metric of its config needs all scores"):
        attach(trainer(Model(), needs=("rec.score",)))
    model = Model()
    model.item[11, 1] = torch.nan
    with pytest.raises(ValueError, match="rows: row 11 holds a NaN or an infinity"):
        collected(attach(trainer(model)), batch())


@pytest.mark.parametrize("name", ["BPR", "SASRec", "CORE"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_real_recbole_has_the_same_metrics(name, tmp_path, monkeypatch):
    pytest.importorskip("recbole")
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.utils import get_model, get_trainer, init_seed

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["test"])
    (tmp_path / "tiny").mkdir()
    generator, lines = np.random.default_rng(0), ["user_id:token\titem_id:token\ttimestamp:float"]
    for user in range(60):
        for time, item in enumerate(generator.choice(200, generator.integers(5, 20), False)):
            lines.append(f"u{user}\ti{item}\t{time}")
    (tmp_path / "tiny" / "tiny.inter").write_text("\n".join(lines) + "\n")
    is_sequential = name != "BPR"
    options = {
        "data_path": str(tmp_path),
        "epochs": 2,
        "metrics": ["Recall", "MRR", "NDCG", "Hit", "Precision", "MAP"],
        "topk": [5, 10],
        "valid_metric": "MRR@10",
        "eval_args": {
            "split": {"LS": "valid_and_test"} if is_sequential else {"RS": [0.8, 0.1, 0.1]},
            "order": "TO" if is_sequential else "RO",
            "group_by": "user",
            "mode": "full",
        },
        "load_col": {"inter": ["user_id", "item_id", "timestamp"]},
        "show_progress": False,
        "state": "ERROR",
    }
    if is_sequential:
        options["train_neg_sample_args"] = None
    config = Config(model=name, dataset="tiny", config_dict=options)
    init_seed(0, True)
    data = create_dataset(config)
    train, valid, test = data_preparation(config, data)
    model = get_model(name)(config, train._dataset)
    made = get_trainer(config["MODEL_TYPE"], name)(config, model)
    made.fit(train, saved=False, verbose=False)
    theirs = made.evaluate(test, load_best_model=False)
    attach(made)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert made.evaluate(test, load_best_model=False) == theirs
    assert any("no plain product" in str(it.message) for it in said) == (name == "CORE")
    made.fit(train, valid, saved=False, verbose=False)
    logging.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_with_recbole_itself(tmp_path):
    run_tests_with(tmp_path / "venv", str(Path(__file__)), "recbole>=1.2", "numpy<2")
