"""Config: files of it, what --set changes, and the folder of its dataset."""

import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kgfast.training import Config
from support.configs import BASE, with_values

# The file of the run that this project began with, as its author wrote it.
IN_USE = """
seed: 42
device: auto
dataset: {name: WN18RR, source: hf, hf_name: VLyb/WN18RR, filtered_eval: true}
data: {neg_size: 64, train_bs: 1024, test_bs: 128, num_workers: 4}
model: {name: RotatE, base_dim: 512, gamma: 12.0, use_rscf: true, rscf_alpha: 0.1}
med: {enabled: true, dims: [128, 256, 512], submodels_per_step: 3}
optim: {name: Adam, lr: 0.0005, weight_decay: 0.0, betas: [0.9, 0.999], grad_clip: 1.0}
sched: {name: linear, warmup_steps: 1000, total_steps: 0}
train:
  epochs: 100
  log_every: 100
  eval_every: 10000
  save_every: 10000
  out_dir: ./workdir/runs/final/wn18rr/rotate/med_rscf
  save_best_metric: MRR
"""


def test_numbers_that_yaml_reads_as_text_are_numbers(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(
        yaml.safe_dump(BASE).replace("0.001", "1e-3").replace("epochs: 1", "steps: 1e5")
    )
    config = Config.from_yaml(path)
    assert (config.optim.lr, config.train.steps) == (1e-3, 100_000)
    assert type(config.train.steps) is int


def test_a_config_in_use_parses(tmp_path):
    path = tmp_path / "rotate_med_rscf.yaml"
    path.write_text(IN_USE)
    with pytest.warns(UserWarning, match="is ignored") as warned:
        config = Config.from_yaml(path)
    assert len(warned) == 6
    assert (config.model.name, config.model.base_dim, config.data.test_bs) == ("rotate", 512, 128)
    assert config.med is not None
    assert (config.model.use_rscf, config.med.dims) == (True, [128, 256, 512])
    assert (config.optim.name, config.optim.grad_clip) == ("adam", 1.0)
    assert (config.sched.name, config.sched.warmup_steps) == ("linear", 1000)
    assert config.train.save_best_metric == "mrr"


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
            "optim.lr: Input should be a valid number; got 'abc'",
        )
    )


def write(tmp_path, values):
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def test_overrides_are_yaml_and_win(tmp_path):
    overrides = [
        "optim.lr=1e-2",
        "optim.betas=[0.5, 0.9]",
        "train.epochs=null",
        "train.steps=7",
        "train.early_stopping={patience: 2}",
        "train.eval_every=1",
        "data.test_bs=null",
        "dataset.name=a=b",
    ]
    config = Config.from_yaml(write(tmp_path, BASE), overrides)
    assert (config.optim.lr, config.optim.betas) == (0.01, [0.5, 0.9])
    assert (config.train.epochs, config.train.steps) == (None, 7)
    assert config.train.early_stopping is not None
    assert config.train.early_stopping.patience == 2
    assert config.dataset.name == "a=b"


@pytest.mark.parametrize(
    ("values", "override", "own", "other"),
    [
        ({"train": {"epochs": 5}}, "train.steps=7", "train.steps", "train.epochs"),
        ({"train": {"steps": 5}}, "train.epochs=7", "train.epochs", "train.steps"),
        ({"train": {"epochs": 5}}, "train={steps: 7}", "train.steps", "train.epochs"),
        ({"model__init_std": 1.0}, "model.init_range=7", "model.init_range", "model.init_std"),
    ],
)
def test_an_override_replaces_the_other_key_of_a_pair(tmp_path, values, override, own, other):
    flat = Config.from_yaml(write(tmp_path, with_values(**values)), [override]).flat()
    assert (flat[own], flat[other]) == (7, None)


