"""The pages that new users follow say all that there is to type: `make journeys`."""

from importlib.util import find_spec

import pytest

from journeys import walk as walking
from journeys.walk import Page, Walk, follow
from journeys.walks import WALKS

TEXT = (
    "# A\n\n```python\n# mine.py\nx = 1\n```\n\n    kgfast info --help   # says\n\n"
    "## B\n\n```sh\ntest -d DIR\ntest -f mine.py\n```\n\n"
    "## C\n\n<!-- not run: needs a GPU -->\n```python\n1 / 0\n```\n"
)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.name)
def test_the_pages_can_be_followed(walk, tmp_path):
    missing = [package for package in walk.needs if find_spec(package) is None]
    if missing:
        pytest.skip(f"the pages of this walk need {', '.join(missing)}")
    if walk.data is not None and not walk.data.is_dir():
        pytest.skip(f"{walk.data.name} is not at hand")
    assert follow(walk, tmp_path)


def test_a_walk_types_python_and_commands_in_order(monkeypatch, tmp_path):
    monkeypatch.setattr(walking, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text(TEXT)
    page = Page("page.md")
    walk = Walk("a", (page,), lambda: {"DIR": str(tmp_path)})
    assert follow(walk, tmp_path) == ["page.md:4", "page.md:8", "page.md:13"]
    assert [step.line for step in Page("page.md", ("B",)).steps()] == [13]
    with pytest.raises(AssertionError, match=r"nothing to type in \{'D'\}"):
        Page("page.md", ("D",)).steps()
    with pytest.raises(AssertionError, match=r"^page.md:13: AssertionError"):
        follow(Walk("a", (Page("page.md", ("B",)),)), tmp_path)
    (tmp_path / "page.md").write_text("\n```python\nx = 1\n1 / 0\n```\n")
    with pytest.raises(AssertionError, match=r"page.md:3: ZeroDivisionError"):
        follow(walk, tmp_path)


def test_each_walk_has_steps():
    assert all(page.steps() for walk in WALKS for page in walk.pages)
