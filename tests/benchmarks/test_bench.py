"""benchmarks/bench.py: parts in turn, and a call that goes on after an interruption."""

import json
from argparse import Namespace

import pytest

from support.paths import BENCHMARKS


@pytest.fixture
def run(load, tmp_path, capsys):
    """Run parts; ``call`` returns exit codes. Returns the failed ones and the lines told."""
    bench = load("bench")

    def run_parts(parts, call, commit="1", *, fresh=False):
        capsys.readouterr()
        state = bench.State(tmp_path / "bench.json", commit, fresh=fresh)
        options = Namespace(data="D", runs=tmp_path, quick=False)
        failed = bench.measure(parts, state, options, call)
        return [it.words for it in failed], capsys.readouterr().out.splitlines()

    return run_parts


def test_a_call_goes_on_where_it_was_stopped(load, run):
    parts = [load("bench").Part(f"{name}.py", 30) for name in "abc"]
    called = []

    def stops(words):
        called.append(words[1])
        if words[1] == "benchmarks/b.py":
            raise KeyboardInterrupt
        return 0

    with pytest.raises(KeyboardInterrupt):
        run(parts, stops)
    failed, told = run(parts, lambda words: called.append(words[1]) or 0)
    assert called == [f"benchmarks/{name}.py" for name in "abbc"]
    assert (failed, told[0]) == ([], "[2/3] b.py; about 1:00:00 left")
    assert run(parts, called.append) == ([], [])
    _, told = run(parts, lambda _: 0, "2")
    assert [it.split(";")[0] for it in told] == ["[1/3] a.py", "[2/3] b.py", "[3/3] c.py"]
    assert told[0].endswith("about 0:00:00 left")  # the parts took no time
    assert len(run(parts, lambda _: 0, "2", fresh=True)[1]) == 3


def test_a_part_that_fails_is_tried_again(load, run):
    parts = [load("bench").Part(f"{name}.py", 1) for name in "ab"]
    failed, _ = run(parts, lambda words: int("a.py" in words[1]))
    assert failed == ["a.py"]
    failed, told = run(parts, lambda _: 0)
    assert (failed, len(told)) == ([], 1)


def test_a_run_that_was_trained_is_not_trained_again(load, run, tmp_path, monkeypatch):
    part = load("bench").trained("some", "wn18rr/rotate", "wn18rr")
    (tmp_path / "some").mkdir()
    half = tmp_path / "some" / "last.safetensors"
    half.touch()
    commands = []
    run([part], lambda words: commands.append(words) or 1)
    assert not half.exists()
    assert commands[0][1:6] == ["-m", "kgfast", "train", "--config", "wn18rr/rotate"]
    assert "dataset.root=D/wn18rr" in commands[0]
    (tmp_path / "some").mkdir()
    options = Namespace(data="D", runs=tmp_path, only=None)
    monkeypatch.setattr(load("bench"), "PARTS", (part,))
    assert load("bench").chosen(options) == [part]
    (tmp_path / "some" / "result.json").touch()
    assert load("bench").chosen(options) == []


def test_parts_name_scripts_with_their_options(load, call, monkeypatch, tmp_path):
    bench = load("bench")
    options = Namespace(data="D", runs=tmp_path, quick=False, only=None)
    assert len({it.words for it in bench.PARTS}) == len(bench.PARTS)
    for part in bench.chosen(options):
        _, script, *words = part.command(options)
        if not part.run:
            assert (BENCHMARKS.parent / script).is_file()
            load(script.removeprefix("benchmarks/").removesuffix(".py")).BENCHMARK.parse(words)
    options.data = None
    assert not any("{" in it.words for it in bench.chosen(options))
    options.only = "readme"
    assert all(it.is_of_readme for it in bench.chosen(options))
    monkeypatch.setattr(bench, "STATE", tmp_path / "bench.json")
    (tmp_path / "bench.json").write_text(json.dumps({"done": {}, "seconds": {}}))
    assert "eval_mem.py" in call("bench.py", "--list").stdout
