"""The trainer: it learns, its gradients are those of the plain formulas, it stops as it should."""

import json
import signal

import pytest
import torch
from safetensors.torch import load_file

from kgfast import KnownTriples, ops
from kgfast.datasets import Dataset, synthetic
from kgfast.graph import Triples, Vocabulary
from kgfast.kernels import cpu
from kgfast.kernels.cpu import threads
from kgfast.training import Config, Trainer
from kgfast.training.logs import read_rows
from kgfast.training.negatives import Batch
from kgfast.training.run import Run
from kgfast.training.steps import MODES, Leaves

GRAPH = synthetic(300, 6, 1200, 60, 60)
BASE = {
    "threads": 1,
    "dataset": {"name": "synthetic"},
    "model": {"name": "rotate", "base_dim": 16, "gamma": 6.0},
    "optim": {"lr": 0.02},
    "train": {"steps": 40},
    "data": {"train_bs": 128, "neg_size": 32, "negatives": "shared"},
}
NO_GAMMA = {"gamma": 12.0}


def config_of(**sections):
    values = {name: dict(it) if isinstance(it, dict) else it for name, it in BASE.items()}
    mode = sections.get("train", {}).get("mode", "negative")
    if mode != "negative":
        values["data"] = {"train_bs": 128}
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section} if isinstance(section, dict) else section
    return Config.from_dict(values)


def trainer_of(run_dir=None, dataset=GRAPH, **sections):
    return Trainer(config_of(**sections), run_dir, dataset=dataset, progress=False)


