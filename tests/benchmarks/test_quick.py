"""The scripts of benchmarks/ in their smoke-test sizes: what they compare, compute and write."""

import pytest
import torch

import kgfast
from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers
from support.tiers import lacks

slow = pytest.mark.slow
needs_extension = pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")


@slow  # PyKEEN and PyG take seconds to import
def test_wrong_conversions_are_refused(quick, load):
    pytest.importorskip("pykeen")
    pytest.importorskip("torch_geometric")
    found = quick("conversions")
    assert [row["library"] for row in found.rows] == ["PyKEEN", "PyG", "DGL-KE"]
    for row in found.rows:
        assert row["right"] == pytest.approx(row["own"], abs=1e-3)
        assert row["wrong"] != pytest.approx(row["right"], abs=1e-3)
    said = [row["refused"] for row in found.rows]
    assert said[0].startswith("RotatE of PyKEEN: kgfast scores (")
    assert said[1].startswith("TransE of PyG: kgfast scores (")
    assert said[2] == "config.json: gamma must be a number; got None"
    block = load("pages").PAGES["options"].make(found.path.parent)
    assert f"| {found.rows[1]['wrong']:.4f} | {found.rows[1]['right']:.4f} |" in block


@slow
@pytest.mark.timeout(300)
def test_training_by_several_processes_is_compared_with_one(quick, tmp_path):
    picture = tmp_path / "found.svg"
    rows = quick("distributed_training", "--steps", 5, "--plot", picture).rows
    assert picture.stat().st_size > 0
    for section in ("speed", "curve"):
        ways = [(it["tables"], it["processes"]) for it in rows if it["section"] == section]
        assert ways == [("replicated", 1), ("replicated", 2), ("sharded", 2)]
    for row in rows:
        if row["section"] == "curve":
            assert row["relative_differences"] == [0.0] * 5
        else:
            assert row["steps_per_second"] > 0


@pytest.mark.skipif(bool(lacks("int8")), reason=lacks("int8") or "it is here")
def test_the_int8_tier_is_compared_with_none(quick):
    found = quick("dot_tiers_speed", "--rounds", 2)
    assert [row["work"] for row in found.rows] == ["ranks", "ranks", "best"]
    for row in found.rows:
        assert row["equal"]
        assert row["seconds"].keys() >= {"none", "int8"}
    assert found.rows[2]["seconds"].keys() >= {"none", "int8", "index"}
    assert found.rows[0]["pairs"]["swept"] == 1
    assert "faiss" in found.said


@needs_extension
def test_tiers_compute_the_same_counts(quick):
    have = set(tiers.available(cpu.isa())) & {"fp16", "linear"}
    if not have:
        pytest.skip(lacks("linear", "fp16"))
    rows = quick("tiers_speed").rows
    assert {row["score"] for row in rows} >= {"rotate", "l1"}
    assert {row["tiers"] for row in rows if row["score"] == "l2"} <= {"fp16"}
    assert {name for row in rows for name in row["tiers"].split(",")} == have
    assert all(row["same_counts"] and row["equals_reference"] for row in rows)


def test_peers_rank_as_kgfast_does(quick, tmp_path):
    found = quick("eval_speed")
    assert {row["section"] for row in found.rows} >= {"rotate", "single", "dot", "whole"}
    ours = [row for row in found.rows if row["contender"] == "kgfast"]
    assert ours
    assert all(row["equals_reference"] for row in ours)
    for row in found.rows:
        if row["contender"].startswith("kgfast ") and row["section"] == "rotate":
            assert row["differing_queries"] == 0
    names = [line["what"] for line in found.ratios]
    assert "rotate, 128 queries, dim 16, random: kgfast against torch, in chunks" in names
    assert [*tmp_path.rglob("*.*")] == [found.path]


def test_eager_chunks_count_every_row_once(load):
    peers, eval_speed = load("lib.peers.ranks"), load("eval_speed")
    generator = torch.Generator().manual_seed(1)
    tables = (torch.randn(rows, 6, generator=generator) for rows in (5, 23))
    work = peers.Work(*tables, torch.arange(5))
    ours = eval_speed.kgfast_counts(work)
    for chunk in (1, 7, 23, 100):
        found = peers.Chunked(work, peers.count_block, chunk)()
        assert eval_speed.difference(found, ours)["differing_queries"] == 0


@slow
def test_facts_are_the_best_of_all_scores(quick):
    rows = quick("facts_speed").rows
    assert [row["model"] for row in rows] == ["DistMult", "ComplEx", "TransE", "RotatE"]
    assert all(row["equal"] and row["k"] == 100 and row["seconds"] > 0 for row in rows)


def test_a_row_says_whether_facts_are_right(load, monkeypatch):
    script = load("facts_speed")
    graph = kgfast.datasets.synthetic(60, 3, 150, 10, 10)
    model = kgfast.DistMult.init(60, 3, 4, seed=0)
    row = script.row_of(model, "fresh", graph.known())
    assert (row["equal"], row["k"], row["triples"]) == (True, 100, 60 * 60 * 3)
    monkeypatch.setattr(script, "canonical_scores", lambda query, table, *_: query @ -table.T)
    assert not script.row_of(model, "fresh", graph.known())["equal"]


def test_an_index_gives_the_same_answers(quick, load):
    rows = quick("index_speed").rows
    assert {row["section"] for row in rows} == set(load("index_speed").MODELS)
    assert all(row["equal"] and row["index_bytes"] >= row["table_bytes"] for row in rows)


