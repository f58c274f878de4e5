"""The benchmark scripts, in their smoke-test sizes: what they compute, write and refuse."""

import importlib
import json
import os
import subprocess
import sys

import pytest
import torch

from support.paths import BENCHMARKS


@pytest.fixture
def load(monkeypatch):
    """Import a module of benchmarks/."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def run(script, *arguments):
    """Run a script in a process of its own."""
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=200,
    )


def write_graph(folder):
    """Twelve entities in a ring, one relation, with a shortcut to test."""
    names = [f"e{i}" for i in range(12)]
    ring = "".join(f"{names[i]}\tnext\t{names[(i + 1) % 12]}\n" for i in range(12))
    folder.mkdir()
    (folder / "train.txt").write_text(ring)
    (folder / "valid.txt").write_text("e0\tnext\te2\n")
    (folder / "test.txt").write_text("e1\tnext\te3\ne4\tnext\te6\n")
    return folder


@pytest.mark.slow
def test_eval_mem_of_sub_models_alone(tmp_path):
    result = tmp_path / "crops.json"
    done = run("eval_mem.py", "--quick", "--only-crops", "--json", result)
    assert done.returncode == 0, done.stderr
    written = json.loads(result.read_text())
    assert "conclusion" not in written
    assert {row["benchmark"] for row in written["rows"]} == {"eval_mem_crops"}
    done = run("eval_mem.py", "--quick", "--only-crops", "--no-crops")
    assert done.returncode == 2
    assert "--only-crops needs" in done.stderr


def test_eval_mem_writes_what_it_measured(tmp_path):
    pytest.importorskip("matplotlib")
    result = tmp_path / "mem.json"
    done = run("eval_mem.py", "--quick", "--json", result, "--plot", tmp_path / "mem.svg")
    assert done.returncode == 0, done.stderr
    rows = json.loads(result.read_text())["rows"]
    rows, crops = rows[:2], rows[2:]
    assert [row["dim"] for row in rows] == [8, 16]
    ways = ["med", "med separate", "widest alone", "med + rscf", "rscf"]
    assert [row["way"] for row in crops] == ways
    for row in crops:
        assert row["check"] == {"queries": 8, "differing": 0, "equal": True}
        assert row["kgfast"]["bytes"] < 64 << 20
    # 7 floats, of filtered candidates 12, a pair and feature
    assert [row["formula"]["bytes"] for row in crops] == [28_672_000] * 3 + [49_152_000] * 2
    for row in rows:
        assert row["check"]["equal"]
        assert row["check"]["queries"] == 16
        assert row["kgfast"]["queries"] == 120
        assert row["kgfast"]["mrr"] > 0.1
        assert 0 < row["kgfast"]["bytes"] < 64 << 20
        assert row["naive"]["agreeing_ranks"] >= 0.9 * row["naive"]["compared_ranks"]
        assert row["command"].startswith("python benchmarks/eval_mem.py --quick --json mem.json")
        assert {"machine", "versions", "date"} <= row.keys()
    # 128 queries, 500 entities, 8 complex dimensions, 1320 known triples
    assert rows[0]["formula"] == {
        "batch": 128,
        "tensor": 4_096_000,
        "official": 14_336_000,
        "libkge": 10_240_000,
        "pykeen": 4_096_000 + 506_880,
    }
    assert "<svg" in (tmp_path / "mem.svg").read_text()
    assert str(tmp_path) not in result.read_text()


def test_eval_mem_says_that_the_table_of_a_real_dataset_is_random(tmp_path):
    arguments = ("--data", write_graph(tmp_path / "ring"), "--dims", 4, "--no-naive")
    done = run("eval_mem.py", *arguments, "--json", tmp_path / "mem.json")
    assert done.returncode == 0, done.stderr
    assert "RANDOM" in done.stdout
    (row,) = json.loads((tmp_path / "mem.json").read_text())["rows"]
    assert row["naive"] is None
    assert row["embeddings"] == "random"
    assert row["graph"]["known_triples"] == 15
    assert row["check"] | {"seconds": 0} == {
        "queries": 4,
        "differing": 0,
        "equal": True,
        "seconds": 0,
    }


def test_eval_mem_fails_loudly_when_a_rank_differs(load, monkeypatch, capsys):
    eval_mem = load("eval_mem")
    monkeypatch.setattr(sys, "argv", ["eval_mem.py", "--quick", "--dims", "4", "--no-naive"])

    def with_a_bug(function, job):
        found = function(job)
        found["check"] |= {"equal": False, "differing": 1}
        return found

    monkeypatch.setattr(eval_mem, "in_child", with_a_bug)
    assert eval_mem.main() == 1
    assert "RANKS DIFFER" in capsys.readouterr().out


def test_eval_mem_survives_a_naive_batch_that_does_not_fit(load, monkeypatch):
    eval_mem, common = load("eval_mem"), load("common")
    sizes = {"entities": 40_943, "known_triples": 1, "test_triples": 1}
    job = eval_mem.Job(None, True, "cpu", 512, None, 0)
    assert eval_mem._naive_row(job, sizes, 1e6, [])["batch"] == 0

    def killed(*_):
        raise common.ChildDied("the process ended with exit code -9")

    monkeypatch.setattr(eval_mem, "in_child", killed)
    row = eval_mem._naive_row(job, sizes, 1e9, [])
    assert (row["batch"], "exit code -9" in row["reason"]) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dims", "0"], "--dims must be at least 1; got 0"),
        (["--batch-size", "0"], "--batch-size must be at least 1; got 0"),
        (["--sample", "-1"], "--sample must not be negative; got -1"),
        (["--naive-cap", "0"], "--naive-cap must be positive"),
        (["--plot", "picture.jpeg"], "--plot must end in .png, .svg or .pdf"),
    ],
)
def test_eval_mem_refuses_bad_arguments(load, capsys, arguments, message):
    with pytest.raises(SystemExit) as exit_info:
        load("eval_mem").parse(arguments)
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err


def test_eval_mem_names_a_missing_folder(tmp_path):
    done = run("eval_mem.py", "--data", tmp_path / "nowhere", "--dims", 4)
    assert done.returncode == 2
    assert "nowhere" in done.stdout


def test_the_headline_tensor_takes_21_gigabytes(load):
    naive, common = load("naive"), load("common")
    assert naive.tensor_bytes(128, 40_943, 512) == 21_465_923_584
    assert common.human_bytes(21_465_923_584) == "21.5 GB"
    assert naive.formula_bytes("official", 128, 40_943, 512, 93_003) == 75_130_732_544
    assert naive.formula_bytes("libkge", 128, 40_943, 512, 93_003) == 53_664_808_960
    assert naive.formula_bytes("pykeen", 128, 40_943, 512, 93_003) == 21_501_636_736
    assert naive.batch_that_fits(40_943, 512, 10e9) == 16


def test_eval_speed_compares_the_same_integers(tmp_path):
    result = tmp_path / "speed.json"
    done = run("eval_speed.py", "--quick", "--json", result)
    assert done.returncode == 0, done.stderr
    content = json.loads(result.read_text())
    rows = content["rows"]
    assert {row["section"] for row in rows} >= {"rotate", "single", "dot", "whole"}
    ours = [row for row in rows if row["contender"] == "kgfast"]
    assert ours
    assert all(row["equals_reference"] for row in ours)
    for row in rows:
        assert row["seconds"]["min"] <= row["seconds"]["median"] <= row["seconds"]["max"]
        assert {"command", "machine", "versions", "date"} <= row.keys()
        if row["contender"].startswith("kgfast ") and row["section"] == "rotate":
            assert row["differing_queries"] == 0
    names = [line["what"] for line in content["ratios"]]
    assert "rotate, 128 queries, dim 16, random: kgfast against torch, in chunks" in names
    assert list(tmp_path.iterdir()) == [result]


def test_eager_chunks_count_every_row_once(load):
    peers, eval_speed = load("peers"), load("eval_speed")
    generator = torch.Generator().manual_seed(1)
    work = peers.Work(
        torch.randn(5, 6, generator=generator),
        torch.randn(23, 6, generator=generator),
        torch.arange(5),
    )
    ours = eval_speed.kgfast_counts(work)
    for chunk in (1, 7, 23, 100):
        found = peers.Chunked(work, peers.count_block, chunk)()
        assert eval_speed.difference(found, ours)["differing_queries"] == 0


def test_forcing_an_instruction_set_restores_the_environment(load, monkeypatch):
    bench = load("bench")
    for before in (None, "baseline"):
        if before is None:
            monkeypatch.delenv("KGFAST_CPU_ISA", raising=False)
        else:
            monkeypatch.setenv("KGFAST_CPU_ISA", before)
        with bench.forced_isa("avx2"):
            assert os.environ["KGFAST_CPU_ISA"] == "avx2"
        assert os.environ.get("KGFAST_CPU_ISA") == before


def test_readme_table_is_updated_and_checked(tmp_path):
    results, readme = tmp_path / "results", tmp_path / "README.md"
    results.mkdir()
    done = run("eval_mem.py", "--quick", "--dims", 8, "--json", results / "cpu-eval-mem.json")
    assert done.returncode == 0, done.stderr
    where = ("--results", results, "--readme", readme)
    readme.write_text("before\n<!-- results:begin -->\nold\n<!-- results:end -->\nafter\n")
    assert run("readme_table.py", *where, "--check").returncode == 1
    assert run("readme_table.py", *where).returncode == 0
    assert run("readme_table.py", *where, "--check").returncode == 0
    text = readme.read_text()
    assert text.startswith("before\n<!-- results:begin -->\n| | ")
    assert text.endswith("<!-- results:end -->\nafter\n")
    assert "peak memory beyond the inputs, whole test set, dim 8" in text
    assert " GPU |" in text
    assert "python benchmarks/eval_mem.py --quick" in text


def test_readme_table_needs_its_markers(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("no markers")
    done = run("readme_table.py", "--results", tmp_path, "--readme", readme)
    assert done.returncode == 1
    assert "results:begin" in done.stderr
    assert readme.read_text() == "no markers"


def test_peak_memory_sees_a_temporary(load):
    common = load("common")
    with common.PeakMemory("cpu") as peak:
        torch.ones(25_000_000).sum()
    assert 95e6 < peak.bytes < 120e6


def test_peak_memory_by_sampling(load, monkeypatch):
    common = load("common")
    monkeypatch.setattr(common, "_reset_high_water_mark", lambda: False)
    with common.PeakMemory("cpu") as peak:
        held = torch.ones(25_000_000)
    assert held.sum() > 0
    assert peak.method == "sampled RSS"
    assert 95e6 < peak.bytes < 120e6


def test_a_child_that_dies_is_reported(load):
    common = load("common")
    with pytest.raises(common.ChildDied, match="exit code 9"):
        common.in_child(os._exit, 9)
    with pytest.raises(RuntimeError, match="ValueError: invalid literal"):
        common.in_child(int, "x")
    assert common.in_child(int, "7") == 7


def test_contenders_take_turns(load):
    stopwatch, calls = load("common").Stopwatch("cpu"), []
    contenders = {name: lambda name=name: calls.append(name) for name in "ab"}
    timings = stopwatch.interleave(contenders, 3, few={"b": 1})
    assert "".join(calls) == "abaa"
    assert (timings["a"].rounds, timings["b"].rounds) == (3, 1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.00123, "1.23 ms"),
        (0.0123, "12.3 ms"),
        (0.25, "0.25 s"),
        (3.04, "3.0 s"),
        (10.2, "10 s"),
        (1740, "29 min"),
        (9000, "2.5 h"),
    ],
)
def test_human_seconds(load, seconds, text):
    assert load("common").human_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(999, "999 B"), (31_000_000, "31.0 MB"), (999_600, "1.00 MB"), (75.13e9, "75.1 GB")],
)
def test_human_bytes(load, count, text):
    assert load("common").human_bytes(count) == text
