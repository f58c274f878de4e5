"""Bounds of dependencies: each was run, and is the same in all lists and pages."""

import tomllib

import pytest
import versions
from packaging.specifiers import SpecifierSet

from kgfast.kernels import triton
from support.paths import ROOT

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_every_bound_was_run_and_everything_passed():
    rows = {row["environment"]: row for row in versions.read_rows(versions.FILE)}
    assert tuple(rows) == versions.NAMES
    reached = rows["lowest"]["versions"]
    bounds = versions.bounds(*versions.EXTRAS, "test")
    shown = [*versions.bounds(*versions.EXTRAS), *versions.TOOLS]
    for name in shown:
        assert reached[name] in SpecifierSet(f"=={bounds[name]}"), name
    for row in rows.values():
        assert [it for it in row["parts"].values() if "failed" in it] == []
        assert len(row["parts"]) == 2 + len(versions.TESTS)


def test_no_package_has_two_bounds(monkeypatch, tmp_path):
    assert versions.bounds(*EXTRAS)["starlette"] == "1.7"
    text = '[project]\ndependencies = ["a>=1"]\noptional-dependencies.b = ["a>=2; marker"]\n'
    (tmp_path / "pyproject.toml").write_text(text)
    monkeypatch.setattr(versions, "ROOT", tmp_path)
    assert versions.bounds() == {"a": "1"}
    with pytest.raises(ValueError, match=r"two bounds of a: 1 and 2"):
        versions.bounds("b")


def test_the_oldest_triton_is_that_of_the_bounds():
    assert ".".join(map(str, triton.OLDEST)) == versions.bounds("test")["triton"]


def test_commands_are_those_of_the_pages(tmp_path):
    assert "kgfast.rank(model, data.test" in versions.readme()[-1]
    first, *others = versions.tutorial(str(tmp_path))
    assert first[:2] == ["python", "-c"]
    assert [it[1] for it in others[:4]] == ["train", "evaluate", "predict", "report"]
    assert all(it[0] == "kgfast" and it[1] != "serve" for it in others)
    assert "model:" in (tmp_path / "people.yaml").read_text()


@pytest.mark.parametrize(
    ("printed", "code", "said"),
    [
        ("== 3 passed, 1 skipped, 2 warnings in 0.50s (0:01:00) ==", 0, "3 passed, 1 skipped"),
        ("1 failed, 3 passed in 0.50s", 1, "1 failed, 3 passed"),
        ("3 passed in 0.50s", 3, "failed: 3 passed"),
        ("Traceback", 1, "failed"),
        ("metrics", 0, "passed"),
    ],
)
def test_a_part_says_whether_it_passed(monkeypatch, tmp_path, printed, code, said):
    script = tmp_path / "lowest" / "bin" / "pytest"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\necho '{printed}'\nexit {code}\n")
    script.chmod(0o755)
    monkeypatch.setattr(versions, "HOME", tmp_path)
    assert versions.run("lowest", "part", [["pytest"]], tmp_path) == said
