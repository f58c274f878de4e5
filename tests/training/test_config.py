"""Config: what is accepted, and that every mistake is named with its key and its remedy."""

import copy
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kgfast.training import Config
from kgfast.training.config.schema import override

BASE = {
    "dataset": {"name": "wn18rr"},
    "model": {"name": "rotate", "base_dim": 80},
    "optim": {"lr": 1e-3},
    "train": {"epochs": 1},
}
NO_NUMBER = "Input should be a valid number, unable to parse string as a number"
# Assignments, two spaces apart, and below them how the message begins.
MISTAKES = r"""
threads=100000000
    threads: Input should be less than or equal to 1024; got 100000000
train.save_best_metric=hits@0
    train.save_best_metric: must be mrr, mr, median_rank, amr, amri, amrr, z_mr, z_mrr or
train.table_folder=t  optim.name=adam
    train.table_folder: goes with optim.name row_adam, row_adagrad; optim.name is adam
train.track=[comet]
    train.track.0: Input should be 'tensorboard', 'wandb' or 'mlflow'; got 'comet'
train.capture=yes
    train.capture: Input should be 'auto', 'always' or 'never'; got True
optim.lr=0
    optim.lr: Input should be greater than 0; got 0
optim.lr=.nan
    optim.lr: Input should be a finite number; got nan
optim.lrr=1
    unknown key optim.lrr; did you mean optim.lr?
train.lr=1
    unknown key train.lr; did you mean optim.lr?
modle={}
    unknown key modle; did you mean model?
optim=3
    optim: must be a section with keys; got 3
search={}
    search.ranges is missing
search={ranges: {}}
    search.ranges: Dictionary should have at least 1 item after validation, not 0; got {}
search={ranges: 3}
    search.ranges: must be a section with keys; got 3
search={ranges: {optim.lr: {lo: 1, high: 2}}}
    unknown key search.ranges.optim.lr.lo
search={ranges: {optim.lr: {low: 1}}}
    search.ranges.optim.lr: needs either low <= high (low > 0 with log), or choices
search={ranges: {optim.lr: {choices: [1], low: 0, high: 1}}}
    search.ranges.optim.lr: needs either low <= high
search={ranges: {optim.lr: {low: 2, high: 1}}}
    search.ranges.optim.lr: needs either low <= high
search={ranges: {optim.lr: {low: 0, high: 1, log: true}}}
    search.ranges.optim.lr: needs either low <= high
model.name=rotat
    model.name: must be one of rotate, transe, distmult, complex, conve, cp, rescal, tntcomplex, or
model.init_range=0.1  model.init_std=0.1
    model.init_std: goes with model.init_range null; model.init_range is 0.1
regularizer.name=n3  regularizer.weight=0.1
    regularizer.name: n3 goes with distmult, complex, cp, tntcomplex; got model.name rotate
model.name=cp  regularizer.name=dura  regularizer.weight=0.1  train.mode=kvsall  loss.name=bce
    regularizer.name: dura is of triples, of which a query of kvsall has many
loss.precision=bf16  model.name=complex
    loss.precision: goes with loss.name bce, cross_entropy; loss.name is nssa
model.name=rescal  model.base_dim=80  med.dims=[40, 80]
    med: goes with model.name rotate, transe, distmult, complex, cp, your own; model.name is r
device=gpu
    device: String should match pattern '^(auto|cpu|cuda(:\d+)?)$'; got 'gpu'
train.early_stopping={patience: 3}
    train.early_stopping: needs evaluations; set train.eval_every
train.mode=kvsall  optim.name=adam
    loss.name: must be one of bce with train.mode kvsall; got nssa
loss.name=cross_entropy
    loss.name: must be one of nssa, margin, logistic with train.mode negative; got cross_entropy
loss.label_smoothing=0.1
    loss.label_smoothing: goes with loss.name bce, cross_entropy; loss.name is nssa
regularizer.name=l2
    regularizer.weight: must be greater than 0 with regularizer.name l2
regularizer.weight=0.1
    regularizer.weight: goes with regularizer.name n3, l2, dura; regularizer.name is none
sched.milestones=[0.5]
    sched.milestones: goes with sched.name step; sched.name is constant
sched.factor=0.5
    sched.factor: goes with sched.name step; sched.name is constant
sched.name=step
    sched.milestones: needs a fraction of the run with sched.name step
optim.eps=0.1  optim.name=sgd
    optim.eps: goes with optim.name row_adam, adam, row_adagrad, adagrad; optim.name is sgd
loss.name=margin  data.subsampling=true
    data.subsampling: goes with loss.name nssa, your own; loss.name is margin
med.dims=[20, 80]  loss.alpha=0.5
    loss.alpha: goes with med null; med is set
model.name=conve  model.base_dim=200
    train.mode: must be kvsall or 1vsall for conve; got negative
optim={name: adam}
    optim.lr is missing
train={}
    train.epochs: exactly one of train.epochs and train.steps must be set; got neither
loss.name=a:b:c
    loss.name: must be one of nssa, margin, logistic, bce, cross_entropy, or an import path
loss.name=a:B  train.mode=1vsall
    loss.name: must be one of bce, cross_entropy with train.mode 1vsall; got a:B
model.options={a: 1}
    model.options: goes with model.name your own; model.name is rotate
model.name=a:B  model.gamma=5.0
    model.gamma: goes with model.name rotate, transe; model.name is your own
model.name=a:B  model.use_rscf=true
    model.use_rscf: goes with model.name rotate, transe; model.name is your own
"""


