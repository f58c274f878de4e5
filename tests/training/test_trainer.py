"""The trainer: it learns with every objective, in threads too, and leaves the process alone."""

import pytest
import torch

from kgfast import ConvE, ops
from kgfast.datasets import Dataset
from kgfast.graph import Triples, Vocabulary
from kgfast.kernels import cpu
from kgfast.kernels.cpu import threads
from kgfast.training import Trainer
from kgfast.training.logs import read_rows
from support.small_runs import LEARNERS, config_of, crashing, trainer_of

# One of each mode of training and most losses; the others take as long again.
QUICK = (
    "rotate, shared",
    "distmult, logistic",
    "cp with inverses, 1vsall, dura, relations",
    "conve, kvsall",
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in LEARNERS],
)
def test_it_learns(name):
    sections, least = LEARNERS[name]
    trainer = trainer_of(**sections)
    before = trainer.evaluate("valid").mrr
    result = trainer.fit()
    assert before < 0.06  # 300 entities: random is 0.02
    assert result.valid["mrr"] > least
    assert result.test["mrr"] > least


@pytest.mark.parametrize(
    "name", [pytest.param("conve, kvsall", marks=pytest.mark.slow), "rotate, shared"]
)
def test_mixed_precision_learns_like_full_precision(tmp_path, name):
    sections, _ = LEARNERS[name]
    losses = []
    for precision in (None, "bf16"):
        train = {**sections["train"], "steps": 30, "log_every": 10, "amp": precision}
        trainer_of(tmp_path / str(precision), **{**sections, "train": train}).fit()
        losses.append([row["loss"] for row in read_rows(tmp_path / str(precision)) if "lr" in row])
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    if name.startswith("conve"):  # kernels of kgfast are in float32 whatever the precision
        assert losses[0] != losses[1]


def test_a_second_fit_begins_with_fresh_weights(tmp_path):
    """And without a folder the result is of the last state."""
    sections = {"train": {"steps": 40, "eval_every": 2}, "optim": {"lr": 1.0}}
    first, *others = (trainer_of(it, **sections) for it in (None, tmp_path / "a", tmp_path / "b"))
    result = first.fit()
    assert result.best_step < 40
    assert result.valid == first.evaluate("valid").metrics()
    assert first.fit().test == result.test
    with crashing(2), pytest.raises(MemoryError):
        others[0].fit()
    assert others[0].fit(resume=True).test == others[1].fit().test


def test_any_hits_may_choose_the_best_state(tmp_path):
    train = {"steps": 20, "eval_every": 5, "save_best_metric": "hits@5"}
    trainer = trainer_of(tmp_path, train=train)
    result = trainer.fit()
    rows = [row for row in read_rows(tmp_path) if row.get("split") == "valid"]
    assert max(row["hits@5"] for row in rows) == result.valid["hits@5"]
    assert result.test["hits@5"] == trainer.evaluate("test").hits(5)


def all_entities(optim, model, **options):
    return {
        "model": {"name": model, "gamma": 12.0, **options},
        "optim": {"name": optim},
        "train": {"mode": "1vsall", "steps": 2},
        "loss": {"name": "cross_entropy"},
    }


@pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
@pytest.mark.parametrize(
    ("sections", "backend", "of_torch"),
    [
        ({}, "cpu", 1),
        ({}, "reference", 3),
        ({"optim": {"name": "adam"}}, "cpu", 3),  # steps a whole table
        (all_entities("adagrad", "complex", reciprocal=True), "cpu", 1),
        (all_entities("adam", "complex"), "cpu", 3),
        (all_entities("adagrad", "rescal", base_dim=4), "cpu", 3),
    ],
    ids=["rows", "reference", "dense", "adagrad of 1vsall", "adam of 1vsall", "rescal"],
)
def test_kernels_have_the_cores_where_a_step_is_theirs(monkeypatch, sections, backend, of_torch):
    step, seen = Trainer._step, set()

    def watched(self, batch):
        seen.add((torch.get_num_threads(), threads.count()))
        step(self, batch)

    monkeypatch.setattr(Trainer, "_step", watched)
    with ops.use_backend(backend):
        trainer_of(**{"train": {"steps": 2}} | sections, threads=3).fit()
    assert seen == {(of_torch, 3)}


@pytest.mark.parametrize("negatives", ["shared", "per_row"])
def test_bits_do_not_depend_on_threads(negatives):
    one, three = (trainer_of(data={"negatives": negatives}, threads=count) for count in (1, 3))
    for trainer in (one, three):
        trainer.fit()
    assert torch.equal(one.model.entity, three.model.entity)
    assert torch.equal(one.model.relation, three.model.relation)


def test_bad_input(tmp_path):
    nothing = torch.empty(0, 3, dtype=torch.int64)
    names = Vocabulary(["a", "b"]), Vocabulary(["r"])
    empty, one = (
        Triples(hrt, entities=names[0], relations=names[1])
        for hrt in (nothing, torch.tensor([[0, 0, 1]]))
    )
    with pytest.raises(ValueError, match="no training triples"):
        trainer_of(dataset=Dataset("empty", empty, empty, one, *names)).fit()
    result = trainer_of(dataset=Dataset("one", one, empty, empty, *names)).fit()
    assert (result.valid, result.test, result.best_step) == ({}, {}, 0)
    with pytest.raises(FileNotFoundError, match="no dataset synthetic"):
        Trainer(config_of(dataset={"root": str(tmp_path)}))
    with pytest.raises(ValueError, match="split must be"):
        trainer_of().evaluate("training")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="torch sees no GPU"):
            trainer_of(device="cuda")


def trained(seed: int) -> list[torch.Tensor]:
    sections, _ = LEARNERS["conve, kvsall"]
    train = sections["train"] | {"steps": 6, "eval_every": 0}
    trainer = trainer_of(**sections | {"train": train}, seed=seed)
    trainer.fit()
    return list(trainer.model.state_dict().values())


def test_a_run_neither_reads_nor_moves_the_generator_of_the_process():
    torch.manual_seed(0)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    first = trained(1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    torch.manual_seed(1)
    assert all(torch.equal(*pair) for pair in zip(first, trained(1), strict=True))


def test_the_network_of_a_seed_is_that_of_torch():
    model = ConvE.init(7, 2, 16, embedding_height=4, channels=4, seed=5)
    with torch.random.fork_rng():
        torch.manual_seed(6)
        layers = [torch.nn.Conv2d(1, 4, 3), torch.nn.Linear(model.projection.in_features, 16)]
    for own, other in zip((model.convolution, model.projection), layers, strict=True):
        assert torch.equal(own.weight, other.weight)
        assert torch.equal(own.bias, other.bias)
