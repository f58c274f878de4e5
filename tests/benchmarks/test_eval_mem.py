"""eval_mem.py in its smoke-test size: what it computes, writes and refuses."""

import json

import pytest


@pytest.mark.slow
def test_eval_mem_writes_what_it_measured(call, tmp_path):
    pytest.importorskip("matplotlib")
    result, plot = tmp_path / "mem.json", tmp_path / "mem.svg"
    done = call("eval_mem.py", "--quick", "--ways", "--json", result, "--plot", plot)
    assert done.returncode == 0, done.stderr
    rows = json.loads(result.read_text())["rows"]
    rows, crops = rows[:2], rows[2:]
    assert [row["dim"] for row in rows] == [8, 16]
    for row in crops:
        assert row["check"] == {"queries": 8, "differing": 0, "equal": True}
        assert row["kgfast"]["bytes"] < 64 << 20
    for row in rows:
        assert row["check"]["equal"]
        assert row["check"]["queries"] == 16
        assert row["kgfast"]["mrr"] > 0.1
        assert 0 < row["kgfast"]["bytes"] < 64 << 20
        assert row["naive"]["agreeing_ranks"] >= 0.9 * row["naive"]["compared_ranks"]
    # 128 queries, 500 entities, 8 complex dimensions, 1320 known triples
    formula = {"tensor": 4_096_000, "official": 14_336_000, "libkge": 10_240_000}
    assert rows[0]["formula"] == formula | {"batch": 128, "pykeen": 4_096_000 + 506_880}
    assert "<svg" in plot.read_text()
    assert str(tmp_path) not in result.read_text()


def test_eval_mem_fails_loudly_when_a_rank_differs(call, load, monkeypatch):
    eval_mem = load("eval_mem")
    in_child = eval_mem.in_child

    def with_a_bug(*arguments):
        found = in_child(*arguments)
        found["check"] |= {"equal": False, "differing": 1}
        return found

    monkeypatch.setattr(eval_mem, "in_child", with_a_bug)
    monkeypatch.setattr(eval_mem, "naive_row", lambda *_: {"batch": 0})
    done = call("eval_mem.py", "--quick", "--dims", 4)
    assert done.returncode == 1
    assert "ANSWERS ARE WRONG" in done.stdout
    assert "1 DIFFER" in done.stdout


def test_eval_mem_survives_a_naive_batch_that_does_not_fit(load, monkeypatch):
    eval_mem, measure = load("eval_mem"), load("lib.measure")
    sizes = {"entities": 40_943, "known_triples": 1, "test_triples": 1}
    job = eval_mem.Job(True, "cpu", 512)
    assert eval_mem.naive_row(job, sizes, 1e6, [])["batch"] == 0

    def killed(*_):
        raise measure.ChildDied("the process ended with exit code -9")

    monkeypatch.setattr(measure, "in_child", killed)
    row = eval_mem.naive_row(job, sizes, 1e9, [])
    assert (row["batch"], "exit code -9" in row["reason"]) == (0, True)