LEARNERS = {
    "rotate, shared": ({"train": {"steps": 200}, "loss": {"alpha": 0.5}}, 0.6),
    "rotate, rows": (
        {
            "train": {"steps": 200},
            "data": {"negatives": "per_row", "subsampling": True, "filter_negatives": True},
        },
        0.6,
    ),
    "transe, shared": ({"model": {"name": "transe"}, "train": {"steps": 200}}, 0.2),
    "transe, margin": (
        {"model": {"name": "transe"}, "train": {"steps": 200}, "loss": {"name": "margin"}},
        0.2,
    ),
    "distmult, logistic": (
        {
            "model": {"name": "distmult", **NO_GAMMA},
            "train": {"steps": 150},
            "data": {"negatives": "per_row", "neg_size": 16},
            "loss": {"name": "logistic"},
        },
        0.2,
    ),
    "complex, 1vsall, n3": (
        {
            "model": {"name": "complex", **NO_GAMMA},
            "train": {"steps": 60, "mode": "1vsall"},
            "loss": {"name": "cross_entropy"},
            "regularizer": {"name": "n3", "weight": 0.01},
            "optim": {"name": "adagrad", "lr": 0.3},
        },
        0.5,
    ),
    "distmult, 1vsall": (
        {
            "model": {"name": "distmult", **NO_GAMMA},
            "train": {"steps": 60, "mode": "1vsall"},
            "loss": {"name": "cross_entropy", "label_smoothing": 0.1},
        },
        0.3,
    ),
    "complex, kvsall": (
        {
            "model": {"name": "complex", **NO_GAMMA},
            "train": {"steps": 150, "mode": "kvsall"},
            "loss": {"name": "bce", "label_smoothing": 0.1, "smoothing_style": "conve"},
            "optim": {"name": "adam", "lr": 0.05},
        },
        0.4,
    ),
    "conve, kvsall": (
        {
            "model": {
                "name": "conve",
                "base_dim": 32,
                "embedding_height": 4,
                "channels": 8,
                "input_dropout": 0.1,
                "feature_dropout": 0.1,
                "hidden_dropout": 0.1,
                **NO_GAMMA,
            },
            "train": {"steps": 400, "mode": "kvsall"},
            "loss": {"name": "bce", "label_smoothing": 0.1},
            "optim": {"name": "adam", "lr": 0.01},
        },
        0.2,
    ),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_it_learns(name):
    sections, least = LEARNERS[name]
    trainer = trainer_of(**sections)
    before = trainer.evaluate("valid").mrr
    result = trainer.fit()
    assert before < 0.06  # 300 entities: random is 0.02
    assert result.valid["mrr"] > least
    assert result.test["mrr"] > least


def plain_scores(model, batch, candidates):
    """Scores of the queries of a batch with rows [..., G], from the equations, in float64."""
    anchors, relation = model.entity[batch.anchors], model.relation[batch.relations]
    sign = 1.0 if batch.side == "tail" else -1.0
    name = type(model).__name__
    if name == "TransE":
        difference = (anchors + sign * relation)[:, None] - candidates
        return model.gamma - difference.abs().sum(-1)
    if name == "DistMult":
        return ((anchors * relation)[:, None] * candidates).sum(-1)
    anchor = torch.complex(*anchors.chunk(2, 1))
    candidate = torch.complex(*candidates.chunk(2, -1))
    if name == "ComplEx":
        turn = torch.complex(relation[:, : model.dim], sign * relation[:, model.dim :])
        return ((anchor * turn)[:, None] * candidate.conj()).real.sum(-1)
    phase = sign * relation * (torch.pi / model.embedding_range)
    turn = torch.polar(torch.ones_like(phase), phase)
    return model.gamma - ((anchor * turn)[:, None] - candidate).abs().sum(-1)


def plain_loss(objective, config, model, batch):
    """The loss of a batch without leaves, operators or streams."""
    own = torch.arange(len(batch.anchors))
    log_sigmoid = torch.nn.functional.logsigmoid
    if config.train.mode == "negative":
        ids, mask = objective._negatives.draw(batch)
        positive = plain_scores(model, batch, model.entity[batch.targets][:, None])[:, 0]
        negative = plain_scores(model, batch, model.entity[ids])
        mask = torch.ones_like(negative, dtype=torch.bool) if mask is None else mask
        logits = (config.loss.alpha * negative).masked_fill(~mask, -torch.inf)
        weighted = (logits.softmax(1).detach() * log_sigmoid(-negative)).sum(1)
        weights = torch.ones(len(own)) if batch.weights is None else batch.weights
        loss = -(weights * (log_sigmoid(positive) + weighted)).sum() / (2 * weights.sum())
    else:
        scores = plain_scores(model, batch, model.entity)
        if config.train.mode == "1vsall":
            loss = torch.nn.functional.cross_entropy(scores, batch.targets)
        else:
            indptr, indices = KnownTriples(GRAPH.train).exclude(
                batch.anchors, batch.relations, batch.side
            )
            labels = torch.zeros_like(scores)
            labels[torch.repeat_interleave(indptr.diff()), indices] = 1.0
            loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels)
    if config.regularizer.name == "none":
        return loss
    rows = [model.entity[batch.anchors], model.relation[batch.relations]]
    rows += [] if batch.targets is None else [model.entity[batch.targets]]
    if config.regularizer.name == "l2":
        total = sum(row.square().sum() for row in rows)
    else:
        total = sum(torch.complex(*row.chunk(2, 1)).abs().pow(3).sum() for row in rows)
    return loss + config.regularizer.weight * total / len(own)


PLAIN = {
    "rotate, shared, weights": {"data": {"subsampling": True}, "loss": {"alpha": 0.5}},
    "rotate, shared, filtered": {"data": {"filter_negatives": True, "neg_size": 200}},
    "rotate, rows": {
        "data": {"negatives": "per_row"},
        "regularizer": {"name": "l2", "weight": 0.1},
    },
    "transe, shared": {"model": {"name": "transe"}, "regularizer": {"name": "l2", "weight": 0.2}},
    "transe, rows, filtered": {
        "model": {"name": "transe"},
        "data": {"negatives": "per_row", "filter_negatives": True},
    },
    "complex, 1vsall": {
        "model": {"name": "complex", **NO_GAMMA},
        "train": {"mode": "1vsall"},
        "loss": {"name": "cross_entropy"},
        "regularizer": {"name": "n3", "weight": 0.3},
    },
    "distmult, kvsall": {
        "model": {"name": "distmult", **NO_GAMMA},
        "train": {"mode": "kvsall"},
        "loss": {"name": "bce"},
        "regularizer": {"name": "l2", "weight": 0.3},
    },
    "rotate, kvsall": {"train": {"mode": "kvsall"}, "loss": {"name": "bce"}},
    "rotate, 1vsall, more rows than entities": {
        "data": {"train_bs": 1024},
        "train": {"mode": "1vsall"},
        "loss": {"name": "cross_entropy"},
    },
}


