"""Shared code of the benchmarks: the driver, memory, processes, turns, formulas, numbers."""

import json
import os
import sys

import pytest
import torch


def test_peak_memory_sees_a_temporary(load):
    measure = load("lib.measure")
    with measure.PeakMemory("cpu") as peak:
        torch.ones(25_000_000).sum()
    assert 95e6 < peak.bytes < 120e6


def test_a_child_that_dies_is_reported(load):
    measure = load("lib.measure")
    with pytest.raises(measure.ChildDied, match="exit code 9"):
        measure.in_child(os._exit, 9)
    with pytest.raises(RuntimeError, match="ValueError: invalid literal"):
        measure.in_child(int, "x")
    assert measure.in_child(int, "7") == 7


def test_contenders_take_turns(load):
    stopwatch, calls = load("lib.measure").Stopwatch("cpu"), []
    contenders = {name: lambda name=name: calls.append(name) for name in "ab"}
    timings = stopwatch.interleave(contenders, 3, few={"b": 1})
    assert "".join(calls) == "abaa"
    assert (timings["a"].rounds, timings["b"].rounds) == (3, 1)


SECONDS = {0.00123: "1.23 ms", 0.0123: "12.3 ms", 0.25: "0.25 s", 3.04: "3.0 s", 10.2: "10 s"}
SECONDS |= {1740: "29 min", 9000: "2.5 h"}
BYTES = {999: "999 B", 31_000_000: "31.0 MB", 999_600: "1.00 MB", 75.13e9: "75.1 GB"}


def test_numbers_are_written_for_people(load):
    tables = load("lib.tables")
    assert {it: tables.human_seconds(it) for it in SECONDS} == SECONDS
    assert {it: tables.human_bytes(it) for it in BYTES} == BYTES


def test_the_headline_tensor_takes_21_gigabytes(load):
    naive, tables = load("lib.naive"), load("lib.tables")
    assert naive.formula_bytes("tensor", 128, 40_943, 512, 0) == 21_465_923_584
    assert tables.human_bytes(21_465_923_584) == "21.5 GB"
    assert naive.formula_bytes("official", 128, 40_943, 512, 93_003) == 75_130_732_544
    assert naive.formula_bytes("libkge", 128, 40_943, 512, 93_003) == 53_664_808_960
    assert naive.formula_bytes("pykeen", 128, 40_943, 512, 93_003) == 21_501_636_736
    assert naive.batch_that_fits(40_943, 512, 10e9) == 16


ROWS = [{"section": "one", "equal": True, "count": count} for count in (1, 2)]


def driven(load, error=RuntimeError, **options):
    """Make a benchmark of two sections, of which the second fails."""
    driver = load("lib.benchmark")

    def fails(_):
        yield {"section": "two", "count": 3}
        raise error("no memory")

    sections = {"one": lambda _: iter(ROWS), "two": fails}
    tables = {"one": ("First of {section}", (("count:", "{count}"),))}
    size = driver.Option("of all", 5, 2)
    return driver.Benchmark(
        "driven", "A doc.", sections, options={"size": size}, tables=tables, **options
    )


# A compiler of kernels, a library or a GPU raises what it likes.
@pytest.mark.parametrize("error", [torch.OutOfMemoryError, OSError, AssertionError])
def test_a_section_that_fails_leaves_the_others(load, error, monkeypatch, capsys, tmp_path):
    path = tmp_path / "found.json"
    monkeypatch.setattr("sys.argv", ["driven.py", "--quick", "--json", str(path)])
    made = driven(load, error)
    made.sections["three"] = lambda _: iter([{"section": "three", "count": 4}])
    assert made.main() == 1
    rows = json.loads(path.read_text())["rows"]
    assert [row["count"] for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert row["benchmark"] == "driven"
        assert {"command", "machine", "versions", "date"} <= row.keys()
    said = capsys.readouterr()
    assert "First of" in said.out
    assert "no memory" in said.err
    monkeypatch.setattr("sys.argv", [*sys.argv, "--sections", "one"])
    assert driven(load).main() == 0
    assert [row["count"] for row in json.loads(path.read_text())["rows"]] == [3, 1, 2]


def test_a_wrong_answer_fails_the_benchmark(load, monkeypatch, capsys):
    arguments = ["driven.py", "--quick", "--sections", "one"]
    monkeypatch.setattr("sys.argv", arguments)
    assert driven(load).main() == 0
    for name, value in (("equal", False), ("equals_reference", False), ("wrong", 1), ("errors", 2)):
        monkeypatch.setitem(ROWS[0], name, value)
        assert driven(load).main() == 1, name
        monkeypatch.setitem(ROWS[0], name, name.startswith("equal"))
    assert capsys.readouterr().out.count("ANSWERS ARE WRONG") == 4


def test_options_have_a_value_in_earnest_and_in_a_smoke_test(load, tmp_path, capsys):
    benchmark, results = driven(load), load("lib.results").RESULTS
    assert benchmark.parse([]).size == 5
    assert benchmark.parse([]).json == results / "cpu-driven.json"
    quick = benchmark.parse(["--quick"])
    assert (quick.size, quick.json, quick.sections) == (2, None, ["one", "two"])
    assert driven(load, is_written=False).parse([]).json is None
    with pytest.raises(SystemExit):
        benchmark.parse(["--size", "0"])
    assert "--size: must be at least 1; got 0" in capsys.readouterr().err


COUNTS = {
    "eval_mem": ("--dims",),
    "loss_mem": ("--rounds",),
    "train_speed": ("--dim", "--batch", "--negatives", "--rounds"),
}
REFUSED = [
    *(
        (script, (name, "0"), f"argument {name}: must be at least 1; got 0")
        for script, names in COUNTS.items()
        for name in names
    ),
    ("eval_mem", ("--plot", "picture.jpeg"), "argument --plot: must end in .png, .svg or .pdf"),
    ("influence_speed", (), "--data names the folder of each graph, or --quick"),
    pytest.param("pykeen_speed", (), "--data names the folder", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("script", "arguments", "message"), REFUSED)
def test_bad_arguments_are_refused(load, capsys, script, arguments, message):
    if script == "pykeen_speed":
        pytest.importorskip("pykeen")
    with pytest.raises(SystemExit) as exit_info:
        load(script).BENCHMARK.parse(list(arguments))
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err
