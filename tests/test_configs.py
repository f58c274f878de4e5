"""Every file under configs/ loads, says its own command, and means what its name says."""

from pathlib import Path

import pytest

from kgfast.extras.search.space import Space
from kgfast.training import Config
from support.paths import ROOT

FILES = sorted(ROOT.glob("configs/**/*.yaml"))
DATASETS = {"wn18rr": "wn18rr", "fb15k237": "fb15k-237", "codex-m": "codex-m"}
WITH_MED = ("wn18rr", "fb15k237")
EXPECTED = {
    *(f"wn18rr/{name}" for name in ("rotate", "rotate_fast", "transe", "complex", "distmult")),
    *(f"fb15k237/{name}" for name in ("rotate", "transe", "complex", "distmult")),
    *("wn18rr/conve", "fb15k237/conve"),
    *(
        f"{dataset}/rotate_{name}"
        for dataset in WITH_MED
        for name in ("med", "rscf", "med_rscf", "med_rscf_80d")
    ),
    "wn18rr/rotate_med_640d",
    *(
        f"codex-m/{name}"
        for name in ("complex_n3", "conve", "distmult", "rescal_dura", "rotate", "transe")
    ),
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT / "configs").with_suffix("").as_posix()


def test_all_are_there():
    assert {name_of(path) for path in FILES} >= EXPECTED


@pytest.mark.parametrize("path", [path for path in FILES if name_of(path) in EXPECTED], ids=name_of)
def test_loads_and_says_what_it_is(path):
    config = Config.from_yaml(path, ["dataset.root=elsewhere"])
    assert config.dataset.name == DATASETS[path.parent.name]
    assert config.dataset.root == "elsewhere"
    assert config.model.name == path.stem.split("_")[0]
    assert f"kgfast train --config configs/{name_of(path)}.yaml" in path.read_text()
    assert config.train.eval_every > 0


@pytest.mark.parametrize(
    "path", [path for path in FILES if "\nsearch:" in path.read_text()], ids=name_of
)
def test_ranges_are_of_keys_that_exist(path):
    Space(Config.from_yaml(path, ["dataset.root=elsewhere"]))  # raises unless they exist


def test_the_published_values_stand_in_them():
    rotate = Config.from_yaml(ROOT / "configs/wn18rr/rotate.yaml")
    assert (rotate.model.base_dim, rotate.model.gamma, rotate.loss.alpha) == (500, 6, 0.5)
    assert (rotate.data.train_bs, rotate.data.neg_size) == (512, 1024)
    conve = Config.from_yaml(ROOT / "configs/wn18rr/conve.yaml")
    assert conve.model.base_dim == 200
    assert (conve.train.mode, conve.loss.label_smoothing) == ("kvsall", 0.1)


@pytest.mark.parametrize("dataset", WITH_MED)
def test_the_run_that_did_not_fit_is_there_as_it_was_meant(dataset):
    config = Config.from_yaml(ROOT / f"configs/{dataset}/rotate_med_rscf.yaml")
    assert (config.model.base_dim, config.model.gamma, config.model.use_rscf) == (512, 12, True)
    assert config.med is not None
    assert (config.med.dims, config.med.submodels_per_step) == ([128, 256, 512], 3)
    assert (config.optim.lr, config.optim.grad_clip, config.sched.warmup_steps) == (5e-4, 1, 1000)
    assert (config.data.train_bs, config.data.neg_size, config.data.test_bs) == (1024, 64, 128)
    assert (config.med.crop, config.med.loss_weight, config.seed) == ("prefix", "sigmoid", 42)
    assert (config.optim.name, config.sched.name, config.train.epochs) == ("adam", "linear", 100)


@pytest.mark.parametrize("dataset", WITH_MED)
def test_what_it_was_cut_down_to(dataset):
    config = Config.from_yaml(ROOT / f"configs/{dataset}/rotate_med_rscf_80d.yaml")
    assert config.med is not None
    assert (config.model.base_dim, config.model.use_rscf) == (80, True)
    assert (config.med.dims, config.med.submodels_per_step) == ([20, 40, 80], 2)
    assert (config.optim.lr, config.optim.weight_decay, config.optim.grad_clip) == (1e-4, 1e-5, 0.5)
    assert (config.sched.warmup_steps, config.train.epochs) == (3000, 150)
    assert config.train.eval_every == 3000


@pytest.mark.parametrize("dataset", WITH_MED)
def test_either_method_alone(dataset):
    both, med, rscf = (
        Config.from_yaml(ROOT / f"configs/{dataset}/rotate_{name}.yaml")
        for name in ("med_rscf", "med", "rscf")
    )
    assert med.med is not None
    assert (med.med.dims, med.model.use_rscf) == (both.med.dims, False)
    assert (rscf.med, rscf.model.use_rscf) == (None, True)
    assert med.model.base_dim == rscf.model.base_dim == both.model.base_dim


def test_the_published_sizes_of_med():
    config = Config.from_yaml(ROOT / "configs/wn18rr/rotate_med_640d.yaml")
    assert config.med is not None
    assert (config.med.dims[0], config.med.dims[-1]) == (160, 640)
