"""Training by several processes: the losses of one, states for any number, failures told to all."""

from functools import partial

import pytest
import torch

import kgfast
from kgfast.distributed import LostProcessError
from kgfast.kernels import cpu
from kgfast.kernels.operands import Need
from kgfast.kernels.scores import get_score
from kgfast.processes.together import are_summed_alone
from kgfast.tables import files
from kgfast.tables.mapped import MappedRoom
from support import flat
from support.gloo import run_together, values
from support.problems import SCORES
from support.small_runs import assert_same_tensors, crashing, trainer_of
from support.trained_together import (
    CASES,
    config_of,
    diverging,
    fit_together,
    fitted,
    graph,
    is_bit_equal,
    losses_in,
    resumed_together,
    tensors_of,
    without_one,
    wrong_starts,
)

NAME = "rotate, nssa, rows, filtered"


def assert_as_one(name, found, folder, one_folder, one):
    """Compare losses and tables with one process's: equal bits, or losses within 1e-5."""
    losses, expected = losses_in(folder), losses_in(one_folder)
    assert len(losses) == len(expected)
    assert float(((losses - expected) / expected).abs().max()) < 1e-5
    if is_bit_equal(name):
        assert torch.equal(losses, expected)
        for of_rank in found:
            assert_same_tensors(of_rank["tables"], one["tables"])


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    ["rotate, nssa, rows", "rotate, nssa, pool", "rotate, med", "distmult, logistic, pool, n3"],
)
def test_losses_and_tables_do_not_depend_on_the_number_of_processes(name, world, tmp_path):
    config = config_of(name, 6, eval_every=6)
    one = fitted(config, tmp_path / "one")
    found = fit_together(world, config, tmp_path / "all")
    assert_as_one(name, found, tmp_path / "all", tmp_path / "one", one)


@pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(
    ("batch", "pool", "dim"), [(70, 700, 33), (1030, 40, 3), (40, 1030, 3), (700, 1000, 3)]
)
def test_sums_over_a_pool_are_shared_out_where_that_changes_no_bit(score, batch, pool, dim):
    generator = torch.Generator().manual_seed(0)
    width = dim * get_score(score).planes
    queries, table = (torch.randn(rows, width, generator=generator) for rows in (batch, pool))
    grad = torch.randn(batch, pool, generator=generator)
    problem = flat.operands_of(queries, table, score)
    whole = flat.cpu.backend.backward(problem, grad, need=Need(True, True))
    alone = [are_summed_alone(problem, grad, of_queries=it) for it in (True, False)]
    assert all(alone) or (score in ("dot", "l2") and dim == 3)
    if alone[0]:
        for rows in (slice(0, 7), slice(7, batch)):
            part = problem.of_queries(rows), grad[rows]
            own = flat.cpu.backend.backward(*part, need=Need(True, False))
            assert torch.equal(own.queries, whole.queries[rows])
    if alone[1]:
        for rows in (slice(0, 7), slice(7, pool)):
            part = problem.of_rows(rows), grad[:, rows]
            own = flat.cpu.backend.backward(*part, need=Need(False, True))
            assert torch.equal(own.table, whole.table[rows])


def test_a_crashed_run_of_two_processes_goes_on_as_one_and_loads(tmp_path):
    one = fitted(config_of(NAME, 20), tmp_path / "one")
    found = values(run_together(2, partial(resumed_together, tmp_path / "two"), timeout=120))
    assert_as_one(NAME, found, tmp_path / "two", tmp_path / "one", one)
    assert found[0]["result"].test == found[1]["result"].test == one["result"].test
    run = kgfast.load_run(tmp_path / "two", data=False, checkpoint="last")
    ranks = kgfast.rank(run.model, graph().test, known=graph().known())
    assert ranks.metrics() == found[0]["result"].test


