"""docs/tutorials/own_tables.md as its reader walks it: arrays become a folder for every command."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from support.commands import lines_of, run
from support.paths import ROOT
from support.serving import ask
from support.snippets import run_page, snippets

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
    for limits in ((), ("--max-memory", "4GiB", "--partial", "ranks")):
        result = run("evaluate", "capitals", "--data", "DIR", *limits)
        assert result.exit_code == 0, result.output
        assert "test triples by the tables of the folder" in result.stdout
    assert run("report", "capitals", "--data", "DIR").exit_code == 0
    assert "Q90 (Paris)" in (walked / "capitals" / "report.html").read_text()
    line = run("evaluate", ".", "--data", "DIR").stderr
    assert "kgfast.save(kgfast.TransE(np.load(" in line


@pytest.mark.slow
def test_the_server_answers_as_the_page_says(walked):
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    pytest.importorskip("uvicorn", reason="the extra serve is not installed")
    blocks = list(snippets(PAGE.read_text(encoding="utf-8")))
    (curl,) = (it.code for it in blocks if it.language == "sh")
    (said,) = (json.loads(it.code) for it in blocks if it.language == "json")
    (walked / "capitals" / "labels.tsv").unlink()  # the page adds them later
    *_, url, _, body = shlex.split(curl)
    process = subprocess.Popen(
        [sys.executable, "-m", "kgfast", "serve", "capitals", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        port = int(re.search(r"127\.0\.0\.1:(\d+)$", process.stdout.readline())[1])
        path = url.partition(":8000")[2]
        assert ask(port, path, **json.loads(body)) == (200, said)
    finally:
        process.terminate()
        process.communicate()
