"""The stored list of all that is public is complete, and a change of it is noticed."""

import importlib
import inspect

import public_list
import pytest
from typer.main import get_command

import kgfast
from kgfast.cli import app
from support.paths import ROOT


@pytest.fixture(scope="module")
def listed() -> str:
    return public_list.text()


def test_the_stored_list_is_that_of_the_sources(listed):
    changes = public_list.differences(listed)
    assert changes == [], "public names changed: CHANGELOG.md, then python tools/public_list.py"


def test_every_public_name_and_command_is_listed(listed):
    lines = listed.split("\n")
    for name in kgfast.__all__:
        starts = tuple(f"{kind}kgfast.{name}" for kind in ("", "class "))
        assert any(line.startswith(starts) for line in lines), name
    for name, command in get_command(app).commands.items():
        first = lines.index(f"kgfast {name}") + 1
        options = lines[first : first + len(command.params)]
        for option, line in zip(command.params, options, strict=True):
            assert option.opts[0] in line or option.metavar in line, line


def test_signatures_are_those_that_python_sees(listed):
    for name in ("rank", "topk", "losses.nssa", "ops.rank_counts", "Index.save"):
        found = importlib.import_module("kgfast")
        for part in name.split("."):
            found = getattr(found, part)
        names = [it for it in inspect.signature(found).parameters if it != "self"]
        start = "    save(" if name == "Index.save" else f"kgfast.{name}("
        line = next(it for it in listed.split("\n") if it.startswith(start))
        places = [line.index(f"{it}:") for it in names]
        assert places == sorted(places)


CHANGES = {
    "a parameter": ("kgfast/eval/ranking.py", "    sides:", "    sidez:"),
    "a default": ("kgfast/eval/fact_search.py", "k: int = 100,", "k: int = 99,"),
    "a member of a class": ("kgfast/eval/ranks.py", "def hits(", "def hitz("),
    "a name": ("kgfast/datasets/__init__.py", '"download",', ""),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_noticed(listed, monkeypatch, what):
    path, old, new = CHANGES[what]
    text = (ROOT / path).read_text()
    assert old in text
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    changed = public_list.ast.parse(text.replace(old, new))
    original = public_list.tree_of

    def tree_of(name):
        return changed if name == module else original(name)

    monkeypatch.setattr(public_list, "tree_of", tree_of)
    names = "\n".join(public_list.names())
    assert names not in listed


def test_the_versions_of_formats_are_listed(listed, monkeypatch):
    monkeypatch.setattr("kgfast.graph.stored.folder.VERSION", 7)
    changed = "\n".join(public_list.formats())
    assert changed not in listed
    assert changed.replace("save: 7", "save: 1") in listed
