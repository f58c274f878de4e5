"""The pages about ranking and prediction: their snippets run as they stand."""

import re

import pytest

from support.paths import ROOT


@pytest.mark.parametrize("page", ["any_scorer", "relations", "predictions"])
def test_snippets_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / f"{page}.md").read_text()
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert snippets
    code = compile("\n".join(snippets), f"{page}.md", "exec")
    exec(code, {"__name__": page})
    assert capsys.readouterr().out
