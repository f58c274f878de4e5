"""LibKGE's own job and ours on the same models: every entry of their traces is the same.

Runs where ``KGFAST_LIBKGE`` names a checkout of LibKGE, which is on no package index;
tests/adapters/test_libkge_recorded.py compares with what this one recorded.
"""

import json

import pytest
import torch

import kgfast
from support import libkge

pytestmark = pytest.mark.slow

MODELS = {
    "complex": {},
    "distmult": {},
    "transe": {"transe__l_norm": 1.0},
    "transe l2": {"transe__l_norm": 2.0},
    "rotate": {},
    "rotate l2": {"rotate__l_norm": 2.0},
    "rescal": {},
    "cp": {},
    "simple": {},
    "transh": {},
    "relational_tucker3": {},
    **{
        f"reciprocal {name}": {} for name in ("complex", "conve", "rotate", "transformer", "transh")
    },
}
IN_BLOCKS = ("transh", "reciprocal transh")
TIES = {
    "exact": {"atol": "0.0", "rtol": "0.0"},
    "fuzzy": {},
    "a wide band": {"rtol": "0.1"},
}
OF_THE_RUN = ("timestamp", "entry_id", "epoch_time", "job_id", "folder")


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    libkge.checkout()
    from kge import Dataset

    folder = libkge.write_graph(tmp_path_factory.mktemp("graph"), (40, 3))
    return Dataset.create(libkge.config_of("complex", folder), folder=str(folder))


def made(name, graph, folder):
    from kge.model import KgeModel

    kind, base = name.split()[0], None
    if kind == "reciprocal":
        kind, base = "reciprocal_relations_model", name.split()[1]
    config = libkge.config_of(kind, folder, **MODELS[name])
    config.set("lookup_embedder.dim", 32)
    if base is not None:
        config.set("reciprocal_relations_model.base_model.type", base)
        config._import(base)
    torch.manual_seed(0)
    return KgeModel.create(config, graph)


def traced(model, class_name, graph, folder, split="valid", ties="exact"):
    """The entries that a job traces."""
    from kge.job import EvaluationJob

    config = model.config.clone()
    config.folder = str(folder)
    modules = ["kge.job", "kge.model", "kge.model.embedder", "kgfast.adapters.libkge"]
    options = {
        "modules": modules,
        "entity_ranking.class_name": class_name,
        "eval.split": split,
        "eval.trace_level": "example",
        "eval.batch_size": 7,
        "entity_ranking.hits_at_k_s": [1, 3, 10],
        **{
            f"entity_ranking.metrics_per.{what}": True
            for what in ("head_and_tail", "relation_type", "argument_frequency")
        },
        **{f"entity_ranking.tie_handling.{key}": value for key, value in TIES[ties].items()},
    }
    for key, value in options.items():
        config.set(key, value)
    if ties != "exact":
        config.set("user.kgfast_ties", "fuzzy", create=True)
    job, entries = EvaluationJob.create(config, graph, model=model), []

    def keep(**entry):
        entries.append({key: entry[key] for key in entry if key not in OF_THE_RUN})
        return entry

    def note(job):
        entries.append({"hook": dict(job.current_trace["batch"] or {"size": "epoch"})})

    job.trace = lambda **entry: keep(
        **{key: value for key, value in entry.items() if key not in ("echo", "log")}
    )
    job.pre_batch_hooks.append(note)
    job.post_batch_hooks.append(note)
    job.run()
    return entries


def as_text(entry):
    """In which a NaN is equal to a NaN."""
    return json.dumps(entry, sort_keys=True)


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("name", MODELS)
def test_every_entry_of_the_trace(name, ties, graph, tmp_path):
    model = made(name, graph, tmp_path)
    for split in ("valid", "test"):
        theirs, ours = (
            traced(model, kind, graph, tmp_path, split, ties)
            for kind in ("EntityRankingJob", "KgfastEntityRankingJob")
        )
        assert len(ours) > 90
        assert [set(it) for it in ours] == [set(it) for it in theirs]
        for own, expected in zip(ours, theirs, strict=True):
            assert as_text(own) == as_text(expected)


def test_a_class_of_ties_that_there_is_none_of(graph, tmp_path):
    from kge.job import EvaluationJob

    import kgfast.adapters.libkge  # noqa: F401

    config = made("complex", graph, tmp_path).config
    config.set("modules", ["kge.job", "kgfast.adapters.libkge"])
    config.set("entity_ranking.class_name", "KgfastEntityRankingJob")
    config.set("user.kgfast_ties", "loose", create=True)
    with pytest.raises(ValueError, match=r"user.kgfast_ties must be exact or fuzzy; got 'loose'"):
        EvaluationJob.create(config, graph, model=None)


@pytest.mark.parametrize("name", MODELS)
def test_checkpoints(name, graph, tmp_path):
    from kge.util import package  # noqa: F401

    from kgfast.adapters.libkge import from_libkge, load_libkge

    model = made(name, graph, tmp_path)
    content = {"type": "package", "model": model.save()}
    content = graph.save_to(model.config.save_to(content), ["entity_ids", "relation_ids"])
    torch.save(content, tmp_path / "model.pt")
    triples = graph.split("test").long()
    if any(kind in name for kind in ("transh", "tucker3", "conve", "transformer")):
        with pytest.raises(ValueError, match="is not available; known: rotate, transe"):
            load_libkge(tmp_path / "model.pt")
        assert (type(from_libkge(model)) is kgfast.BlockScorer) == (name in IN_BLOCKS)
        return
    ranks = kgfast.rank(load_libkge(tmp_path / "model.pt"), triples)
    assert torch.equal(ranks.greater, kgfast.rank(from_libkge(model), triples).greater)


def test_a_model_of_another_kind(graph):
    from kgfast.adapters.libkge import from_libkge

    with pytest.raises(TypeError, match=r"must be a kge.model.KgeModel; got Linear"):
        from_libkge(torch.nn.Linear(1, 1))
