"""LibKGE's own job and ours on the same models: their traces are the same.

Runs where ``KGFAST_LIBKGE`` names a checkout of LibKGE, which is on no package index;
tests/adapters/test_libkge_recorded.py compares with what this one recorded.
"""

import json

import pytest
import torch

from support import libkge

pytestmark = pytest.mark.slow

MODELS = {
    "complex": {},
    "distmult": {},
    "transe": {"transe.l_norm": 1.0},
    "transe l2": {"transe.l_norm": 2.0},
    "rotate": {},
    "rotate l2": {"rotate.l_norm": 2.0},
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


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    libkge.checkout()
    return libkge.graph_of(libkge.write_graph(tmp_path_factory.mktemp("graph"), (40, 3)))


def made(name, graph, folder):
    return libkge.model_of(name, MODELS[name], graph, folder)


def as_text(entry):
    """In which a NaN is equal to a NaN."""
    return json.dumps(entry, sort_keys=True)


@pytest.mark.parametrize("ties", libkge.TIES)
@pytest.mark.parametrize("name", MODELS)
def test_the_trace(name, ties, graph, tmp_path):
    model = made(name, graph, tmp_path)
    for split in ("valid", "test"):
        theirs, ours = (
            libkge.traced(model, kind, graph, tmp_path, libkge.job_options(ties, split))
            for kind in ("EntityRankingJob", "KgfastEntityRankingJob")
        )
        assert as_text(ours) == as_text(theirs)


def test_a_model_of_another_kind(graph):
    from kgfast.adapters.libkge import from_libkge

    with pytest.raises(TypeError, match=r"must be a kge.model.KgeModel; got Linear"):
        from_libkge(torch.nn.Linear(1, 1))