@pytest.mark.parametrize("name", PLAIN)
def test_loss_and_gradients_are_those_of_the_plain_formula(name):
    trainer = trainer_of(**PLAIN[name])
    config, model = trainer.config, trainer.model
    with torch.no_grad():
        model.entity.mul_(3.0)  # away from zero gradients
    objective = MODES[config.train.mode](config, GRAPH.train.hrt, GRAPH.num_entities)
    for number in (0, 1):  # tail, head
        batch = objective.batches.batch(number)
        leaves = Leaves(model)
        loss = objective(leaves, batch)
        loss.backward()
        found = torch.zeros(model.entity.shape, dtype=torch.float64)
        if model.entity.grad is not None:
            found += model.entity.grad
        for part in leaves.gradients():
            found.index_add_(0, part.ids, part.rows.double())
        relation = model.relation.grad.clone()
        model.zero_grad(set_to_none=True)
        exact = type(model)(model.entity.detach().double(), model.relation.detach().double())
        exact.gamma = getattr(model, "gamma", 0.0)
        exact.requires_grad_()
        expected = plain_loss(objective, config, exact, batch)
        expected.backward()
        torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
        for ours, theirs in ((found, exact.entity.grad), (relation, exact.relation.grad)):
            scale = float(theirs.abs().max())
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-5 * scale)


def test_the_inverse_relations_of_conve_are_penalised():
    sections = LEARNERS["conve, kvsall"][0] | {"regularizer": {"name": "l2", "weight": 1e9}}
    trainer = trainer_of(**sections)
    objective = MODES["kvsall"](trainer.config, GRAPH.train.hrt, GRAPH.num_entities)
    for number, half in ((0, slice(0, 6)), (1, slice(6, 12))):
        trainer.model.zero_grad(set_to_none=True)
        objective(Leaves(trainer.model), objective.batches.batch(number)).backward()
        used = trainer.model.relation.grad.abs().sum(1) > 0
        assert bool(used[half].any())
        used[half] = False
        assert not bool(used.any())


def test_accumulated_batches_are_one_step_of_their_mean():
    trainer = trainer_of(train={"steps": 1, "accumulate": 2}, optim={"name": "sgd", "lr": 1.0})
    before = trainer.model.entity.detach().clone()
    objective = MODES["negative"](trainer.config, GRAPH.train.hrt, GRAPH.num_entities)
    gradient = torch.zeros_like(before)
    for number in (0, 1):
        leaves = Leaves(trainer.model)
        (objective(leaves, objective.batches.batch(number)) / 2).backward()
        for part in leaves.gradients():
            gradient.index_add_(0, part.ids, part.rows)
    trainer.model.zero_grad(set_to_none=True)
    trainer.fit()
    torch.testing.assert_close(trainer.model.entity.detach(), before - gradient)


def test_a_step_touches_only_its_rows():
    trainer = trainer_of(train={"steps": 1}, data={"train_bs": 4, "neg_size": 3})
    before = trainer.model.entity.detach().clone()
    trainer.fit()
    changed = int((trainer.model.entity != before).any(1).sum())
    assert 0 < changed <= 4 + 4 + 3


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
@pytest.mark.parametrize("name", ["conve, kvsall", "rotate, shared"])
def test_mixed_precision_learns_like_full_precision(tmp_path, name, amp):
    sections, _ = LEARNERS[name]
    losses = []
    for precision in (None, amp):
        train = {**sections["train"], "steps": 30, "log_every": 10, "amp": precision}
        trainer_of(tmp_path / str(precision), **{**sections, "train": train}).fit()
        losses.append([row["loss"] for row in read_rows(tmp_path / str(precision)) if "lr" in row])
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    if name.startswith("conve"):  # kernels of kgfast are in float32 whatever the precision
        assert losses[0] != losses[1]


