"""The synthetic graph has the promised sizes and patterns, and its embeddings rank its triples."""

import os
import subprocess
import sys
from ast import literal_eval
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import kgfast
from kgfast.datasets import synthetic
from kgfast.datasets.identity import fingerprint
from support import drawn

SMALL = (2_000, 11, 5_000, 250, 250)


@pytest.fixture(scope="module")
def small():
    return synthetic(*SMALL)


def pairs_of(graph, relation):
    id = graph.relations[relation]
    hrt = torch.cat([graph.train.hrt, graph.valid.hrt, graph.test.hrt])
    return {(h, t) for h, t in hrt[hrt[:, 1] == id][:, ::2].tolist()}


@pytest.mark.parametrize(
    "sizes",
    [
        (40_943, 11, 86_835, 3_034, 3_134),
        SMALL,
        (200, 5, 600, 50, 50),
        (1_000, 2, 3_000, 10, 10),  # denser than its links: siblings fill it
        (2_000, 11, 200, 10, 10),  # sparser: most entities have no triple
        (500, 40, 3_000, 100, 100),
        (50, 1, 30, 5, 5),
        (10, 6, 5, 2, 2),
        (5, 6, 4, 0, 0),  # too small for siblings: links that were left out fill it
        (1, 1, 0, 0, 0),
    ],
)
@pytest.mark.parametrize("seed", [0, 7])
def test_sizes_are_exact_and_triples_distinct(sizes, seed):
    graph = synthetic(*sizes, seed=seed)
    splits = (graph.train, graph.valid, graph.test)
    assert (graph.num_entities, graph.num_relations, *map(len, splits)) == sizes
    assert len(graph.known()) == sum(sizes[2:])
    assert all(h != t for split in splits for h, _, t in split)


def test_same_seed_same_graph(small):
    again, other = synthetic(*SMALL, seed=0), synthetic(*SMALL, seed=1)
    for split in ("train", "valid", "test"):
        assert torch.equal(getattr(small, split).hrt, getattr(again, split).hrt)
        assert not torch.equal(getattr(small, split).hrt, getattr(other, split).hrt)
    for ours, theirs, others in zip(
        small.planted(70), again.planted(70, seed=0), small.planted(70, seed=5), strict=True
    ):
        assert torch.equal(ours, theirs)
        assert not torch.equal(ours, others)


