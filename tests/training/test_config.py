"""Config: what is accepted, and that every mistake is named with its key and its remedy."""

import copy
import re

import pytest

from kgfast.training import Config
from kgfast.training.config.files import IGNORED
from support.configs import BASE, with_values


def message_of(values):
    with pytest.raises(ValueError, match=r".") as caught:
        Config.from_dict(values)
    return str(caught.value)


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


def test_upper_case_names_are_accepted():
    values = with_values(model__name="ComplEx", optim__name="Adam", train__save_best_metric="MRR")
    config = Config.from_dict(values)
    assert (config.model.name, config.optim.name) == ("complex", "adam")
    assert config.train.save_best_metric == "mrr"


def test_every_ignored_key_warns():
    for dotted, why in IGNORED.items():
        section, _, key = dotted.partition(".")
        values = copy.deepcopy(BASE)
        values.setdefault(section, {})[key] = 1
        with pytest.warns(UserWarning, match=re.escape(f"{dotted} is ignored: {why}")):
            Config.from_dict(values)


MISTAKES = [
    (
        {"train__table_folder": "t", "optim__name": "adam"},
        "train.table_folder: adam changes every row in each step; set optim.name to row_adam or",
    ),
    (
        {"train__table_folder": "t", "train__mode": "kvsall", "loss__name": "bce"},
        "train.table_folder: needs train.mode negative; kvsall uses every row",
    ),
    (
        {"train__max_total_minutes": 0},
        "train.max_total_minutes must be greater than 0; got 0",
    ),
    ({"distributed__timeout": 0}, "distributed.timeout must be greater than 0; got 0"),
    (
        {"distributed__tables": "split"},
        "distributed.tables must be one of replicated or sharded; got 'split'",
    ),
    ({"optim__lr": "abc"}, "optim.lr must be a number; got 'abc'"),
    ({"optim__lr": True}, "optim.lr must be a number; got True"),
    ({"optim__lr": 0}, "optim.lr must be greater than 0; got 0"),
    ({"optim__lr": float("nan")}, "optim.lr must be finite; got nan"),
    ({"optim__lr": None}, "optim.lr must be a number; got None"),
    ({"optim__lrr": 1}, "unknown key optim.lrr; did you mean optim.lr?"),
    ({"optim__learning_rate": 1}, "unknown key optim.learning_rate; optim may hold name, lr, "),
    ({"train__lr": 1}, "unknown key train.lr; did you mean optim.lr?"),
    ({"lr": 1}, "unknown key lr; did you mean optim.lr?"),
    ({"modle": {}}, "unknown key modle; did you mean model?"),
    ({"optim": {"name": "adam"}}, "optim.lr is missing"),
    ({"optim": 3}, "optim must be a section with keys; got 3"),
    ({"search": {}}, "search.ranges is missing"),
    ({"search": {"ranges": {}}}, "search.ranges must have at least 1 values; got {}"),
    ({"search": {"ranges": 3}}, "search.ranges must be a section with keys; got 3"),
    ({"search": {"ranges": {"seed": 3}}}, "search.ranges.seed must be a section with keys; got 3"),
    (
        {"search": {"ranges": {"optim.lr": {"lo": 1, "high": 2}}}},
        "unknown key search.ranges.optim.lr.lo",
    ),
    (
        {"search": {"ranges": {"optim": {"lr": {"low": "a", "high": 1}}}}},
        "search.ranges.optim.lr.low must be a number; got 'a'",
    ),
    (
        {"search": {"ranges": {"optim.lr": {"low": 1}}}},
        "search.ranges.optim.lr: needs low and high, or choices",
    ),
    (
        {"search": {"ranges": {"optim.lr": {"low": 1, "high": 1}}}},
        "search.ranges.optim.lr: low must be less than high; got 1 and 1",
    ),
    (
        {"search": {"ranges": {"optim.lr": {"low": 0, "high": 1, "log": True}}}},
        "search.ranges.optim.lr: low must be greater than 0 with log; got 0",
    ),
    (
        {"search": {"ranges": {"optim.lr": {"choices": []}}}},
        "search.ranges.optim.lr.choices must have at least 1 values; got []",
    ),
    (
        {"search": {"ranges": {"optim.lr": {"choices": [1], "high": 1}}}},
        "search.ranges.optim.lr: has choices; leave low, high and log out",
    ),
    (
        {"search": {"ranges": {"seed": {"choices": [1]}}, "reduction": 1}},
        "search.reduction must be at least 2; got 1",
    ),
    ({"model": None}, "model must be a section with keys; got None"),
    ({"model__base_dim": 80.5}, "model.base_dim must be a whole number; got 80.5"),
    ({"model__base_dim": 0}, "model.base_dim must be at least 1; got 0"),
    ({"model__base_dim": True}, "model.base_dim must be a whole number; got True"),
    (
        {"model__name": "rotat"},
        "model.name must be one of rotate, transe, distmult, complex, conve, cp or rescal; "
        "got 'rotat'",
    ),
    ({"model__name": 3}, "model.name must be one of rotate, transe, "),
    ({"model__norm": "l1"}, "model.norm: must be one of modulus, l2 for rotate; got l1"),
    (
        {"model__init_range": 0.1, "model__init_std": 0.1},
        "model.init_std: model.init_range says how entries start already; leave one out",
    ),
    ({"model__init_std": 0}, "model.init_std must be greater than 0; got 0"),
    (
        {
            "model": {"name": "conve", "base_dim": 200, "reciprocal": True},
            "train__mode": "kvsall",
            "loss__name": "bce",
        },
        "model.reciprocal: conve has inverse relations of its own; leave it out",
    ),
    (
        {"regularizer": {"name": "n3", "weight": 0.1}},
        "regularizer.name: n3 goes with distmult, complex, cp; got model.name rotate",
    ),
    (
        {"model__name": "rescal", "regularizer": {"name": "n3", "weight": 0.1}},
        "regularizer.name: n3 goes with distmult, complex, cp; got model.name rescal",
    ),
    (
        {"model__name": "transe", "regularizer": {"name": "dura", "weight": 0.1}},
        "regularizer.name: dura goes with distmult, complex, cp, rescal; got model.name transe",
    ),
    (
        {
            "model__name": "cp",
            "regularizer": {"name": "dura", "weight": 0.1},
            "train__mode": "kvsall",
            "loss__name": "bce",
        },
        "regularizer.name: dura is of triples, and a query of train.mode kvsall has many; set ",
    ),
    (
        {
            "model__name": "cp",
            "regularizer": {"name": "dura", "weight": 0.1, "weighted": False},
        },
        "regularizer.weighted: dura is of triples, which count as they are; leave it out",
    ),
    (
        {"regularizer": {"name": "l2", "weight": 0.1, "product_weight": 2}},
        "regularizer.product_weight: only dura has it; got l2",
    ),
    ({"loss__relation_weight": -1}, "loss.relation_weight must be at least 0; got -1"),
    (
        {"train__mode": "kvsall", "loss": {"name": "bce", "relation_weight": 0.1}},
        "loss.relation_weight: a query of train.mode kvsall has many tails; set train.mode=1vsall",
    ),
    (
        {"loss__precision": "bf16", "model__name": "complex"},
        "loss.precision: only bce and cross_entropy have it; loss.name is nssa",
    ),
    (
        {"train__mode": "1vsall", "loss": {"name": "cross_entropy", "precision": "bf16"}},
        "loss.precision: bf16 is of dot products, which rotate has not; leave it out",
    ),
    (
        {"train__mode": "1vsall", "loss": {"name": "cross_entropy", "precision": "fp8"}},
        "loss.precision must be one of float32 or bf16; got 'fp8'",
    ),
    (
        {
            "model": {"name": "conve", "base_dim": 200},
            "train__mode": "1vsall",
            "loss": {"name": "bce", "relation_weight": 0.1},
        },
        "loss.relation_weight: conve would run its network for every relation of a triple; leave ",
    ),
    (
        {"model": {"name": "rescal", "base_dim": 80}, "med": {"dims": [40, 80]}},
        "med: rescal cannot be cropped; set med.enabled=false",
    ),
    (
        {"model": {"name": "cp", "base_dim": 8}, "med": {"dims": [4, 8], "crop": "split"}},
        "med.crop: split cuts complex rows, which cp has not; leave it out",
    ),
    ({"model__reciprocal": "both"}, "model.reciprocal must be true or false; got 'both'"),
    ({"model__channels": 64}, "model.channels: only conve has it; model.name is rotate"),
    ({"dataset__name": 5}, "dataset.name must be text; got 5"),
    ({"dataset__name": ""}, "dataset.name must not be empty; got ''"),
    ({"dataset__name": "x" * 256}, "dataset.name must have at most 255 characters; got 'xxx"),
    ({"device": "gpu"}, "device must be auto, cpu, cuda or cuda:<index>; got 'gpu'"),
    ({"seed": -1}, "seed must be at least 0; got -1"),
    ({"optim__betas": [0.9]}, "optim.betas must have at least 2 values; got [0.9]"),
    ({"optim__betas": [0.9, 1.0]}, "optim.betas.1 must be less than 1; got 1.0"),
    ({"optim__betas": 0.9}, "optim.betas must be a list; got 0.9"),
    ({"data__subsampling": 1}, "data.subsampling must be true or false; got 1"),
    ({"loss__label_smoothing": 1.0}, "loss.label_smoothing must be less than 1; got 1.0"),
    ({"train__early_stopping": 3}, "train.early_stopping must be a section with keys; got 3"),
    (
        {"train__early_stopping": {"patience": 3}},
        "train.early_stopping: needs evaluations; set train.eval_every",
    ),
    (
        {"train__steps": 5},
        "train.epochs: exactly one of train.epochs and train.steps must be set; got both",
    ),
    (
        {"train": {}},
        "train.epochs: exactly one of train.epochs and train.steps must be set; got neither",
    ),
    (
        {"train__mode": "kvsall", "optim__name": "adam"},
        "loss.name: must be one of bce with train.mode kvsall; got nssa",
    ),
    (
        {"loss__name": "cross_entropy"},
        "loss.name: must be one of nssa, margin, logistic with train.mode negative; "
        "got cross_entropy",
    ),
    (
        {"train__mode": "1vsall", "loss__name": "bce", "data__neg_size": 10},
        "data.neg_size: train.mode 1vsall draws no negatives; leave it out",
    ),
    (
        {"train__mode": "kvsall", "loss__name": "bce", "data__subsampling": True},
        "data.subsampling: train.mode kvsall draws no negatives; leave it out",
    ),
    ({"loss__name": "margin", "loss__alpha": 0.5}, "loss.alpha: only nssa has it; "),
    ({"loss__label_smoothing": 0.1}, "loss.label_smoothing: only bce and cross_entropy have it; "),
    ({"regularizer__name": "l2"}, "regularizer.weight: 0 and regularizer.name l2 contradict"),
    ({"regularizer__weight": 0.1}, "regularizer.weight: 0.1 and regularizer.name none contradict"),
    ({"sched__name": "step"}, "sched.milestones: [] and sched.name step contradict each other; "),
    ({"sched__milestones": [0.5]}, "sched.milestones: [0.5] and sched.name constant contradict"),
    (
        {"sched__name": "step", "sched__milestones": [0.9, 0.5]},
        "sched.milestones: must increase; got [0.9, 0.5]",
    ),
    ({"sched__name": "step", "sched__milestones": [100]}, "sched.milestones.0 must be less than 1"),
    ({"sched__name": "plateau"}, "sched.name: plateau needs evaluations; set train.eval_every"),
    (
        {"train": {"steps": 10}, "sched__warmup_steps": 20},
        "sched.warmup_steps: must be at most train.steps (10); got 20",
    ),
    ({"optim__name": "adagrad", "optim__betas": [0.5, 0.5]}, "optim.betas: only adam has them; "),
    ({"optim__name": "sgd", "optim__eps": 1e-8}, "optim.eps: sgd has none"),
    ({"train__keep": 2}, "train.keep: needs train.save_every"),
    ({"train__keep_every": -1}, "train.keep_every must be at least 0; got -1"),
    (
        {"model__rscf_relation_transform": True},
        "model.rscf_relation_transform: needs model.use_rscf",
    ),
    (
        {
            "model": {"name": "conve", "base_dim": 200, "use_rscf": True},
            "train__mode": "kvsall",
            "loss__name": "bce",
        },
        "model.use_rscf: goes with rotate, transe, distmult and complex; got conve",
    ),
    (
        {
            "model": {
                "name": "complex",
                "base_dim": 8,
                "use_rscf": True,
                "rscf_relation_transform": True,
            }
        },
        "model.rscf_relation_transform: complex has a dot product",
    ),
    (
        {"model__use_rscf": True, "train__mode": "1vsall", "loss__name": "bce"},
        "model.use_rscf: train.mode 1vsall scores all entities",
    ),
    (
        {"model__use_rscf": True, "model__norm": "l2"},
        "model.norm: must be modulus for rotate with model.use_rscf; got l2",
    ),
    ({"med": {"dims": [20, 10]}}, "med.dims: must increase; got [20, 10]"),
    ({"med": {"dims": [20, 40]}}, "med.dims: the last must be model.base_dim (80); got [20, 40]"),
    (
        {"med": {"dims": [20, 80], "submodels_per_step": 3}},
        "med.submodels_per_step: must be at most 2, the number of med.dims; got 3",
    ),
    (
        {"model__norm": "l2", "med": {"dims": [20, 80]}},
        "med: rotate with model.norm l2 cannot be cropped",
    ),
    (
        {"med": {"dims": [20, 80]}, "train__mode": "1vsall", "loss__name": "bce"},
        "train.mode: must be negative with med; got 1vsall",
    ),
    ({"med": {"dims": [20, 80]}, "loss__alpha": 0.5}, "loss.alpha: med has a loss of its own"),
    (
        {"med": {"dims": [20, 80]}, "data__subsampling": True},
        "data.subsampling: the loss of med has weights of its own",
    ),
]