@pytest.mark.parametrize(
    ("train", "overrides", "source"),
    [
        ({"epochs": 5, "steps": 5}, [], "{path}: "),
        ({"epochs": 5, "steps": 5}, ["optim.lr=1"], "{path}: "),
        ({"epochs": 5}, ["train.epochs=5", "train.steps=5"], "--set: "),
        ({"epochs": 5}, ["train={epochs: 5, steps: 5}"], "--set: "),
    ],
)
def test_both_keys_of_a_pair_in_one_source_are_a_mistake(tmp_path, train, overrides, source):
    path = write(tmp_path, with_values(train=train))
    with pytest.raises(ValueError, match="exactly one of train") as caught:
        Config.from_yaml(path, overrides)
    assert str(caught.value).startswith(source.format(path=path))


def test_an_overridden_section_keeps_its_other_keys(tmp_path):
    path = write(tmp_path, with_values(data__train_bs=7, data__neg_size=5))
    data = Config.from_yaml(path, ["data={neg_size: 3}"]).data
    assert (data.train_bs, data.neg_size) == (7, 3)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.lr", "--set optim.lr: expected key=value, such as optim.lr=1e-3"),
        ("=3", "--set =3: expected key=value"),
        ("optim..lr=3", "--set optim..lr=3: expected key=value"),
        ("optim.lr=[", "--set optim.lr=[: "),
        ("optim.lrr=3", "--set: unknown key optim.lrr; did you mean optim.lr?"),
        ("optim.lr=abc", "--set: optim.lr: Input should be a valid number; got 'abc'"),
    ],
)
def test_a_bad_override_is_not_blamed_on_the_file(tmp_path, override, message):
    with pytest.raises(ValueError, match=r".") as caught:
        Config.from_yaml(write(tmp_path, BASE), [override])
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": expected sections such as 'model:'; got None"),
        ("- 1\n", ": expected sections such as 'model:'; got [1]"),
        ("model: [\n", ":2: "),
        ("a: 1\nmodel:\n  name: x\n  name: y\n", ":4: key name was given before"),
    ],
    ids=["empty", "list", "syntax", "twice"],
)
def test_a_file_that_is_no_config(tmp_path, text, message):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(f"{path}{message}")):
        Config.from_yaml(path)


def test_dotted_keys_in_a_file(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump(BASE) + "optim.name: adam\ndata.train_bs: 7\n")
    config = Config.from_yaml(path)
    assert (config.optim.name, config.optim.lr, config.data.train_bs) == ("adam", 1e-3, 7)


@given(
    lr=st.floats(1e-12, 1e3),
    dim=st.integers(1, 4096),
    seed=st.integers(0, 2**63),
    name=st.text(min_size=1),
    epochs=st.integers(1, 10**9),
)
def test_written_and_read_it_is_the_same(tmp_path_factory, lr, dim, seed, name, epochs):
    values = with_values(
        optim__lr=lr, model__base_dim=dim, seed=seed, dataset__name=name, train__epochs=epochs
    )
    config = Config.from_dict(values)
    assert Config.from_dict(config.to_dict()) == config
    path = tmp_path_factory.mktemp("config") / "a.yaml"
    config.to_yaml(path)
    assert Config.from_yaml(path) == config


class TestFolder:
    def folder(self, root, name="wn18rr"):
        return Config.from_dict(with_values(dataset={"name": name, "root": str(root)})).dataset

    def test_below_the_root_in_any_case(self, tmp_path):
        (tmp_path / "wn18rr").mkdir()
        assert self.folder(tmp_path, "WN18RR").folder() == tmp_path / "wn18rr"

    def test_the_root_itself(self, tmp_path):
        (tmp_path / "train.txt").write_text("a\tb\tc\n")
        assert self.folder(tmp_path).folder() == tmp_path

    @pytest.mark.parametrize("name", ["nowhere", "."], ids=["no-root", "empty-root"])
    def test_neither(self, tmp_path, name):
        with pytest.raises(FileNotFoundError, match=r"no dataset wn18rr: .* set dataset\.root"):
            self.folder(tmp_path / name).folder()