def test_clipped_steps_are_small():
    free, clipped = (
        trainer_of(train={"steps": 1}, optim={"name": "sgd", "lr": 1.0, "grad_clip": clip})
        for clip in (0, 1e-3)
    )
    moved = []
    for trainer in (free, clipped):
        before = trainer.model.entity.detach().clone(), trainer.model.relation.detach().clone()
        trainer.fit()
        after = trainer.model.entity.detach(), trainer.model.relation.detach()
        moved.append(sum(float((a - b).square().sum()) for a, b in zip(after, before, strict=True)))
    assert moved[1] == pytest.approx(1e-6, rel=0.01)
    assert moved[0] > 1e-4


def test_steps_of_epochs():
    trainer = trainer_of(train={"steps": None, "epochs": 2, "accumulate": 3})
    assert trainer.fit().steps == 14  # 2 * 2 * 10 batches of 128 of 1200 triples, by threes


def test_a_run_folder_holds_what_happened(tmp_path):
    train = {"steps": 20, "eval_every": 8, "log_every": 5, "save_every": 10, "keep": 1}
    trainer = trainer_of(tmp_path / "run", train=train)
    result = trainer.fit()
    rows = read_rows(tmp_path / "run")
    assert [row["step"] for row in rows if "loss" in row] == [5, 10, 15, 20]
    assert [row["step"] for row in rows if row.get("split") == "valid"] == [8, 16, 20]
    assert rows[0]["lr"] == 0.02
    assert rows[0]["epoch"] == 0.25
    held = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"last.safetensors", "previous.safetensors", "best.safetensors", "config.yaml"} <= held
    assert {name for name in held if name.startswith("step_")} == {"step_20.safetensors"}
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert written["test"] == result.test
    assert {"machine", "threads", "versions", "command", "seconds_training"} <= written.keys()
    assert written["threads"] == 1
    assert Config.from_yaml(tmp_path / "run" / "config.yaml") == trainer.config
    assert "test " in repr(result)
    assert "20 steps in" in repr(result)


def test_the_best_state_is_tested(tmp_path, monkeypatch):
    trainer = trainer_of(tmp_path, train={"steps": 30, "eval_every": 10})
    values, evaluate, states = iter([0.1, 0.9, 0.2]), Trainer.evaluate, []

    def evaluated(self, split="test"):
        ranks = evaluate(self, split)
        states.append(self.model.entity.detach().clone())
        if split == "valid":
            metrics = ranks.metrics() | {"mrr": next(values)}
            ranks.metrics = lambda: metrics
        return ranks

    monkeypatch.setattr(Trainer, "evaluate", evaluated)
    result = trainer.fit()
    assert result.best_step == 20
    assert result.valid["mrr"] == 0.9
    assert torch.equal(states[3], states[1])
    assert not torch.equal(states[2], states[1])
    last = load_file(tmp_path / "last.safetensors")
    assert torch.equal(last["model.entity"], states[2])


def test_early_stopping(tmp_path):
    stop = {"patience": 2, "min_delta": 10.0}
    train = {"steps": 100, "eval_every": 10, "early_stopping": stop}
    result = trainer_of(tmp_path, train=train).fit()
    assert (result.steps, result.stopped_early) == (30, True)  # no metric gains 10 after the first
    again = trainer_of(tmp_path, train=train).fit(resume=True)
    assert (again.steps, again.test) == (30, result.test)


def test_plateau_lowers_the_rate(tmp_path):
    sched = {"name": "plateau", "patience": 1, "factor": 0.5}
    train = {"steps": 20, "eval_every": 5, "log_every": 5, "save_best_metric": "mr"}
    trainer = trainer_of(tmp_path, sched=sched, train=train, optim={"lr": 1e-12})
    trainer.fit()
    rates = [row["lr"] for row in read_rows(tmp_path) if "lr" in row]
    assert rates == [1e-12, 1e-12, 5e-13, 2.5e-13]


@pytest.mark.parametrize("negatives", ["shared", "per_row"])
def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path, monkeypatch, negatives):
    step = Run._step

    def spoiled(self, number):
        if number == 13:
            with torch.no_grad():
                self._model.entity[[17, 250]] = torch.nan
        return step(self, number)

    monkeypatch.setattr(Run, "_step", spoiled)
    data = {"negatives": negatives, "neg_size": 300}
    trainer = trainer_of(tmp_path, train={"steps": 40, "save_every": 5}, data=data)
    name = GRAPH.entities.name(17)
    with pytest.raises(FloatingPointError, match=rf"at step 13: row 17 of the entity .*{name}"):
        trainer.fit()
    assert json.loads(json.dumps(read_rows(tmp_path))) is not None
    kept = load_file(tmp_path / "last.safetensors")
    assert all(bool(tensor.isfinite().all()) for tensor in kept.values())
    monkeypatch.undo()
    assert trainer_of(tmp_path, train={"steps": 40}, data=data).fit(resume=True).steps == 40