@pytest.mark.parametrize(
    ("values", "message"),
    MISTAKES,
    ids=[f"{i}-{next(iter(it))}" for i, (it, _) in enumerate(MISTAKES)],
)
def test_a_mistake_is_named_once(values, message):
    found = message_of(with_values(**values))
    assert found.startswith(message)
    assert found.count("\n") == 0


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"base_dim": 201}, "model.base_dim: must be a multiple of model.embedding_height (20)"),
        ({"base_dim": 200, "kernel_size": 11}, "model.kernel_size: must fit into the 40 x 10"),
        ({"base_dim": 200, "embedding_height": 7}, "model.base_dim: must be a multiple of"),
        ({"base_dim": 200}, None),
    ],
    ids=["not-a-multiple", "kernel", "height", "the-paper"],
)
def test_conve_is_reshaped(model, message):
    values = with_values(
        model={"name": "conve", **model}, train__mode="kvsall", loss__name="bce", optim__name="adam"
    )
    if message is None:
        assert Config.from_dict(values).model.embedding_height == 20
    else:
        assert message_of(values).startswith(message)


def test_conve_draws_no_negatives():
    values = with_values(model={"name": "conve", "base_dim": 200})
    assert message_of(values) == "train.mode: must be kvsall or 1vsall for conve; got negative"


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