@slow
def test_influences_are_those_of_captum(quick, tmp_path):
    pytest.importorskip("captum", reason="captum is not installed")
    rows = quick("influence_speed", "--scratch", tmp_path).rows
    part = [("part", "kgfast"), *[("part", "captum")] * 5]
    race = [("captum", "kgfast"), ("captum", "captum")]
    found = [(row["section"], row["contender"]) for row in rows]
    assert found == [("whole", "kgfast"), *part, *race]
    whole, *_, last = rows
    assert whole["examples"] == 2 * 1200
    assert whole["naive_bytes"] == 4 * whole["examples"] * whole["entities"] * whole["dim"]
    assert last["relative_difference"] < 1e-4


def test_lists_are_counted_as_peers_count_them(quick, load):
    rows = quick("lists_speed").rows
    assert [row["contender"] for row in rows] == ["kgfast", "official", "lean"]
    assert rows[0]["equals_reference"]
    assert [row["differing_queries"] for row in rows[1:]] == [0, 0]
    script = load("lists_speed")
    work = script.Work.random(script.BENCHMARK.parse(["--quick", "--queries", "33"]))
    work.ids[0, 3] = work.targets[0]
    ours = script.by_kgfast(work)
    for lean in (False, True):
        theirs = script.by_gathering(work, lean=lean)
        assert [(a != b).sum() for a, b in zip(ours, theirs, strict=True)] == [0, 0]


def page_of(call, name, results):
    """Put results into a page, which was out of date before and is not any more."""
    page = results / "page.md"
    page.write_text("Text.\n\n<!-- results:begin -->\n<!-- results:end -->\n")
    arguments = "pages.py", name, "--results", results, "--page", page
    assert call(*arguments, "--check").returncode == 1
    assert call(*arguments).returncode == 0
    assert call(*arguments, "--check").returncode == 0
    return page.read_text()


@slow
def test_nested_models_are_timed_and_put_into_the_page(quick, call):
    found = quick("med_speed", "--rounds", 1)
    results = found.path.parent
    kinds = ("rotate", "shared"), ("rotate", "per_row"), ("rotate + rscf", "per_row")
    assert [(row["model"], row["negatives"], row["way"]) for row in found.rows] == [
        (*kind, way) for kind in kinds for way in ("widest alone", "nested", "a pass each")
    ]
    assert all((it["times_widest"] == 1) == (it["way"] == "widest alone") for it in found.rows)
    rows = quick("train_memory", "--every", 2).rows
    assert [row["step"] for row in rows] == [2, 4, 6]
    for row in rows:
        assert row["resident_bytes"] > 50 << 20
        assert list(row["mrr"]) == ["4", "8", "16"]
        assert min(row["seconds"], row["seconds_per_step"]) > 0
    rows = quick("med_trials").rows
    assert [len(row["mrr"]) for row in rows] == [1, 2, 2, 2, 4, 7, 7, 7]
    assert all(0 < mrr < 1 for row in rows for mrr in row["mrr"].values())
    arguments = ("--quick", "--every", 1, "--evaluations", 7, "--triples", 9)
    done = call("train_memory.py", *arguments, "--json", results / "cpu-train-memory-7.json")
    assert done.returncode == 0, done.stderr
    text = page_of(call, "med_rscf", results)
    assert "| RotatE | 64 x 32, shared | nested |" in text
    assert "| RotatE + RSCF | 64 x 8, per row | nested |" in text
    assert "| 4 sub-models, held at 0, 1/2, 1 | 0." in text
    assert "Over 7 evaluations, 1 steps apart: " in text
    assert "Memory of rotate_med_rscf in training, sub-models 4, 8, 16" in text


@slow
def test_a_search_is_run_and_put_into_the_page(quick, call):
    found = quick("search_trials")
    (row,) = found.rows
    assert len(row["trials"]) == 3
    text = page_of(call, "search", found.path.parent)
    assert "| synthetic, 500 entities | 0." in text


def test_sums_over_paths_are_those_that_hold_all(quick):
    found = quick("paths_speed")
    assert "kgfast" in found.said
    ours, held = found.rows
    assert (ours["contender"], held["contender"]) == ("kgfast", "held")
    assert ours["paths"] == held["paths"] > 100
    assert abs(ours["loss"] - held["loss"]) < 1e-5 * abs(held["loss"])
    assert ours["cpu_seconds_ratio"] > 0


@slow
def test_a_million_paths_in_128_mib(load):
    """Forward and backward, beyond the model, its gradients and the graph."""
    script, measure = load("paths_speed"), load("lib.measure")
    work = script.Job(900, "kgfast")
    graph = work.graph()
    assert len(script.Paths(graph.edge_index, len(graph.positions))) > 1_000_000
    assert measure.in_child(script.peak, work)["bytes"] <= script.GOALS["bytes"]


@slow  # PyKEEN takes seconds to import
def test_ranks_are_compared_with_pykeens(quick):
    pytest.importorskip("pykeen")
    (row,) = quick("pykeen_speed", "--models", "DistMult").rows
    assert (row["sample"], row["compared"], row["different"]) == (201, 1206, [])
    assert row["cpu_seconds"] > 0


@needs_extension
def test_the_reference_is_compared_with_the_extension(quick, load):
    found = quick("reference_speed", "--rounds", 1)
    assert [row["model"] for row in found.rows] == list(load("reference_speed").MODELS)
    assert all(row["equal"] and row["times_cpu"] > 0 for row in found.rows)
    assert "times the extension's" in found.said
