"""The pages about ranking and prediction: their snippets run as they stand."""

import pytest

from support.pages import run_snippets


@pytest.mark.parametrize("page", ["any_scorer", "relations", "predictions"])
def test_snippets_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_snippets(page)
    assert capsys.readouterr().out
