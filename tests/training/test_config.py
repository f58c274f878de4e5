"""Config: what is accepted, and that every mistake is named with its key and its remedy."""

import copy
import re

import pytest

from kgfast.training import Config
from kgfast.training.config.files import IGNORED, assign
from support.configs import BASE, with_values


def test_defaults_are_those_of_the_docs():
    config = Config.from_dict(BASE)
    assert (config.seed, config.device, config.dataset.root) == (0, "auto", "data")
    assert (config.data.train_bs, config.data.neg_size, config.model.gamma) == (1024, 64, 12.0)
    assert (config.loss.name, config.loss.alpha, config.train.save_best_metric) == (
        "nssa",
        1.0,
        "mrr",
    )


@pytest.mark.parametrize("value", [1e-3, "1e-3", "1E-3", ".001", "0.001"], ids=str)
def test_a_number_that_yaml_reads_as_text_is_a_number(value):
    assert Config.from_dict(with_values(optim__lr=value)).optim.lr == 1e-3


def test_every_ignored_key_warns():
    for dotted, why in IGNORED.items():
        section, _, key = dotted.partition(".")
        values = copy.deepcopy(BASE)
        values.setdefault(section, {})[key] = 1
        with pytest.warns(UserWarning, match=re.escape(f"{dotted} is ignored: {why}")):
            Config.from_dict(values)


# Assignments, two spaces apart, and below them how the message begins.
MISTAKES = r"""
threads=100000000
    threads: Input should be less than or equal to 1024; got 100000000
train.save_best_metric=hits@0
    train.save_best_metric: must be mrr, mr, median_rank, amr, amri or hits@K, such as
train.table_folder=t  optim.name=adam
    train.table_folder: adam changes every row in each step; take row_adam
train.table_folder=t  train.mode=kvsall  loss.name=bce
    train.table_folder: needs train.mode negative; kvsall uses every row
optim.lr=0
    optim.lr: Input should be greater than 0; got 0
optim.lr=.nan
    optim.lr: Input should be a finite number; got nan
optim.lrr=1
    unknown key optim.lrr; did you mean optim.lr?
optim.learning_rate=1
    unknown key optim.learning_rate; optim may hold name, lr,
train.lr=1
    unknown key train.lr; did you mean optim.lr?
modle={}
    unknown key modle; did you mean model?
optim=3
    optim: must be a section with keys; got 3
search={}
    search.ranges is missing
search={ranges: {}}
    search.ranges: Value should have at least 1 item after validation, not 0; got {}
search={ranges: 3}
    search.ranges: must be a section with keys; got 3
search={ranges: {optim.lr: {lo: 1, high: 2}}}
    unknown key search.ranges.optim.lr.lo
search={ranges: {optim.lr: {low: 1}}}
    search.ranges.optim.lr: needs low and high, or choices
search={ranges: {optim.lr: {low: 1, high: 1}}}
    search.ranges.optim.lr: low must be less than high; got 1 and 1
search={ranges: {optim.lr: {low: 0, high: 1, log: true}}}
    search.ranges.optim.lr: low must be greater than 0 with log; got 0
search={ranges: {optim.lr: {choices: [1], high: 1}}}
    search.ranges.optim.lr: has choices; leave low, high and log out
model.name=rotat
    model.name: Input should be 'rotate', 'transe', 'distmult', 'complex', 'conve', 'cp' o
model.norm=l1
    model.norm: must be one of modulus, l2 for rotate; got l1
model.init_range=0.1  model.init_std=0.1
    model.init_std: model.init_range says how entries start already; leave one out
model.name=conve  model.base_dim=200  model.reciprocal=true  train.mode=kvsall  loss.name=bce
    model.reciprocal: conve has inverse relations of its own; leave it out
regularizer.name=n3  regularizer.weight=0.1
    regularizer.name: n3 goes with distmult, complex, cp; got model.name rotate
model.name=transe  regularizer.name=dura  regularizer.weight=0.1
    regularizer.name: dura goes with distmult, complex, cp, rescal; got model.name transe
model.name=cp  regularizer.name=dura  regularizer.weight=0.1  train.mode=kvsall  loss.name=bce
    regularizer.name: dura is of triples, of which a query of kvsall has many
model.name=cp  regularizer.name=dura  regularizer.weight=0.1  regularizer.weighted=false
    regularizer.weighted: dura is of triples, which count as they are; leave it out
regularizer.name=l2  regularizer.weight=0.1  regularizer.product_weight=2
    regularizer.product_weight: only dura has it; got l2
train.mode=kvsall  loss.name=bce  loss.relation_weight=0.1
    loss.relation_weight: a query of train.mode kvsall has many tails; use 1vsall
loss.precision=bf16  model.name=complex
    loss.precision: only bce and cross_entropy have it; loss.name is nssa
train.mode=1vsall  loss.name=cross_entropy  loss.precision=bf16
    loss.precision: bf16 is for dot products, which rotate has not
model.name=conve  model.base_dim=200  train.mode=1vsall  loss.name=bce  loss.relation_weight=0.1
    loss.relation_weight: conve would run the network for every relation; leave it out
model.name=rescal  model.base_dim=80  med.dims=[40, 80]
    med: rescal cannot be cropped; set med.enabled=false
model.name=cp  model.base_dim=8  med.dims=[4, 8]  med.crop=split
    med.crop: split cuts complex rows, which cp has not; leave it out
model.channels=64
    model.channels: only conve has it; model.name is rotate
device=gpu
    device: String should match pattern '^(auto|cpu|cuda(:\d+)?)$'; got 'gpu'
data.subsampling=1
    data.subsampling: Input should be a valid boolean; got 1
train.early_stopping={patience: 3}
    train.early_stopping: needs evaluations; set train.eval_every
train.steps=5
    train.epochs: exactly one of train.epochs and train.steps must be set; got both
train.mode=kvsall  optim.name=adam
    loss.name: must be one of bce with train.mode kvsall; got nssa
loss.name=cross_entropy
    loss.name: must be one of nssa, margin, logistic with train.mode negative; got cross_entropy
train.mode=1vsall  loss.name=bce  data.neg_size=10
    data.neg_size: train.mode 1vsall draws no negatives; leave it out
loss.name=margin  loss.alpha=0.5
    loss.alpha: only nssa has it;
loss.label_smoothing=0.1
    loss.label_smoothing: only bce and cross_entropy have it;
data.target_weights=true
    data.target_weights: only cross_entropy has them; loss.name is nssa
regularizer.name=l2
    regularizer.weight: 0 and regularizer.name l2 contradict
regularizer.weight=0.1
    regularizer.weight: 0.1 and regularizer.name none contradict
sched.name=step
    sched.milestones: [] and sched.name step contradict each other;
sched.milestones=[0.5]
    sched.milestones: [0.5] and sched.name constant contradict
sched.name=step  sched.milestones=[0.9, 0.5]
    sched.milestones: must increase; got [0.9, 0.5]
sched.name=plateau
    sched.name: plateau needs evaluations; set train.eval_every
optim.name=adagrad  optim.betas=[0.5, 0.5]
    optim.betas: only adam has them;
optim.name=sgd  optim.eps=1.0e-08
    optim.eps: sgd has none
train.keep=2
    train.keep: needs train.save_every
model.rscf_relation_transform=true
    model.rscf_relation_transform: needs model.use_rscf
model.name=conve  model.base_dim=200  model.use_rscf=true  train.mode=kvsall  loss.name=bce
    model.use_rscf: goes with rotate, transe, distmult and complex; got conve
model.name=complex  model.base_dim=8  model.use_rscf=true  model.rscf_relation_transform=true
    model.rscf_relation_transform: complex has a dot product
model.use_rscf=true  train.mode=1vsall  loss.name=bce
    model.use_rscf: train.mode 1vsall scores all entities
model.use_rscf=true  model.norm=l2
    model.norm: must be modulus for rotate with model.use_rscf; got l2
med.dims=[20, 10]
    med.dims: must increase; got [20, 10]
med.dims=[20, 40]
    med.dims: the last must be model.base_dim (80); got [20, 40]
med.dims=[20, 80]  med.submodels_per_step=3
    med.submodels_per_step: must be at most 2, the number of med.dims; got 3
model.norm=l2  med.dims=[20, 80]
    med: rotate with model.norm l2 cannot be cropped
med.dims=[20, 80]  train.mode=1vsall  loss.name=bce
    train.mode: must be negative with med; got 1vsall
med.dims=[20, 80]  loss.alpha=0.5
    loss.alpha: med has its own loss
med.dims=[20, 80]  data.subsampling=true
    data.subsampling: the loss of med has its own weights
model.name=conve  model.base_dim=201  train.mode=kvsall  loss.name=bce
    model.base_dim: 201 is no multiple of embedding_height, 20
model.name=conve  model.base_dim=200  model.kernel_size=11  train.mode=kvsall  loss.name=bce
    model.kernel_size: must fit into the 40 x 10
model.name=conve  model.base_dim=200
    train.mode: must be kvsall or 1vsall for conve; got negative
"""
OTHERS = [
    ({"optim": {"name": "adam"}}, "optim.lr is missing"),
    (
        {"train": {}},
        "train.epochs: exactly one of train.epochs and train.steps must be set; got neither",
    ),
    (
        {"train": {"steps": 10}, "sched__warmup_steps": 20},
        "sched.warmup_steps: must be at most train.steps (10); got 20",
    ),
]