def test_a_state_that_is_not_finite_is_not_saved(tmp_path, monkeypatch):
    timed_step = Run.make_step

    def spoiled(self):
        timed_step(self)
        if self.state.step == 10:
            with torch.no_grad():
                self._model.relation[2] = torch.inf

    monkeypatch.setattr(Run, "make_step", spoiled)
    with pytest.raises(FloatingPointError, match="row 2 of the relation table"):
        trainer_of(tmp_path, train={"steps": 40, "save_every": 5}).fit()
    assert bool(load_file(tmp_path / "last.safetensors")["model.relation"].isfinite().all())


def test_an_interrupt_saves_and_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    straight = trainer_of()
    straight.fit()
    step = Run._step

    def interrupted(self, number):
        if number == 17:
            signal.raise_signal(signal.SIGINT)
        return step(self, number)

    monkeypatch.setattr(Run, "_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer_of(tmp_path).fit()
    said = capsys.readouterr().err
    assert "interrupted after step 18 of 40 and saved" in said
    assert f"--run {tmp_path} --resume" in said
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.undo()
    resumed = trainer_of(tmp_path)
    resumed.fit(resume=True)
    assert torch.equal(resumed.model.entity, straight.model.entity)


def test_a_second_interrupt_stops_at_once(monkeypatch):
    def interrupted(self, number):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Run, "_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer_of().fit()


def test_threads_and_generators_are_left_as_they_were():
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    trainer_of(train={"steps": 2}, **{"threads": 1}).fit()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


@pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
@pytest.mark.parametrize(
    ("sections", "backend", "of_torch"),
    [
        ({}, "cpu", 1),
        ({}, "reference", 3),
        ({"optim": {"name": "adam"}}, "cpu", 3),  # of a whole table
    ],
    ids=["rows", "reference", "dense"],
)
def test_kernels_have_the_cores_where_a_step_is_theirs(monkeypatch, sections, backend, of_torch):
    step, seen = Run._step, set()

    def watched(self, number):
        seen.add((torch.get_num_threads(), threads.count()))
        return step(self, number)

    monkeypatch.setattr(Run, "_step", watched)
    with ops.use_backend(backend):
        trainer_of(train={"steps": 2}, **sections, threads=3).fit()
    assert seen == {(of_torch, 3)}


@pytest.mark.parametrize("negatives", ["shared", "per_row"])
def test_bits_do_not_depend_on_threads(negatives):
    one, three = (trainer_of(data={"negatives": negatives}, threads=count) for count in (1, 3))
    for trainer in (one, three):
        trainer.fit()
    assert torch.equal(one.model.entity, three.model.entity)
    assert torch.equal(one.model.relation, three.model.relation)


def test_runs_do_not_overwrite_or_mix(tmp_path):
    trainer_of(tmp_path, train={"steps": 2}).fit()
    with pytest.raises(ValueError, match="holds a run"):
        trainer_of(tmp_path, train={"steps": 2}).fit()
    with pytest.raises(ValueError, match=r"another config: optim\.lr was 0\.02, is 0\.5"):
        trainer_of(tmp_path, train={"steps": 2}, optim={"lr": 0.5}).fit(resume=True)


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


def test_an_error_of_an_operator_is_not_taken_for_divergence(monkeypatch):
    def broken(*_, **__):
        raise ValueError("something else")

    monkeypatch.setattr(ops, "pairwise_scores", broken)
    with pytest.raises(ValueError, match="something else"):
        trainer_of().fit()


def test_a_batch_names_its_side():
    objective = MODES["negative"](config_of(), GRAPH.train.hrt, GRAPH.num_entities)
    assert isinstance(objective.batches.batch(1), Batch)
    assert objective.batches.batch(1).side == "head"
