"""The package as such: imports, arrows between rooms, import time, doctests, build flags."""

import ast
import doctest
import importlib
import importlib.util
import inspect
import pkgutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import pytest

import kgfast
from support import arrows
from support.paths import ROOT

MODULES = sorted(
    info.name
    for package in ("kgfast", "kgfast.kernels")
    for info in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
    if not info.name.endswith("._cpu")
)
# These import other libraries, seconds each, and have no doctests.
ADAPTERS = {f"kgfast.adapters.{name}" for name in ("libkge", "pyg", "pykeen")}
# Arrows point one way: a room may import the rooms before it.
ROOMS = [
    "whole_files",
    "text",
    "frames",
    "locks",
    "storage",
    "progress",
    "rng",
    "kernels",
    "ops",
    "environment",
    "graph",
    "tables",
    "safe_yaml",
    "datasets",
    "models",
    "losses",
    "eval",
    "processes",
    "distributed",
    "training",
    "adapters",
    "extras",
    "cli",
    "__main__",
]


@cache
def imports() -> dict[str, set[str]]:
    """Modules of the house, and those that each imports, at once or later."""
    at_once, later = arrows.graphs(arrows.sources())
    return {name: at_once[name] | later[name] for name in at_once}


@pytest.mark.parametrize("module", [name for name in MODULES if name not in ADAPTERS])
def test_doctests(module):
    if module.startswith("kgfast.kernels.triton"):
        pytest.importorskip("triton")
    if module.startswith("kgfast.extras.serve."):
        pytest.importorskip("uvicorn", reason="the extra serve is not installed")
    found = importlib.import_module(module)
    if ">>>" in Path(found.__file__).read_text():  # to look for examples takes 20 ms a module
        assert doctest.testmod(found, optionflags=doctest.ELLIPSIS).failed == 0


def test_adapters_are_found_as_attributes():
    vars(kgfast.adapters).pop("dglke", None)  # before its first import
    assert callable(kgfast.adapters.dglke.load_dglke)
    with pytest.raises(AttributeError, match=r"'kgfast\.adapters' has no attribute 'nothing'"):
        kgfast.adapters.nothing  # noqa: B018


def test_arrows_point_one_way():
    for name, targets in imports().items():
        for target in targets if "." in name else ():
            pair = [ROOMS.index(it.split(".")[1]) for it in (target, name) if "." in it]
            assert pair == sorted(pair), f"{name} imports {target}"
            assert not name.startswith("kgfast.kernels") or target.startswith("kgfast.kernels")


@pytest.mark.parametrize("room", ["kgfast.adapters", "kgfast.extras"])
def test_only_the_command_line_imports_extras_and_adapters(room):
    for name, targets in imports().items():
        # The face of the package loads the names of adapters when they are asked for.
        if name != "kgfast" and not name.startswith((room, "kgfast.cli")):
            late = [it for it in targets if it.startswith(room)]
            assert late == [], f"{name} imports {late}"


def test_extras_and_adapters_import_what_rooms_show():
    """Names in the ``__all__`` of a room's ``__init__``, those of ops.run, and single files."""
    wrong = []
    for path in [*ROOT.glob("kgfast/extras/*/*.py"), *ROOT.glob("kgfast/adapters/*.py")]:
        parts = path.relative_to(ROOT).parts
        own = ".".join(parts[: 3 if parts[1] == "extras" else 2])
        for node in ast.walk(arrows.parsed(path)):
            if isinstance(node, ast.Import):
                wrong += [f"{path}: {it.name}" for it in node.names if "kgfast" in it.name]
            elif isinstance(node, ast.ImportFrom) and not f"{node.module}.".startswith(f"{own}."):
                wrong += [
                    f"{path}: {node.module}.{it.name}"
                    for it in node.names
                    if str(node.module).startswith("kgfast") and it.name not in _shown(node.module)
                ]
    assert wrong == []


def _shown(module: str) -> set[str]:
    """Return the names that a room, the engine or a file of the package shows to extras."""
    if module == "kgfast":
        return {*kgfast.__all__, "__version__", "ops"}
    home = ROOT.joinpath(*module.split("."))
    is_face = home.joinpath("__init__.py").exists() or module == "kgfast.ops.run"
    if is_face:
        return {*importlib.import_module(module).__all__, "run"}
    is_file_of_the_package = module.count(".") == 1
    return set(vars(importlib.import_module(module))) if is_file_of_the_package else set()


