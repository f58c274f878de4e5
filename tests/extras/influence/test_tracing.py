"""Checkpoints of runs, sums over them, and refused arguments of tracin."""

import re
import warnings

import pytest
import torch

from kgfast import DistMult
from kgfast.datasets import synthetic
from kgfast.extras.influence import Strongest, self_influence, tracin
from kgfast.training import Config
from kgfast.training.checkpoint import load, save
from support.influences import dense_influences
from support.small_runs import trainer_of

GRAPH = synthetic(60, 3, 60, 10, 10)
DOT = {"model": {"name": "distmult", "gamma": 12.0}, "loss": {"name": "bce"}}
RATES = {5: 0.02 * (1 - 4 / 12), 10: 0.02 * (1 - 9 / 12)}


def fit(folder, mode="1vsall", graph=GRAPH, **sections):
    sections = DOT | {"optim": {"name": "adam", "lr": 0.02}} | sections
    train = {"steps": 12, "mode": mode, "keep_every": 5}
    trainer_of(folder, graph, train=train, sched={"name": "linear"}, **sections).fit()
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return fit(tmp_path_factory.mktemp("run"))


def model_of(path):
    tensors, _ = load(path)
    return DistMult(tensors["model.entity"], tensors["model.relation"])


def expected_of(run, test, **options):
    """By autograd, with the rates of a linear schedule."""
    loss = Config.from_yaml(run / "config.yaml").loss
    models = {step: model_of(run / f"model_{step}.safetensors") for step in RATES}
    return sum(
        RATES[step] * dense_influences(model, GRAPH.train.hrt, test, loss, **options)
        for step, model in models.items()
    )


def test_a_run_is_summed_over_what_it_kept(run):
    test = GRAPH.test.hrt[:4]
    found = tracin(run, test=test, k=3)
    expected = expected_of(run, test)
    assert found.rates == pytest.approx(list(RATES.values()))
    assert [name.rpartition("/")[2] for name in found.checkpoints] == [
        "model_5.safetensors",
        "model_10.safetensors",
    ]
    assert torch.allclose(found.matrix.double(), expected, rtol=1e-4, atol=1e-9)
    for kind, descending in ((found.proponents, True), (found.opponents, False)):
        values, ids = torch.sort(found.matrix, stable=True, dim=1, descending=descending)
        assert torch.equal(kind.ids, ids[:, :3])
        assert torch.equal(kind.values, values[:, :3])
    assert torch.equal(found.ids, found.proponents.ids)


def test_files_and_rates_may_be_chosen(run):
    test, path = GRAPH.test.hrt[:2], run / "best.safetensors"
    by_file = tracin([path], test=test, rates=[0.5])
    by_model = tracin([model_of(path)], GRAPH.train, test, loss="bce", rates=[0.5])
    assert torch.equal(by_file.ids, by_model.ids)
    assert torch.equal(by_file.values, by_model.values)
    last = tracin(run / "last.safetensors", test=test)
    assert last.rates == pytest.approx([0.02 / 12])


def test_runs_of_queries_with_all_their_answers(tmp_path):
    run = fit(tmp_path / "run", mode="kvsall", loss={"name": "bce", "label_smoothing": 0.1})
    test = GRAPH.test.hrt[:3]
    found = tracin(run, test=test, k=2)
    assert torch.allclose(
        found.matrix.double(), expected_of(run, test, mode="kvsall"), rtol=1e-4, atol=1e-9
    )
    columns = found.columns((GRAPH.entities, GRAPH.relations))
    assert len(columns["test"]) == 3 * 2 * 2
    answer = [
        tail if predicts == "tail" else head
        for head, tail, predicts in zip(
            columns["head"], columns["tail"], columns["predicts"], strict=True
        )
    ]
    assert set(answer) == {"?"}


