"""Config: what is accepted, and that every mistake is named with its key and its remedy."""

import copy
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kgfast.training import Config
from kgfast.training.config.files import IGNORED

BASE = {
    "dataset": {"name": "wn18rr"},
    "model": {"name": "rotate", "base_dim": 80},
    "optim": {"lr": 1e-3},
    "train": {"epochs": 1},
}
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


def with_values(**dotted):
    values = copy.deepcopy(BASE)
    for key, value in dotted.items():
        section, _, name = key.partition("__")
        if name:
            values.setdefault(section, {})[name] = value
        else:
            values[section] = value
    return values


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


def test_yaml_itself_reads_1e_3_as_text(tmp_path):
    """Otherwise the test above tests nothing that happens."""
    assert yaml.safe_load("1e-3") == "1e-3"
    path = tmp_path / "a.yaml"
    path.write_text(
        yaml.safe_dump(BASE).replace("0.001", "1e-3").replace("epochs: 1", "steps: 1e5")
    )
    config = Config.from_yaml(path)
    assert (config.optim.lr, config.train.steps) == (1e-3, 100_000)
    assert type(config.train.steps) is int


def test_upper_case_names_are_accepted():
    values = with_values(model__name="ComplEx", optim__name="Adam", train__save_best_metric="MRR")
    config = Config.from_dict(values)
    assert (config.model.name, config.optim.name) == ("complex", "adam")
    assert config.train.save_best_metric == "mrr"


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
            "optim.lr must be a number; got 'abc'",
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
        ("optim.lr=abc", "--set: optim.lr must be a number; got 'abc'"),
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


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"b\.yaml: no such config file"):
        Config.from_yaml(tmp_path / "b.yaml")


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