def test_what_is_wrong_in_one_process_is_told_in_all(tmp_path):
    cases = values(run_together(2, partial(wrong_starts, tmp_path), timeout=120))
    for what, message in {
        "config": "processes 0 and 1 differ in seed: 0 and 1",
        "names": "processes 0 and 1 differ in the names of entities and relations",
    }.items():
        for case in cases:
            assert isinstance(case[what], ValueError), case[what]
            assert message in str(case[what])
    assert isinstance(cases[1]["failing"], MemoryError)
    assert str(cases[0]["failing"]) == "process 1 of 2: MemoryError: none is left"


def test_a_divergence_in_one_process_is_one_in_all(tmp_path):
    cases = values(run_together(2, partial(diverging, tmp_path), timeout=120))
    for case in cases:
        for what, error in case.items():
            assert type(error) is FloatingPointError, (what, error)
            expected = "ranks of valid cannot be" if "ranks" in what else "the loss "
            assert str(error).startswith(expected), (what, error)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["lost", "hanging"])
def test_a_process_that_is_gone_is_named(how, tmp_path):
    error = run_together(2, partial(without_one, how, tmp_path), timeout=60)[0]
    assert isinstance(error, LostProcessError), error
    assert error.args[0].startswith("process 1 of 2 did not come to step")


# A network's sums over all entities are rounded otherwise, and Adam makes ten times as much of that
# in every twenty steps (docs/explanation/scale.md).
STEPS = {"conve, kvsall": 30}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", [1, 4])
@pytest.mark.parametrize("name", CASES)
def test_loss_curves_are_those_of_one_process(name, world, tmp_path):
    config = config_of(name, STEPS.get(name, 200))
    one = fitted(config, tmp_path / "one")
    found = fit_together(world, config, tmp_path / "all")
    assert_as_one(name, found, tmp_path / "all", tmp_path / "one", one)
    assert found[0]["result"].test["mrr"] == pytest.approx(one["result"].test["mrr"], rel=0.02)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [NAME, "transe, margin, pool, dense", "rotate, med"])
def test_a_run_goes_on_in_another_number_of_processes(name, tmp_path):
    one = fitted(config_of(name, 30), tmp_path / "one")
    for ends_at, world in ((6, 2), (11, 4), (17, 3), (22, 1), (None, 2)):
        in_files = name == NAME and world == 3
        more = {"table_folder": str(tmp_path / "tables")} if in_files else {}
        config = config_of(name, 30, save_every=5, **more)
        found = fit_together(world, config, tmp_path / "many", ends_at=ends_at)
    assert_as_one(name, found, tmp_path / "many", tmp_path / "one", one)


@pytest.mark.parametrize("optim", ["row_adam", "row_adagrad"])
def test_tables_in_mapped_files_train_as_those_in_memory(optim, tmp_path, monkeypatch):
    """Bit for bit, over a crash; the files are of no name, and everything of that size is there."""
    sections = {"optim": {"name": optim, "lr": 0.02}, "train": {"steps": 12, "save_every": 5}}
    trainer_of(tmp_path / "memory", **sections).fit()
    monkeypatch.setattr(files, "_BLOCK", 400)
    made, make = [], MappedRoom.__call__

    def noted(self, shape):
        made.append(tuple(shape))
        return make(self, shape)

    monkeypatch.setattr(MappedRoom, "__call__", noted)
    sections["train"]["table_folder"] = str(tmp_path / "tables")
    with crashing(8), pytest.raises(MemoryError):
        trainer_of(tmp_path / "files", **sections).fit()
    tables = 3 if optim == "row_adam" else 2
    assert made == [(300, 32)] * tables
    trainer_of(tmp_path / "files", **sections).fit(resume=True)
    # once for a state that was read, the rest for the best
    assert made.count((300, 32)) == 3 * tables + 1
    assert_same_tensors(*(tensors_of(tmp_path / it) for it in ("files", "memory")))
    assert list((tmp_path / "tables").iterdir()) == []
