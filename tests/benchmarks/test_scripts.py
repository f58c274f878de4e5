"""Smoke tests of the scripts whose answers are compared with another way to find them."""

import pytest
import torch

from kgfast.kernels import cpu
from support.sampled import threads
from support.tiers import lacks


def test_a_tier_of_dot_is_compared_with_none(measured):
    if lacks("int8"):
        pytest.skip(lacks("int8"))
    rows = measured("dot_tiers_speed.py", "--rounds", 2)
    assert [row["work"] for row in rows] == ["ranks", "best"]
    for row in rows:
        assert row["equal"]
        assert row["seconds"].keys() >= {"none", "int8"}
    assert rows[1]["seconds"].keys() >= {"none", "int8", "index"}
    assert rows[0]["pairs"]["swept"] == (cpu.isa() != "neon")


def test_eval_speed_compares_the_same_integers(measured, tmp_path):
    rows = measured("eval_speed.py")
    assert {row["section"] for row in rows} >= {"rotate", "single", "dot", "whole"}
    ours = [row for row in rows if row["contender"] == "kgfast"]
    assert ours
    assert all(row["equals_reference"] for row in ours)
    for row in rows:
        assert row["seconds"]
        if row["contender"].startswith("kgfast ") and row["section"] == "rotate":
            assert row["differing_queries"] == 0


def test_eager_chunks_count_every_row_once(load):
    peers, eval_speed = load("lib.peers.ranks"), load("eval_speed")
    generator = torch.Generator().manual_seed(1)
    queries, table = (torch.randn(n, 6, generator=generator) for n in (5, 23))
    work = peers.Work(queries, table, torch.arange(5))
    ours = eval_speed.kgfast_counts(work)
    for chunk in (1, 7, 23, 100):
        found = peers.Chunked(work, peers.count_block, chunk)()
        assert eval_speed.difference(found, ours)["differing_queries"] == 0


def test_planted_triples_are_told_from_false_ones(measured):
    (row,) = measured("classification.py")
    assert row["accuracy"] > 0.6  # planted triples are noisy, and half are true
    assert (row["model"], row["triples"]) == ("rotate", 120)


@pytest.mark.slow
def test_influences_are_those_of_captum(measured):
    pytest.importorskip("captum", reason="captum is not installed")
    rows = measured("influence_speed.py")
    assert [(row["section"], row["contender"]) for row in rows] == [
        ("whole", "kgfast"),
        *(("part", "kgfast"), *[("part", "captum")] * 5),
        *(("captum", "kgfast"), ("captum", "captum")),
    ]
    whole, *_, last = rows
    assert whole["examples"] == 2 * 1200
    assert last["relative_difference"] < 1e-4


def test_paths_have_the_loss_of_all_paths_at_once(measured):
    ours, held = measured("paths_speed.py")
    assert (ours["contender"], held["contender"]) == ("kgfast", "held")
    assert ours["paths"] == held["paths"] > 100
    assert abs(ours["loss"] - held["loss"]) < 1e-5 * abs(held["loss"])
    assert ours["cpu_seconds_ratio"] > 0


@pytest.mark.slow
def test_a_million_paths_in_128_mib(load):
    """Forward and backward, beyond model, gradients and graph; on one thread, as two wait long."""
    script, measure = load("paths_speed"), load("lib.measure")
    work = script.Job(900, "kgfast")
    graph = work.graph()
    assert len(script.Paths(graph.edge_index, len(graph.positions))) > 1_000_000
    with threads(1):
        assert measure.in_child(script.peak, work)["bytes"] <= script.MOST_BYTES


@pytest.mark.slow
def test_ranks_are_those_of_pykeen(measured):
    pytest.importorskip("pykeen")
    (row,) = measured("pykeen_speed.py", "--models", "DistMult")
    assert (row["sample"], row["compared"], row["different"]) == (201, 1206, [])
    assert row["cpu_seconds"] > 0


def test_the_reference_is_compared_with_the_extension(measured, load):
    if not cpu.is_available():
        pytest.skip("the extension is not built")
    rows = measured("reference_speed.py", "--rounds", 1)
    assert [row["model"] for row in rows] == list(load("reference_speed").MODELS)
    assert all(row["equal"] and row["times_cpu"] > 0 for row in rows)
