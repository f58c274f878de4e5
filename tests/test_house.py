"""The house is as CONTRIBUTING.md draws it: its rooms, tests that mirror them, no circles."""

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from support import arrows
from support.paths import ROOT, TESTS

ROOMS = ("kernels", "kgfast", "benchmarks", "tests", "tools")
SOURCES = (".py", ".h", ".cpp")
# Folders of tests/ that mirror none: the map tells their contents.
OF_THEIR_OWN = {"support", "fuzz", "gpu", "journeys"}
# Imports within a function, or for a type, that would close a circle.
DEFERRED: set[tuple[str, str]] = set()
DOCUMENTED = ast.Module, ast.ClassDef, ast.FunctionDef
OPENINGS = re.compile(
    r"(As|How|Its?|Of|That|Their|They|Those|What|Whether|Where|Which|Who|Whose)\b"
)


def drawn() -> list[str]:
    """List the map's paths, folders with a slash at their end; patterns as they are."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    block = re.search(r"## The house\n\n((?:    .*\n)+)", text)
    assert block is not None
    found, folders = [], []
    for line in block[1].splitlines():
        indent = len(line) - len(line.lstrip())
        folders = [(depth, folder) for depth, folder in folders if depth < indent]
        parent = folders[-1][1] if folders else ""
        names = re.split(r",\s", re.split(r"\s\s+", line.strip())[0])
        found += [parent + name for name in names]
        folders.append((indent, parent + names[-1]))
    return found


def folders_of(room: str) -> Iterator[Path]:
    """Folders that hold sources, relative to the root."""
    sources = (it for it in (ROOT / room).rglob("*") if it.suffix in SOURCES)
    yield from sorted({it.parent.relative_to(ROOT) for it in sources})


def test_the_map_names_what_exists():
    for path in drawn():
        assert list(ROOT.glob(path.removesuffix("/"))), f"the map names {path}, which is not there"
        assert (ROOT / path).is_dir() or not path.endswith("/"), f"{path} is no folder"


def test_files_that_the_steps_name_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = re.findall(rf"`((?:{'|'.join(ROOMS)})/[\w./*-]+)`", text)
    assert len(paths) > 10
    assert [path for path in paths if not list(ROOT.glob(path))] == []


def test_everything_is_on_the_map():
    names = drawn()
    for room in ROOMS:
        for folder in folders_of(room):
            assert f"{folder.as_posix()}/" in names, f"the map lacks {folder}/"
        for path in (ROOT / room).glob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            is_drawn = path.name.startswith("__") or any(fnmatch(name, it) for it in names)
            assert is_drawn, f"the map lacks {name}"


def test_tests_mirror_the_tree():
    for folder in folders_of("tests"):
        parts = folder.parts[1:]
        if not parts or parts[0] in OF_THEIR_OWN:
            continue
        places = ROOT.joinpath(*parts), ROOT.joinpath("kgfast", *parts)
        assert any(place.is_dir() for place in places), f"{folder} mirrors nothing"
    for name in OF_THEIR_OWN:
        assert (TESTS / name).is_dir(), f"{name}: no such folder of tests/"
        assert not (ROOT / "kgfast" / name).exists(), f"{name} is a room now: tests/ mirrors it"


def test_helpers_stand_in_support():
    """Elsewhere in tests/ there are only tests, fixtures, the attack and the walks."""
    for path in TESTS.rglob("*.py"):
        if path.relative_to(TESTS).parts[0] not in ("support", "fuzz", "journeys"):
            assert path.name == "conftest.py" or path.name.startswith("test_"), path


def test_no_modules_import_each_other_in_a_circle():
    at_once, later = arrows.graphs(arrows.sources())
    assert sum(map(len, at_once.values())) > 300, "imports are not found any more"
    assert arrows.cycles(at_once) == []
    del later["kgfast"]  # the face of the package, which loads what it is asked for
    closing = {
        (name, target)
        for name, targets in later.items()
        for target in targets
        if name in arrows.reachable(at_once, target)
    }
    assert closing == DEFERRED


def test_no_scripts_of_benchmarks_import_each_other_in_a_circle():
    """Nor do their modules, also where an import waits for a call."""
    folder = ROOT / "benchmarks"
    names = {
        path: ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        for path in folder.rglob("*.py")
    }
    at_once, later = arrows.graphs({name: path for path, name in names.items()})
    assert sum(map(len, at_once.values())) > 100, "imports are not found any more"
    assert arrows.cycles({name: at_once[name] | later[name] for name in at_once}) == []


def test_no_class_name_stands_for_two_things():
    homes: dict[str, list[str]] = {}
    for path in [*ROOT.glob("kgfast/**/*.py"), *ROOT.glob("kernels/**/*.py")]:
        for node in ast.walk(arrows.parsed(path)):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_rooms_stand_on_few_floors():
    """A room is a folder of kgfast; its floor is the longest chain of rooms that it imports."""
    files = arrows.sources()
    rooms = {name: name.split(".")[1] for name in files if name.count(".")}
    folders = {room for name, room in rooms.items() if f"kgfast.{room}" != name} | {"kernels"}
    below: dict[str, set[str]] = {room: set() for room in folders}
    for graph in arrows.graphs(files):
        for name, targets in graph.items():
            own = rooms.get(name)
            if own in folders:
                below[own] |= {rooms.get(it, own) for it in targets} & folders - {own}
    floors: dict[str, int] = {}
    while len(floors) < len(below):
        ready = [it for it in below if it not in floors and below[it] <= floors.keys()]
        assert ready, f"rooms import each other in a circle: {below.keys() - floors.keys()}"
        floors |= {it: 1 + max((floors[low] for low in below[it]), default=0) for it in ready}
    assert max(floors.values()) <= 8
    assert floors["cli"] == max(floors.values())


def test_docstrings_begin_with_a_verb_or_a_noun():
    """Openings such as *What is left* point at a noun that the reader must guess."""
    for path in (it for room in ROOMS for it in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
            assert not OPENINGS.match(text or ""), f"{path}: {text}"