def message_of(values):
    with pytest.raises(ValueError, match=r".") as caught:
        Config.from_dict(values)
    return str(caught.value)


@pytest.mark.parametrize(("assignments", "message"), re.findall(r"(\S.*)\n    (.*)\n", MISTAKES))
def test_a_mistake_is_named_once(assignments, message):
    values = copy.deepcopy(BASE)
    for each in assignments.split("  "):
        assign(values, each)
    found = message_of(values)
    assert found.startswith(message)
    assert found.count("\n") == 0


@pytest.mark.parametrize(("values", "message"), OTHERS)
def test_a_mistake_of_a_section_is_named_once(values, message):
    found = message_of(with_values(**values))
    assert found.startswith(message)
    assert found.count("\n") == 0


def test_a_config_does_not_change():
    config = Config.from_dict(BASE)
    with pytest.raises(ValueError, match="frozen"):
        config.optim.lr = 3.0


def test_differences_that_matter_to_a_resumed_run():
    config = Config.from_dict(BASE)
    free = with_values(train__eval_every=5, device="cpu", dataset__root="elsewhere")
    assert config.training_differences(Config.from_dict(free)) == {}
    other = with_values(optim__lr=1e-2, data__train_bs=8)
    assert config.training_differences(Config.from_dict(other)) == {
        "data.train_bs": (1024, 8),
        "optim.lr": (1e-3, 1e-2),
    }
