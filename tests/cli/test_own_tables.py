"""docs/tutorials/own_tables.md as its reader walks it: arrays become a folder for every command."""

import pytest

from support.commands import lines_of, run
from support.paths import ROOT
from support.snippets import run_page

PAGE = ROOT / "docs/tutorials/own_tables.md"


@pytest.fixture
def walked(tmp_path, monkeypatch):
    """Return the folder in which the Python of the page has run."""
    monkeypatch.chdir(tmp_path)
    run_page(PAGE)
    return tmp_path


def test_the_commands(walked):
    (walked / "DIR").mkdir()
    for split in ("train", "valid", "test"):
        (walked / "DIR" / f"{split}.txt").write_text("Q90\tP1376\tQ142\nQ220\tP1376\tQ38\n")
    words = ("predict", "capitals", "--head", "Q90", "--relation", "P1376", "--k", 2)
    found = lines_of(*words)
    tails = [(it["tail"], it["tail_label"]) for it in found]
    assert tails == [("Q142", "France"), ("Q90", "Paris")]
    facts = lines_of(*words[:2], "--all", "--head", "Q64", "--k", 12)
    assert len(facts) == 11
    assert ("P1376", "Q183") not in {(it["relation"], it["tail"]) for it in facts}
    for limits in ((), ("--max-memory", "4GiB")):
        result = run("evaluate", "capitals", "--data", "DIR", *limits)
        assert result.exit_code == 0, result.output
        assert "test triples by the tables of the folder" in result.stdout
    assert run("report", "capitals", "--data", "DIR").exit_code == 0
    assert "Q90 (Paris)" in (walked / "capitals" / "report.html").read_text()
    assert "not the folder of a run" in run("evaluate", ".", "--data", "DIR").stderr