def test_draws_do_not_depend_on_the_vector_instructions():
    numpy = (getattr(np, "_core", None) or np.core)._multiarray_umath
    wide = [name for name in numpy.__cpu_dispatch__ if numpy.__cpu_features__[name]]
    if not wide:
        pytest.skip("numpy has one set of instructions here")
    narrow = {"NPY_DISABLE_CPU_FEATURES": " ".join(wide), "ATEN_CPU_CAPABILITY": "default"}
    printed = subprocess.run(
        [sys.executable, drawn.__file__],
        env=os.environ | narrow | {"PYTHONPATH": str(Path(drawn.__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert literal_eval(printed) == drawn.digests()


def test_the_graph_stays_the_graph_of_published_numbers():
    # a change of these digests is a line of CHANGELOG.md: every number on this graph changes
    assert fingerprint(synthetic()) == {
        "names": "82bd4b4fa6f170a6eb7e440234d45356",
        "train": "108257e380fcb4367a52467ba24b1053",
        "valid": "c1b923176fc4b392224f10f24a961fc8",
        "test": "791ac07565bd7fda7dd3ffbfc35fb0f2",
    }


def test_relations_have_their_patterns(small):
    pairs = {name: pairs_of(small, name) for name in small.relations}
    for name in ("symmetric_0", "symmetric_1", "sibling_0", "sibling_1"):
        mirrored = sum((t, h) in pairs[name] for h, t in pairs[name])
        assert mirrored >= len(pairs[name]) - 1, name  # an odd number leaves one alone
    for whole, part in (("has_part_0", "part_of_0"), ("has_part_1", "part_of_1")):
        assert {(t, h) for h, t in pairs[whole]} == pairs[part]
    assert len({h for h, _ in pairs["child_of"]}) == len(pairs["child_of"])  # a hierarchy
    for then in ("child_of", "has_part_0"):
        parents = dict(pairs["child_of"])
        composed = pairs[f"child_of_then_{then}"]
        assert composed
        assert all((parents[h], t) in pairs[then] for h, t in composed)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((200, 1, 600, 0, 0), "600 triples are too many.* 1 relations on 200 entities hold 199"),
        ((1, 5, 1, 0, 0), "hold 0"),
        ((0, 1, 0, 0, 0), "num_entities must be >= 1, got 0"),
        ((10, 0, 5, 0, 0), "num_relations must be >= 1"),
        ((10, 1, 5, -1, 0), "num_valid must be >= 0, got -1"),
    ],
)
def test_impossible_sizes(sizes, message):
    with pytest.raises(ValueError, match=message):
        synthetic(*sizes)


def test_planted_crops_are_plantings(small):
    entity, phase = small.planted(130)
    assert entity.shape == (2_000, 260)
    assert phase.shape == (11, 130)
    assert entity.dtype == phase.dtype == torch.float32
    assert entity.is_contiguous()
    assert phase.is_contiguous()
    for dim in (1, 64, 65, 128):
        smaller_entity, smaller_phase = small.planted(dim)
        halves = entity.reshape(2_000, 2, 130)[:, :, :dim].reshape(2_000, 2 * dim)
        assert torch.equal(smaller_entity, halves)
        assert torch.equal(smaller_phase, phase[:, :dim])


def test_planted_phases_follow_the_patterns(small):
    entity, phase = small.planted(200)
    of = {name: phase[i].double() for i, name in enumerate(small.relations)}
    assert set(of["symmetric_0"].tolist()) == {0.0, float(torch.tensor(torch.pi))}
    assert torch.equal(of["part_of_1"], -of["has_part_1"])
    assert not of["sibling_0"].any()
    for then in ("child_of", "has_part_0"):
        difference = of[f"child_of_then_{then}"] - of["child_of"] - of[then]
        assert torch.allclose(torch.cos(difference), torch.ones(200, dtype=torch.float64))
    assert phase.abs().max() <= 3.1415928
    assert 0.019 < float(entity.std()) < 0.021


def test_child_of_triples_are_as_close_as_their_links_say(small):
    entity, phase = small.planted(512)
    vectors = torch.complex(*entity.chunk(2, dim=1))
    turn = torch.polar(torch.ones(512), phase[0])
    growth = small.growth
    grown = {int(id): i for i, id in enumerate(growth.id)}
    num_twins_linked = 0
    for child, parent in pairs_of(small, "child_of"):
        i, j = grown[child], grown[parent]
        expected = growth.correlation[i]
        if growth.parent[i] != j:  # twins: the path leads over their originals
            assert growth.parent[growth.parent[i]] == growth.parent[j]
            expected *= growth.correlation[growth.parent[i]] * growth.correlation[j]
            num_twins_linked += 1
        x, y = vectors[child] * turn, vectors[parent]
        correlation = float((x * y.conj()).real.sum() / (x.norm() * y.norm()))
        assert abs(correlation - expected) < 0.2
    assert num_twins_linked > 100


def test_planted_embeddings_rank_like_a_trained_model(small):
    entity, phase = small.planted(128)
    rank = partial(kgfast.rank, triples=small.test, known=small.known())
    ranks = rank(kgfast.RotatE(entity, phase, relation_format="phase"))
    assert 0.4 < ranks.mrr < 0.65
    assert ranks.hits(10) < 0.8
    assert ranks.hits(200) < 0.95  # some are hopeless
    wrong = rank(kgfast.RotatE(entity, phase.flip(0), relation_format="phase"))
    assert wrong.mrr < 0.25
