"""``kgfast search``: what it prints, what it refuses, and the table of --show."""

import pytest
import yaml

from support.commands import run
from support.small_runs import RING_CONFIG, write_ring


@pytest.fixture
def config(tmp_path):
    write_ring(tmp_path / "ring")
    path = tmp_path / "tiny.yaml"
    ranges = {"optim.lr": {"low": 0.001, "high": 0.1, "log": True}}
    dataset = {"dataset": {"name": "ring", "root": str(tmp_path)}, "search": {"ranges": ranges}}
    path.write_text(yaml.safe_dump(RING_CONFIG | dataset))
    return path


def test_a_search_is_run_shown_and_gone_on_with(config, tmp_path):
    folder = tmp_path / "found"
    base = "search", "--config", config, "--run", folder
    done = run(*base, "--trials", 2, "--set", "search.ranges.model.gamma={low: 2, high: 6}")
    assert done.exit_code == 0, done.stderr
    assert ": 2 trials" in done.stdout
    assert "model.gamma" in done.stdout
    ranked = done.stdout.splitlines()[-1].removeprefix("kgfast ").split()
    assert run(*ranked).exit_code == 0
    assert [line[:9] for line in done.stderr.splitlines()] == ["trial 0  ", "trial 1  "]
    again = run(*base, "--trials", 2)
    assert again.exit_code == 2
    assert "holds a search: continue with --resume" in again.stderr
    own = folder / "config.yaml"
    resumed = run("search", "--run", folder, "--trials", 2, "--resume")
    assert resumed.stderr == f"{folder}: resumed after 2 trials\n"
    options = "--trials", 3, "--resume", "--quiet"
    more = run("search", "--config", own, "--run", folder, *options)
    assert more.exit_code == 0, more.stderr
    assert ": 3 trials" in more.stdout
    assert more.stderr == ""
    shown = run("search", "--show", folder)
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout == more.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--minutes", "0"), "search.minutes: Input should be greater than 0; got 0.0"),
        (
            ("--trials", "1", "--resume"),
            "a holds no search to resume: name its folder with --run, "
            "or leave out --resume to begin",
        ),
        (("--show", "nowhere"), "nowhere holds no search: trials.db is missing"),
    ],
)
def test_mistakes_are_a_line(config, tmp_path, words, message):
    done = run("search", "--config", config, "--run", tmp_path / "a", *words)
    assert done.exit_code == 2
    assert done.stderr.endswith(f"{message}\n")
    assert not (tmp_path / "a").exists()
