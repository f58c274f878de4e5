"""search_trials.py in its smoke-test size, and the page of its results."""

import json

import pytest


@pytest.mark.slow
def test_a_search_is_run_and_put_into_the_page(call, tmp_path):
    results, page = tmp_path / "results", tmp_path / "page.md"
    done = call("search_trials.py", "--quick", "--json", results / "cpu-search-trials.json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((results / "cpu-search-trials.json").read_text())["rows"]
    assert len(row["trials"]) == 3
    assert {"command", "machine", "versions", "date"} <= row.keys()
    page.write_text("Text.\n\n<!-- results:begin -->\n<!-- results:end -->\n")
    arguments = ("--results", results, "--page", page)
    assert call("pages.py", "search", *arguments, "--check").returncode == 1
    assert call("pages.py", "search", *arguments).returncode == 0
    assert call("pages.py", "search", *arguments, "--check").returncode == 0
    assert "| synthetic, 500 entities | 0." in page.read_text()