@pytest.fixture(scope="module")
def imported() -> list[str]:
    """Return what a process prints that imports kgfast, then torch, all names, and ranks."""
    script = """
import importlib, resource, sys, kgfast
assert "torch" not in sys.modules
assert dir(kgfast) == sorted([*kgfast.__all__, "__version__"])
import torch, numpy, numpy.random

def megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

start, before = megabytes(), {name.partition(".")[0] for name in sys.modules}
assert "kgfast.eval.ranking" not in sys.modules
assert kgfast.rank.__module__ == "kgfast.eval.ranking" and kgfast.ops.BACKENDS
assert torch.ops.kgfast.rank_counts.default
for name in set(kgfast.__all__) - {"load_official", "load_run", "save"}:
    getattr(kgfast, name)
importlib.import_module("kgfast.kernels.triton").is_available()
packages = {name.partition(".")[0] for name in sys.modules} - before
print(*sorted(packages - sys.stdlib_module_names - {"kgfast"}))
print(*({"triton", "torch._dynamo", "sympy"} & set(sys.modules)), torch.cuda.is_initialized())
model = kgfast.RotatE.init(1000, 5, 32, seed=0)
kgfast.rank(model, torch.arange(300).reshape(100, 3) % 5)
loaded = [name for name in ("torch._dynamo", "sympy", "triton") if name in sys.modules]
print(megabytes() - start, *loaded)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_an_import_leaves_alone(imported):
    """Names that need no files load next to nothing beyond torch, no Triton, and touch no CUDA."""
    others, heavy, _ = imported
    assert not [it for it in others.split() if "cython" not in it]
    assert heavy == "False"


def test_the_first_call_does_not_load_the_compiler(imported):
    """``torch.library.custom_op`` would: two CPU seconds and 160 MB."""
    more, *loaded = imported[2].split()
    assert loaded == []
    assert float(more) <= 40


def test_names_for_type_checkers_are_those_that_load():
    tree = ast.parse((ROOT / "kgfast" / "__init__.py").read_text())
    (block,) = (it for it in tree.body if isinstance(it, ast.If) and "TYPE" in ast.dump(it.test))
    found = {
        alias.name: f"{node.module}.".removeprefix("kgfast.").removesuffix(".")
        for node in block.body
        for alias in node.names
    }
    assert sorted(found) == sorted(kgfast.__all__)
    assert {name: home for name, home in found.items() if home} == kgfast._HOME_OF


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["--version"]])
def test_help_loads_no_torch(arguments):
    """``kgfast --help`` is there in a third of a second."""
    script = f"""
import sys
import tomllib
from kgfast.cli import app
try:
    app({arguments})
except SystemExit as end:
    assert not end.code
print({{"torch", "numpy", "yaml"}} & set(sys.modules), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.strip() == "set()"
    assert done.returncode == 0


def test_build_flags():
    setup = (ROOT / "setup.py").read_text()
    tree = ast.parse(setup)
    flags = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert "-ffp-contract=off" in flags
    assert not {"-ffast-math", "-Ofast", "-march=native", "-funsafe-math-optimizations"} & flags


def test_the_extension_links_no_torch():
    spec = importlib.util.find_spec("kgfast.kernels._cpu")
    if spec is None:
        pytest.skip("the extension is not built")
    listing = subprocess.run(["ldd", spec.origin], capture_output=True, text=True, check=True)
    assert "libc" in listing.stdout
    assert "torch" not in listing.stdout
    assert "gomp" not in listing.stdout


def test_every_folder_of_code_is_installed():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {it.parent.relative_to(ROOT) for it in (ROOT / "kgfast").rglob("*.py")}
    named = {".".join(folder.parts) for folder in folders}
    assert named == {
        name for name in listed if name.split(".")[1:2] not in (["kernels"], ["configs"])
    }


# Options handed on to a function or a module that the caller chose; and a trainer's result, of
# which callbacks know nothing.
HANDED_ON = {
    "Callback.on_end(result)",
    "LoadedRun.ranks(**options)",
    "Model.init(**options)",
    "Model.state_dict(*args)",
    "Model.state_dict(**options)",
    "StreamedHead.forward(**options)",
    "TNTComplEx.init(**options)",
}


def test_public_parameters_have_types():
    """Not ``Any``, nor a union with it, so that an editor helps."""
    found = [(f"{name}({it.name})", it) for name, it in _public_parameters()]
    assert {"rank(model)", "topk(heads)", "Index.__init__(model)", "nssa(triples)"} <= {
        it for it, _ in found
    }
    untyped = {
        where.replace("(", f"({_STARS.get(it.kind, '')}")
        for where, it in found
        if not _is_typed(it.annotation)
    }
    assert untyped == HANDED_ON


_STARS = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def _is_typed(annotation: Any) -> bool:
    of_union = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()
    return annotation not in (Any, inspect.Parameter.empty) and all(map(_is_typed, of_union))


def _public_parameters() -> Iterator[tuple[str, inspect.Parameter]]:
    """Yield functions by name with each parameter, of what the rooms and extras show."""
    extras = [f"extras.{it.name}" for it in pkgutil.iter_modules(kgfast.extras.__path__)]
    rooms = [importlib.import_module(f"kgfast.{name}") for name in (*ROOMS[:-1], *extras)]
    shown = {
        id(it): it
        for room in (kgfast, *rooms)
        for it in (getattr(room, name) for name in getattr(room, "__all__", ()))
        if callable(it) and getattr(it, "__module__", "").startswith("kgfast")
    }
    for it in shown.values():
        for function in _methods_of(it) if isinstance(it, type) else [it]:
            own = inspect.unwrap(function)
            for parameter in inspect.signature(own).parameters.values():
                if parameter.name not in ("self", "cls"):
                    yield own.__qualname__, parameter


def _methods_of(cls: type) -> Iterator[Any]:
    is_protocol = getattr(cls, "_is_protocol", False)
    for name, value in vars(cls).items():
        is_function = inspect.isfunction(value) or isinstance(value, classmethod | staticmethod)
        is_shown = not name.startswith("_") or (name == "__init__" and not is_protocol)
        if is_function and is_shown:
            yield getattr(cls, name)