def message_of(values):
    with pytest.raises(ValueError, match=r".") as caught:
        Config.from_dict(values)
    return str(caught.value)


@pytest.mark.parametrize(("assignments", "message"), re.findall(r"(\S.*)\n    (.*)\n", MISTAKES))
def test_a_mistake_is_named_once(assignments, message):
    values = copy.deepcopy(BASE)
    override(values, assignments.split("  "))
    found = message_of(values)
    assert found.startswith(message)
    assert found.count("\n") == 0


def test_differences_that_matter_to_a_resumed_run():
    config = Config.from_dict(BASE)
    free = {"train.eval_every": 5, "device": "cpu", "dataset.root": "elsewhere"}
    assert config.training_differences(config.updated(free)) == {}
    other = config.updated({"optim.lr": 1e-2, "data.train_bs": 8})
    assert config.training_differences(other) == {
        "data.train_bs": (1024, 8),
        "optim.lr": (1e-3, 1e-2),
    }


def test_several_mistakes_are_a_line_each(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("dataset: {name: x}\nmodel: {nam: rotate, base_dim: 8}\noptim: {lr: abc}\n")
    with pytest.raises(ValueError, match=r".") as caught:
        Config.from_yaml(path)
    assert sorted(str(caught.value).split("\n")) == sorted(
        f"{path}: {it}"
        for it in (
            "model.name is missing",
            "unknown key model.nam; did you mean model.name?",
            "train is missing",
            f"optim.lr: {NO_NUMBER}; got 'abc'",
        )
    )


def write(tmp_path, values):
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def test_overrides_are_yaml_and_win(tmp_path):
    overrides = [
        "optim.lr=1e-2",
        "seed=1e5",
        "train.steps=7",
        "train.early_stopping={patience: 2}",
        "train.eval_every=1",
        "data.test_bs=null",
        "dataset.name=a=b",
    ]
    config = Config.from_yaml(write(tmp_path, BASE), overrides)
    assert config.optim.lr == 0.01
    assert (config.seed, type(config.seed)) == (100_000, int)
    assert (config.train.epochs, config.train.steps) == (None, 7)
    assert config.train.early_stopping is not None
    assert config.train.early_stopping.patience == 2
    assert config.dataset.name == "a=b"


@pytest.mark.parametrize(("own", "other"), [("steps", "epochs"), ("epochs", "steps")])
def test_an_override_of_the_length_replaces_the_other_key(tmp_path, own, other):
    path = write(tmp_path, BASE | {"train": {other: 5}})
    train = Config.from_yaml(path, [f"train.{own}=7"]).train
    assert (getattr(train, own), getattr(train, other)) == (7, None)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["optim.lr"], "--set optim.lr: expected key=value, such as optim.lr=1e-3"),
        (["=3"], "--set =3: expected key=value"),
        (["optim..lr=3"], "--set optim..lr=3: expected key=value"),
        (["optim.lr=["], "--set optim.lr=[: "),
        (["optim.lrr=3"], "{path} and --set: unknown key optim.lrr; did you mean optim.lr?"),
        (["optim.lr=abc"], f"{{path}} and --set: optim.lr: {NO_NUMBER}; got 'abc'"),
        (["train.epochs=5", "train.steps=5"], "{path} and --set: train.epochs: exactly one of"),
    ],
)
def test_a_bad_override_is_named(tmp_path, overrides, message):
    path = write(tmp_path, BASE)
    with pytest.raises(ValueError, match=r".") as caught:
        Config.from_yaml(path, overrides)
    assert str(caught.value).startswith(message.format(path=path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": expected sections such as 'model:'; got None"),
        ("- 1\n", ": expected sections such as 'model:'; got [1]"),
        ("model: [\n", ":2: "),
        ("a: 1\nmodel:\n  name: x\n  name: y\n", ":4: key 'name' was given before"),
    ],
    ids=["empty", "list", "syntax", "twice"],
)
def test_a_file_that_is_no_config(tmp_path, text, message):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(f"{path}{message}")):
        Config.from_yaml(path)


@given(
    lr=st.floats(1e-12, 1e3),
    dim=st.integers(1, 4096),
    seed=st.integers(0, 2**63),
    name=st.text(min_size=1),
    epochs=st.integers(1, 10**9),
)
def test_written_and_read_it_is_the_same(tmp_path_factory, lr, dim, seed, name, epochs):
    values = {"optim.lr": lr, "model.base_dim": dim, "dataset.name": name, "train.epochs": epochs}
    config = Config.from_dict(BASE | {"seed": seed}).updated(values)
    assert Config.from_dict(config.to_dict()) == config
    path = tmp_path_factory.mktemp("config") / "a.yaml"
    config.to_yaml(path)
    assert Config.from_yaml(path) == config
