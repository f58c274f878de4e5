"""Steps in graphs: when they are captured, replayed, or run without one; graphs are stand-ins."""

import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from kgfast.processes.assignment import ALONE
from kgfast.training import trainer as loop
from kgfast.training.capture import StepGraphs, obstacle_of
from support.small_runs import (
    assert_same_tensors,
    config_of,
    crashing,
    sections_of_table,
    trainer_of,
)

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
SECTIONS = sections_of_table("""
pool
    data.filter_negatives=true  data.subsampling=true  sched.name=cosine
lists
    data.negatives=per_row  data.filter_negatives=true  optim.name=adam  optim.grad_clip=0.5
med
    med.dims=[4,8,16]  med.submodels_per_step=2
dropout, penalised
    model.name=conve  model.base_dim=16  model.embedding_height=4  model.channels=4
    model.gamma=12  train.mode=1vsall  loss.name=bce  regularizer.name=l2  regularizer.weight=0.1
""")


class Graph:
    """Stand-in for a CUDA graph, which calls the step again."""

    def __init__(self, step):
        self.step, self.replays = step, 0

    def replay(self):
        self.replays += 1
        self.step()


@pytest.fixture
def cuda(monkeypatch):
    """Let streams be stand-ins, and captures make stand-ins of graphs; return the latter."""
    graphs = []
    stream = SimpleNamespace(wait_stream=lambda other: None)

    def recorded(self, step):
        graphs.append(Graph(step))
        return graphs[-1]

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
    monkeypatch.setattr(StepGraphs, "_recorded", recorded)
    return graphs


@pytest.fixture
def captured(cuda, monkeypatch):
    """Let runs on the CPU take the branches of a GPU."""
    monkeypatch.setattr(loop, "get_backend", lambda name: SimpleNamespace(defers_checks=True))
    obstacle = {"auto": None, "always": None, "never": ""}
    monkeypatch.setattr(
        loop, "obstacle_of", lambda config, *_, **__: obstacle[config.train.capture]
    )
    return cuda


def trained(folder=None, how="always", resume=False, **sections):
    train = {"steps": 50, "save_every": 7, "capture": how}
    sections = sections | {"train": train | sections.get("train", {})}
    trainer = trainer_of(folder, **sections)
    trainer.fit(resume)
    return trainer.model.state_dict()


def test_a_step_is_captured_after_three_and_then_replayed(cuda):
    table, calls = torch.zeros(2), []
    graphs = StepGraphs(GPU, [table], warnings.warn, None)
    for number in range(12):
        before = table._version
        graphs.run(number % 2, lambda kind=number % 2: calls.append(kind))
        assert (table._version > before) == (number >= 6)
    assert calls == [0, 1] * 6
    assert [graph.replays for graph in cuda] == [3, 3]
    graphs.clear()
    graphs.run(0, lambda: None)
    assert len(cuda) == 2


@pytest.mark.parametrize("sections", SECTIONS.values(), ids=SECTIONS)
def test_captured_steps_have_the_bits_of_others(captured, sections):
    found = trained(**sections)
    assert sum(graph.replays for graph in captured) > 20
    count = len(captured)
    assert_same_tensors(trained(how="never", **sections), found)
    assert len(captured) == count


@pytest.mark.parametrize("hows", [("always", "never"), ("never", "always")])
def test_a_run_resumes_with_and_without_graphs(captured, tmp_path, hows):
    whole = trained(tmp_path / "whole")
    with crashing(26), pytest.raises(MemoryError):
        trained(tmp_path / "parts", hows[0])
    assert_same_tensors(trained(tmp_path / "parts", hows[1], resume=True), whole)


def test_a_step_that_cannot_be_captured_runs_without_a_graph(captured, monkeypatch, capsys):
    """A capture that fails leaves gradients, which no later step may add."""
    expected = trained(how="never")
    first = []

    def failing(self, step):
        first.append(step)
        monkeypatch.setattr(loop.Optimizer, "step", broken)
        try:
            step()
        finally:
            monkeypatch.setattr(loop.Optimizer, "step", inner)

    def broken(self):
        raise RuntimeError("operation not permitted when stream is capturing\nand so on")

    inner = loop.Optimizer.step
    monkeypatch.setattr(StepGraphs, "_recorded", failing)
    trainer = trainer_of(train={"steps": 50, "capture": "auto"})
    trainer.progress = True
    trainer.fit()
    assert_same_tensors(trainer.model.state_dict(), expected)
    said = capsys.readouterr().err.splitlines()
    lines = [line for line in said if "captured" in line]
    assert lines == [
        "steps are not captured in a graph: operation not permitted when stream is capturing"
    ]
    assert len(first) == 1
    with pytest.raises(ValueError, match=r"train\.capture: always, but operation not"):
        trained()


@pytest.mark.filterwarnings("ignore:called a synchronizing")
def test_a_step_that_waits_is_not_captured(cuda):
    said = []
    graphs = StepGraphs(GPU, [], said.append, None)

    def step():
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("something else", stacklevel=1)

    for _ in range(5):
        with pytest.warns(UserWarning, match="something else"):
            graphs.run("kind", step)
    assert not cuda
    (reason,) = said
    assert reason.startswith(f"the host waits for the device at {__file__}:")


REASONS = {
    "the device is cpu": (CPU, {}, {}),
    "processes exchange gradients": (GPU, {}, {"size": 2}),
    "the host reads each loss": (GPU, {}, {"defers": False}),
    "a model or loss of your own": (GPU, {"loss": {"name": "a.b:C"}}, {}),
    "different numbers of answers": (
        GPU,
        {"model": {"name": "complex", "gamma": 12}, "train": {"mode": "kvsall"}}
        | {"loss": {"name": "bce"}},
        {},
    ),
}


@pytest.mark.parametrize("why", REASONS)
def test_what_forbids_a_capture_is_said(why):
    device, sections, facts = REASONS[why]
    assignment = SimpleNamespace(size=facts.get("size", 1))
    train = sections.get("train", {}) | ({"capture": "always"} if device == CPU else {})
    config = config_of(**sections | {"train": train})
    defers = facts.get("defers", True)
    assert why in obstacle_of(config, device, assignment, defers_checks=defers)
    assert obstacle_of(config_of(), GPU, ALONE, defers_checks=True) is None


def test_a_cpu_captures_nothing(capsys):
    trainer = trainer_of(train={"steps": 2})
    trainer.progress = True
    trainer.fit()
    assert "captured" not in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"train\.capture: always, but the device is cpu"):
        trained()
