"""Our job against what LibKGE's own traced (tests/support/libkge_record.py), without LibKGE."""

import gzip
import importlib
import json
import sys

import numpy as np
import pytest
import torch

import kgfast
from kgfast.adapters.libkge_checkpoints import load_libkge
from support import libkge_files, libkge_stand_in
from support.paths import TESTS

RECORDED = json.loads(gzip.decompress((TESTS / "support" / "libkge_recorded.json.gz").read_bytes()))
NAMES = list(RECORDED["models"])


class Graph:
    """The splits of the recorded graph."""

    def split(self, name):
        return torch.tensor(RECORDED["splits"][name], dtype=torch.int32)

    def num_entities(self):
        return len(RECORDED["models"][NAMES[0]]["entity"])


@pytest.fixture
def adapter(monkeypatch):
    """kgfast.adapters.libkge with a stand-in for LibKGE, and without what LibKGE has to convert."""
    for name in libkge_stand_in.ADAPTERS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name, module in libkge_stand_in.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    module = importlib.import_module("kgfast.adapters.libkge")
    monkeypatch.setattr(module, "from_libkge", lambda model: model)
    yield module
    for name in libkge_stand_in.ADAPTERS:
        sys.modules.pop(name, None)


def recorded_model(name, folder):
    """Return the model from a checkpoint with the recorded tables."""
    tables = [np.array(RECORDED["models"][name][it], np.float32) for it in ("entity", "relation")]
    path = libkge_files.write(folder / "model.pt", name.split()[-1], tables, None)
    model = load_libkge(path)
    return kgfast.Reciprocal(model, "appended") if "reciprocal" in name else model


def job_of(adapter, model, ties, **options):
    config = libkge_stand_in.Config(libkge_stand_in.job_options(ties) | options)
    return adapter.KgfastEntityRankingJob(config, Graph(), None, model)


@pytest.mark.parametrize("ties", ["exact", "a wide band"])
@pytest.mark.parametrize("name", NAMES)
def test_the_trace(name, ties, adapter, tmp_path):
    job = job_of(adapter, recorded_model(name, tmp_path), ties)
    found = libkge_stand_in.noted(job)
    job.run()
    (own,), theirs = found, RECORDED["models"][name]["traces"][ties][-1]
    assert set(own) == set(theirs) - {"num_parameters", "batches"}
    for key in own:
        if isinstance(own[key], float):  # LibKGE sums histograms in float32
            assert own[key] == pytest.approx(theirs[key], rel=1e-6)
        else:
            assert own[key] == theirs[key]
    assert job.is_prepared


def test_kinds_of_ties(adapter, tmp_path):
    """Three entities at one place: best 0, worst 2, the rounded mean 1, of ranks from 0."""
    model = kgfast.TransE(torch.zeros(3, 2), torch.zeros(1, 2))

    class Small(Graph):
        def split(self, name):
            rows = [[0, 0, 1]] if name == "valid" else []
            return torch.tensor(rows, dtype=torch.int32).view(-1, 3)

        def num_entities(self):
            return 3

    for kind, expected in (("best_rank", 0), ("rounded_mean_rank", 1), ("worst_rank", 2)):
        for ties in ("exact", "fuzzy"):
            options = {"entity_ranking.tie_handling.type": kind}
            job = job_of(adapter, model, ties, **options)
            job.dataset = Small()
            job._prepare()
            ranks = job._ranks()
            assert set(ranks) == {"_raw", "_filt", "_filt_test"}
            assert all(it.tolist() == [[expected, expected]] for it in ranks.values())


def test_without_libkge_the_door_says_where_it_is(monkeypatch):
    for name in libkge_stand_in.ADAPTERS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "kge", None)
    with pytest.raises(ImportError, match=r"needs LibKGE, .*: git clone https://github.com/uma"):
        importlib.import_module("kgfast.adapters.libkge")


def test_jobs_are_announced_and_ties_are_checked(adapter, monkeypatch):
    created = []
    monkeypatch.setattr(libkge_stand_in.Job, "job_created_hooks", [created.append])
    job = job_of(adapter, None, "exact")
    assert created == [job]
    with pytest.raises(ValueError, match=r"user.kgfast_ties must be exact or fuzzy; got 'loose'"):
        job_of(adapter, None, "exact", **{"user.kgfast_ties": "loose"})
    with pytest.raises(ValueError, match=r"eval.trace_level must be epoch"):
        job_of(adapter, None, "exact", **{"eval.trace_level": "example"})
