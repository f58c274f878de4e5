"""The code of docs/ runs as it stands, its commands exist, and the site has all of it."""

import inspect
import os
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import nullcontext
from importlib import import_module
from types import ModuleType

import pytest
from typer.main import get_command

from kgfast.cli import app
from support.paths import ROOT
from support.snippets import commands, run_page, snippets

PAGES = sorted((ROOT / "docs").rglob("*.md"))
# The README's code is run by test_readme.py.
WITH_CODE = [page for page in PAGES if "```python" in page.read_text()]
LONG = {"pykeen.md", "pyg.md"}  # pages that take more than a second or two


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page.name in LONG else [])
        for page in WITH_CODE
    ],
    ids=lambda page: page.name,
)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(page)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_the_commands_of_a_page_exist(page):
    known = get_command(app).commands
    for line in commands(page.read_text()):
        words = shlex.split(line)[1:]
        assert words[0] in known, f"{page.name}: {line}"
        options = {it for option in known[words[0]].params for it in option.opts}
        used = {word.split("=")[0] for word in words if word.startswith("--")}
        assert used <= options | {"--help"}, f"{page.name}: {line}"


BLOCK = "\n```python\n1 / 0\n```\n"
PRINTS = "```python\nprint(1)\nprint(2)\n```\nSo:\n```text\n2\n```\n"
MARK = "<!-- not run: needs a GPU of its own -->"
PAGES_OF_TESTS = [  # and what their run says
    ("a\n```python\nx = 1\n```\n```python\nassert x == 1\n```\n```sh\nfalse\n```\n", None),
    ("a" + BLOCK, r"page\.md:3: ZeroDivisionError"),
    (MARK + BLOCK, None),
    ("<!-- not run:  -->" + BLOCK, "a mark says why not"),
    (MARK + "\n```\n```" + BLOCK, "ZeroDivision"),  # a mark is of one block
    (PRINTS, None),
    (PRINTS.replace("\n2\n", "\n3\n"), r"page\.md:7: printed otherwise:\n1\n2"),
    ("```python\n>>> 1 + 1\n2\n```\n", None),
    ("```python\n>>> 1 + 1\n3\n```\n", "Expected"),
]


@pytest.mark.parametrize(("text", "error"), PAGES_OF_TESTS, ids=range(len(PAGES_OF_TESTS)))
def test_what_is_wrong_with_a_page_is_said(tmp_path, text, error):
    path = tmp_path / "page.md"
    path.write_text(text)
    with nullcontext() if error is None else pytest.raises(AssertionError, match=error):
        run_page(path)


def public_names():
    """Yield the spellings of each public name: where it is exported and where it is defined."""
    for room in (
        "kgfast",
        *(f"kgfast.{it}" for it in ("datasets", "distributed", "losses", "tables")),
    ):
        module = import_module(room)
        for name in module.__all__:
            value = getattr(module, name)
            if not isinstance(value, ModuleType):
                yield {f"{it}.{name}" for it in (room, getattr(value, "__module__", room))}


def test_every_public_name_is_in_the_api():
    """A directive names it, or its module."""
    text = (ROOT / "docs/reference/api.md").read_text()
    shown = set(re.findall(r"^::: (kgfast\.[\w.]+)$", text, re.MULTILINE))
    for spellings in public_names():
        assert shown & {*spellings, *(it.rpartition(".")[0] for it in spellings)}, spellings


def exported():
    """Yield each class and function that a room lists in its ``__all__``, and public methods."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "packages"
    ]
    rooms = [import_module(it) for it in packages if not it.startswith("kgfast.kernels.triton")]
    for room in rooms:
        for name in getattr(room, "__all__", ()):
            value = getattr(room, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                yield f"{room.__name__}.{name}", value
            for own, member in vars(value).items() if inspect.isclass(value) else ():
                is_code = inspect.isroutine(member) or isinstance(member, property)
                if is_code and not own.startswith("_"):
                    yield f"{room.__name__}.{name}.{own}", getattr(value, own)


def test_names_that_a_room_exports_and_their_methods_have_docstrings():
    """A method without one has that of the same method of a base."""
    assert [name for name, value in exported() if not inspect.getdoc(value)] == []


def test_every_environment_variable_is_in_the_api():
    sources = [ROOT / "setup.py", *ROOT.glob("kgfast/**/*.py"), *ROOT.glob("kernels/**/*.py")]
    read = {it for path in sources for it in re.findall(r'"(KGFAST_\w+)"', path.read_text())}
    rows = re.findall(
        r"^\| `(KGFAST_\w+)` \|", (ROOT / "docs/reference/api.md").read_text(), re.MULTILINE
    )
    assert sorted(rows) == sorted(read - {"KGFAST_SANITIZE"})  # for developers


def test_every_page_is_reachable_from_the_tree():
    """A link of a page to another one of docs/, or to a file of the tree, leads there."""
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_menu_has_every_page_once_in_at_most_seven_groups():
    text = (ROOT / "mkdocs.yml").read_text()
    nav = text[text.index("\nnav:") : text.index("\nhooks:")]
    assert len(re.findall(r"^  - ", nav, re.MULTILINE)) <= 7
    listed = re.findall(r": ([\w/-]+\.md)$", nav, re.MULTILINE)
    assert sorted(listed) == sorted(str(it.relative_to(ROOT / "docs")) for it in PAGES)
    home = (ROOT / "docs" / "index.md").read_text()
    told = re.findall(r"^- \[[^\]]+\]\(([\w/-]+\.md)\): ", home, re.MULTILINE)
    assert told == [it for it in listed if it != "index.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_fits_its_box(page):
    """The site shows 130 letters of code a line in a window of 1,280 pixels (docs/site.css)."""
    text = re.sub(
        r"<!-- results:begin -->.*?<!-- results:end -->", "", page.read_text(), flags=re.S
    )
    code = [line for it in snippets(text) for line in it.code.splitlines()]
    code += re.findall(r"^ {4}(.*)$", text, re.MULTILINE)
    assert [line for line in code if len(line) > 130] == []


@pytest.mark.slow
def test_the_site(tmp_path):
    """Strict: a link that leads nowhere or a name without docstring is an error.

    With ``--quiet`` mkdocs counts no warnings, and strict means nothing.
    """
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(site)]
    made = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "http_proxy": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    home = (site / "index.html").read_text()
    for page in PAGES:
        name = page.relative_to(ROOT / "docs").with_suffix(".html")
        text = (site / name).read_text()
        assert not re.findall(r'(?:src|<link[^>]*href)="(https?://[^"]*)"', text), page.name
        assert f'href="{name}"' in home, "not in the menu"
    api = (site / "reference" / "api.html").read_text()
    for spellings in public_names():
        assert any(f'id="{it}"' in api for it in spellings), spellings
