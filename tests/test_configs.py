"""Every file under configs/ loads, says its own command, and means what its name says."""

import pytest

from kgfast.extras.search.searching import Space
from kgfast.training import Config
from support.paths import ROOT
from support.small_runs import merged, sections_of_table

FILES = sorted(ROOT.glob("configs/**/*.yaml"))
DATASETS = {"wn18rr": "wn18rr", "fb15k237": "fb15k-237", "codex-m": "codex-m"}
OF_DATASETS = [path for path in FILES if path.parent.name in DATASETS]
assert len(OF_DATASETS) >= 26
WITH_MED = ("wn18rr", "fb15k237")


def name_of(path):
    return path.relative_to(ROOT / "configs").with_suffix("").as_posix()


@pytest.mark.parametrize("path", OF_DATASETS, ids=name_of)
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


# Values of papers, and of the runs that users reported.
PUBLISHED = sections_of_table("""
wn18rr/rotate
    model.base_dim=500 model.gamma=6 loss.alpha=0.5 data.train_bs=512 data.neg_size=1024
wn18rr/conve
    model.base_dim=200 train.mode=kvsall loss.label_smoothing=0.1
wn18rr/rotate_med_640d
    med.dims=[160,240,320,400,480,560,640]
*/rotate_med_rscf
    model.base_dim=512 model.gamma=12 model.use_rscf=true med.dims=[128,256,512]
    med.submodels_per_step=3 optim.lr=5e-4 optim.grad_clip=1 sched.warmup_steps=1000
    data.train_bs=1024 data.neg_size=64 data.test_bs=128 med.crop=prefix med.loss_weight=sigmoid
    seed=42 optim.name=adam sched.name=linear train.epochs=100
wn18rr/rotate_med_rscf_80d
    model.base_dim=80 model.use_rscf=true med.dims=[20,40,80] med.submodels_per_step=2
    optim.weight_decay=1e-5 optim.grad_clip=0.5 sched.warmup_steps=3000 data.neg_size=64
""")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_values_stand_in_them(name):
    for dataset in WITH_MED if "*" in name else (name,):
        config = Config.from_yaml(ROOT / f"configs/{name.replace('*', dataset)}.yaml")
        wanted = Config.from_dict(merged(config.to_dict(), PUBLISHED[name]))
        assert wanted == config


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