def test_a_model_near_chance_is_said(tmp_path):
    trainer_of(tmp_path, GRAPH, train={"steps": 1, "mode": "1vsall"}, **DOT).fit()
    with pytest.warns(RuntimeWarning, match=r"best.safetensors: the model ranks its own"):
        tracin(tmp_path, test=GRAPH.test.hrt[:1])
    entity, relation = torch.eye(4), torch.ones(1, 4)
    model = DistMult(entity, relation)
    itself = torch.tensor([[0, 0, 0], [1, 0, 1], [2, 0, 2]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tracin(model, itself, itself[:1], loss="bce", rates=[0.1], k=1)


def test_columns_name_the_examples(run):
    found = tracin(run, test=GRAPH.test.hrt[:2], k=100)
    columns = found.columns()
    train = {tuple(triple) for triple in GRAPH.train.hrt.tolist()}
    triples = list(zip(columns["head"], columns["relation"], columns["tail"], strict=True))
    assert set(triples) <= train
    assert set(columns["predicts"]) == {"head", "tail"}
    assert columns["test"] == [0] * 200 + [1] * 200
    signs = {1: "proponent", -1: "opponent", 0: "neutral"}
    assert columns["kind"] == [signs[(it > 0) - (it < 0)] for it in columns["influence"]]
    assert {"proponent", "opponent"} <= set(columns["kind"][:100])
    assert columns["influence"][:100] == found.values[0].tolist()
    first = int(found.ids[0, 0]) % len(GRAPH.train)
    assert triples[0] == tuple(GRAPH.train.hrt[first].tolist())
    assert list(found.to_frame().columns) == list(columns)
    assert "2 test triples at 2 checkpoints, 100 proponents" in repr(found)


def test_equal_influences_stand_by_their_ids():
    matrix = torch.tensor([[1.0, 2, 3, 1, 1, 2], [0, 0, 0, -1, 0, 0]])
    high, low = (Strongest.of(matrix, 4, descending=way) for way in (True, False))
    assert high.ids.tolist() == [[2, 1, 5, 0], [0, 1, 2, 4]]
    assert high.values.tolist() == [[3, 2, 2, 1], [0, 0, 0, 0]]
    assert low.ids.tolist() == [[0, 3, 4, 1], [3, 0, 1, 2]]


def test_nothing_has_no_influence(run):
    none = torch.empty(0, 3, dtype=torch.int64)
    found = tracin(run, test=none)
    assert (found.ids.shape, found.matrix.shape) == ((0, 10), (0, 2 * len(GRAPH.train)))
    found = tracin(run, none, GRAPH.test.hrt[:2])
    assert (found.ids.shape, found.matrix.shape) == ((2, 0), (2, 0))
    assert self_influence(run, none).shape == (0,)


TEST = GRAPH.test.hrt[:1]
MISTAKES = [
    ({"loss": "nssa"}, "was trained with bce (1vsall); leave loss and mode"),
    ({"mode": "kvsall"}, "was trained with bce (1vsall); leave loss and mode"),
    ({"rates": [0.1]}, "rates must have one per checkpoint, 2; got 1"),
    ({"rates": [0.1, 0.0]}, "rates must be finite and above 0; got 0.0"),
    ({"rates": [0.1, float("nan")]}, "rates must be finite and above 0; got nan"),
    ({"side": "relation"}, "side must be 'head' or 'tail'; got 'relation'"),
    ({"k": 0}, "k must be at least 1; got 0"),
    ({"k": True}, "k must be an int; got True"),
    ({"test": torch.tensor([[0, 0, 60]])}, "test: "),
    ({"train": torch.tensor([[0, 3, 0]])}, "train: "),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_mistakes_are_said(run, options, message):
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        tracin(run, **({"test": TEST} | options))


def test_checkpoints_that_do_not_belong_together(run, tmp_path):
    best = "best.safetensors"
    other = fit(tmp_path / "graph", graph=synthetic(60, 3, 60, 10, 10, seed=1))
    with pytest.raises(ValueError, match=r"best.* are of different graphs"):
        tracin([run / best, other / best], test=TEST)
    smoothed = fit(tmp_path / "loss", loss={"name": "bce", "label_smoothing": 0.1})
    with pytest.raises(ValueError, match="different losses"):
        tracin([run / best, smoothed / best], test=TEST)
    models = [DistMult.init(count, 3, 4, seed=0) for count in (60, 61)]
    with pytest.raises(ValueError, match="are of different graphs"):
        tracin(models, GRAPH.train, TEST, loss="bce", rates=[1.0, 1.0])


def test_weights_of_targets_are_not_supported(tmp_path):
    plain = fit(tmp_path / "plain", loss={"name": "cross_entropy"})
    weighted = fit(
        tmp_path / "weighted", loss={"name": "cross_entropy"}, data={"target_weights": True}
    )
    with pytest.raises(ValueError, match=r"was trained with data.target_weights, which divide"):
        tracin(weighted, test=TEST)
    best = [run / "best.safetensors" for run in (plain, weighted)]
    with pytest.raises(ValueError, match="different losses"):
        tracin(best, test=TEST)


def test_a_checkpoint_without_a_rate(run, tmp_path):
    for name in ("best.safetensors", "graph.safetensors", "config.yaml"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    with pytest.raises(
        ValueError, match=r"best.safetensors has no learning rate in a log; give rates"
    ):
        tracin(tmp_path, test=TEST)
    assert tracin(tmp_path, test=TEST, rates=[1.0]).rates == [1.0]
    (tmp_path / "graph.safetensors").unlink()
    with pytest.raises(ValueError, match=r"graph\.safetensors is missing"):
        tracin(tmp_path, test=TEST, rates=[1.0])


def test_models_need_to_be_told(run, tmp_path):
    model = DistMult.init(60, 3, 4, seed=0)
    train = GRAPH.train
    for options, message in (
        (
            {"rates": [1.0]},
            "loss of a model must be one of bce, cross_entropy with 1vsall; got None",
        ),
        ({"loss": "bce"}, "the DistMult has no learning rate in a log; give rates"),
        ({"loss": "nssa", "rates": [1.0]}, "sampled losses need the negatives of a run"),
        ({"loss": "bce", "mode": "negative"}, "mode must be 1vsall or kvsall for a model"),
    ):
        with pytest.raises(ValueError, match=message):
            tracin(model, train, TEST, **options)
    with pytest.raises(TypeError, match="train: a model does not store"):
        tracin(model, None, TEST, loss="bce", rates=[1.0])
    with pytest.raises(TypeError, match="needs test triples"):
        tracin(model, train, loss="bce", rates=[1.0])
    with pytest.raises(TypeError, match="model must have"):
        tracin(3, train, TEST)
    with pytest.raises(ValueError, match="there are none"):
        tracin([], train, TEST)
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        tracin(tmp_path, test=TEST)


def test_what_is_not_finite_is_named():
    model = DistMult.init(60, 3, 4, seed=0).requires_grad_(False)
    model.entity[int(GRAPH.train.hrt[0, 0])] = torch.nan
    with pytest.raises(ValueError, match=r"the influence of training example .* is nan"):
        tracin(model, GRAPH.train, TEST, loss="bce", rates=[1.0])


def test_rows_of_other_names_are_refused(run, tmp_path):
    tensors, meta = load(run / "best.safetensors")
    (tmp_path / "graph.safetensors").write_bytes((run / "graph.safetensors").read_bytes())
    save(tmp_path / "best.safetensors", tensors, meta | {"graph": "another"})
    with pytest.raises(ValueError, match="belong to other names"):
        tracin(tmp_path, test=TEST)
