"""benchmarks/bench.py: parts in turn, and a call that goes on after an interruption."""

from argparse import Namespace

import pytest

from support.paths import BENCHMARKS


def test_a_call_goes_on_where_it_was_stopped(load, monkeypatch, tmp_path, capsys):
    bench = load("bench")
    monkeypatch.setattr(bench, "STATE", tmp_path / "bench.json")
    parts = [bench.Part(f"{name}.py") for name in "abc"]
    options, done, called = Namespace(data="D", runs=tmp_path), {}, []

    def stops(words):
        called.append(words[1])
        if words[1] == "benchmarks/b.py":
            raise KeyboardInterrupt
        return 0

    with pytest.raises(KeyboardInterrupt):
        bench.measure(parts, done, options, stops)
    assert bench.measure(parts, done, options, lambda words: "b.py" in words[1]) == [parts[1]]
    assert bench.measure(parts, done, options, lambda words: called.append(words[1])) == []
    assert called == [f"benchmarks/{name}.py" for name in "abb"]
    assert capsys.readouterr().out.splitlines()[-1] == "[2/3] b.py"


def test_a_run_that_was_trained_is_not_trained_again(load, tmp_path, monkeypatch):
    bench = load("bench")
    part = bench.trained("some", "wn18rr/rotate", "wn18rr")
    (tmp_path / "some").mkdir()
    half = tmp_path / "some" / "last.safetensors"
    half.touch()
    options, commands = Namespace(data="D", runs=tmp_path, only=None), []
    bench.measure([part], {}, options, lambda words: commands.append(words) or 1)
    assert not half.exists()
    assert commands[0][1:6] == ["-m", "kgfast", "train", "--config", "wn18rr/rotate"]
    assert "dataset.root=D/wn18rr" in commands[0]
    monkeypatch.setattr(bench, "PARTS", (part,))
    assert bench.chosen(options) == [part]
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "result.json").touch()
    assert bench.chosen(options) == []


def test_parts_name_scripts_with_their_options(load, tmp_path):
    bench = load("bench")
    options = Namespace(data="D", runs=tmp_path, only=None)
    for part in bench.chosen(options):
        _, script, *words = part.command(options)
        if not part.run:
            assert (BENCHMARKS.parent / script).is_file()
            load(script.removeprefix("benchmarks/").removesuffix(".py")).BENCHMARK.parse(words)
    options.data = None
    assert not any("{" in part.words for part in bench.chosen(options))
    options.only = "readme"
    assert all(part.is_of_readme for part in bench.chosen(options))
