"""The pages that new users follow say all that there is to type."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from journeys import walk as walking
from journeys.walk import Page, Walk, follow
from journeys.walks import WALKS
from support.paths import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.name)
def test_the_pages_can_be_followed(walk, tmp_path):
    missing = [it for it in walk.needs if find_spec(it) is None]
    if missing:
        pytest.skip(f"the pages of this walk need {', '.join(missing)}")
    if walk.data is not None and not walk.data.is_dir():
        pytest.skip(f"{walk.data.name} is not at hand")
    rows = follow(walk, tmp_path)
    assert {row["page"] for row in rows} == {page.name for page in walk.pages}


class TestAWalk:
    """Walks over a page of the test's own: what they type, and how a failing step is named."""

    TEXT = (
        "# A\n\n```python\nx = 1\n```\n\n    kgfast info   # says\n\n## B\n\n"
        "```sh\ntest -d DIR\n```\n\n## C\n\n<!-- not run: needs a GPU -->\n```python\n1 / 0\n```\n"
    )

    def page(self, monkeypatch, tmp_path, text=TEXT, **options):
        monkeypatch.setattr(walking, "ROOT", tmp_path)
        (tmp_path / "page.md").write_text(text)
        return Page("page.md", **options)

    def test_types_python_and_commands_in_order(self, monkeypatch, tmp_path):
        page = self.page(monkeypatch, tmp_path)
        typed = [(it.line, it.code.strip()) for it in page.steps()]
        assert typed == [(4, "x = 1"), (7, "kgfast info"), (12, "test -d DIR")]

    def test_sections(self, monkeypatch, tmp_path):
        page = self.page(monkeypatch, tmp_path, sections=("", "B"))
        assert [it.line for it in page.steps()] == [4, 7, 12]
        with pytest.raises(AssertionError, match=r"nothing to type in \{'D'\}"):
            self.page(monkeypatch, tmp_path, sections=("D",)).steps()

    def test_places_stand_for_their_words(self, monkeypatch, tmp_path):
        page = self.page(monkeypatch, tmp_path, sections=("B",))
        (row,) = follow(Walk("a", (page,), lambda: {"DIR": str(tmp_path)}), tmp_path)
        assert (row["walk"], row["line"], row["step"]) == ("a", 12, "test -d DIR")
        with pytest.raises(AssertionError, match=r"page.md:12: .*ended with 1"):
            follow(Walk("a", (page,)), tmp_path)

    def test_blocks_that_name_a_file_are_saved(self, monkeypatch, tmp_path):
        blocks = "```python\n# mine.py\nx = 1\n```\n\n```yaml\n# own.yaml\na: 1\n```\n"
        shell = "```sh\ntest -f PROJECT/page.md\npython -c 'import mine'\ntest -f own.yaml\n```\n"
        page = self.page(monkeypatch, tmp_path, text=blocks + shell)
        empty = tmp_path / "empty"
        empty.mkdir()
        assert len(follow(Walk("a", (page,)), empty)) == 3
        assert (empty / "own.yaml").read_text() == "# own.yaml\na: 1\n"

    def test_a_step_that_fails_is_named(self, monkeypatch, tmp_path):
        page = self.page(monkeypatch, tmp_path, text="\n```python\nx = 1\n1 / 0\n```\n")
        with pytest.raises(AssertionError, match=r"page.md:3: ZeroDivisionError"):
            follow(Walk("a", (page,)), tmp_path)


def test_each_walk_has_pages_that_exist():
    assert len(WALKS) == len({each.name for each in WALKS}) >= 4
    for page in (page for each in WALKS for page in each.pages):
        assert (ROOT / page.name).is_file()
        assert page.steps(), page
        assert Path(page.name).parts[0] == "docs"
