"""Writes tests/public.txt, the list of all that kgfast promises: ``python tools/public_list.py``.

Signatures are read from the sources, so the list depends neither on the Python that writes it nor
on installed libraries. ``--check`` compares the stored list. docs/reference/stability.md holds the
promises.
"""

import argparse
import ast
import difflib
import inspect
import sys
from collections.abc import Iterator, Set
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

sys.path.append(str(Path(__file__).resolve().parent))
import config_page

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "public.txt"
ALL = ("*",)  # every name in the ``__all__`` of a module
MODULES: dict[str, tuple[str, ...]] = {
    "kgfast": ALL,
    "kgfast.adapters.dglke": ALL,
    "kgfast.adapters.libkge": ALL,
    "kgfast.adapters.libkge_checkpoints": ("load_libkge",),
    "kgfast.adapters.mteb": ALL,
    "kgfast.adapters.official": ALL,
    "kgfast.adapters.ogb": (
        *("evaluate", "known_triples", "predict_top10", "save_submission", "top10_mrr"),
    ),
    "kgfast.adapters.pyg": ALL,
    "kgfast.adapters.pykeen": ALL,
    "kgfast.adapters.recbole": ALL,
    "kgfast.datasets": ALL,
    "kgfast.distributed": ALL,
    "kgfast.extras.heads": ALL,
    "kgfast.extras.influence": ALL,
    "kgfast.extras.paths": ALL,
    "kgfast.extras.report": ALL,
    "kgfast.extras.search": ALL,
    "kgfast.extras.serve.app": ("make_app",),
    "kgfast.extras.serve.engine": ("Engine",),
    "kgfast.extras.serve.limits": ("Limits",),
    "kgfast.graph": ("IdsLike", "TriplesLike", "VocabularyLike"),
    "kgfast.losses": ALL,
    "kgfast.losses.regularizers": ("dura", "l2", "n3"),
    "kgfast.models": ("RankableModel",),
    "kgfast.ops": (
        *("above", "bce", "bce_total", "cores_for_kernels", "cross_entropy"),
        *("cross_entropy_total", "indexed_scores", "pairwise_scores", "rank_counts"),
        *("row_adagrad", "row_adam", "topk"),
    ),
    "kgfast.tables": ALL,
    "kgfast.training": ("Callback", "Config", "LoadedRun", "Result", "Trainer"),
    "kgfast.training.checkpoint": ("load", "load_meta"),
}
# Constants that hold the version of a file format.
FORMATS = {
    "checkpoints, and rows of shards": "kgfast.training.checkpoint.format.VERSION",
    "folders of kgfast.save": "kgfast.training.saved.FORMAT",
    "folders of KnownTriples.build and save": "kgfast.graph.stored.folder.VERSION",
    "files of Index.save": "kgfast.eval.index_file._VERSION",
    "files of TypeConstraints.save": "kgfast.graph.constraints._VERSION",
    "folders of partial=": "kgfast.eval.partial._FORMAT",
}
VARIABLES = (
    *("KGFAST_BACKEND", "KGFAST_CPU_ISA", "KGFAST_DATA", "KGFAST_MAX_BYTES", "KGFAST_MIRROR"),
    *("KGFAST_TIERS", "KGFAST_BUILD_JOBS", "KGFAST_REQUIRE_EXTENSION"),
)

Node = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


def main() -> int:
    """Write the list, or compare it; the exit code is 1 if the stored list differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail if the stored list differs")
    found = text()
    if not parser.parse_args().check:
        LIST.write_text(found)
        return 0
    changes = differences(found)
    print("\n".join(changes), end="\n" if changes else "")
    return 1 if changes else 0


def differences(found: str) -> list[str]:
    """Return the changed lines between the stored list and a new one."""
    lines = difflib.unified_diff(LIST.read_text().split("\n"), found.split("\n"), n=0, lineterm="")
    return [line for line in list(lines)[2:] if not line.startswith("@@")]


def text() -> str:
    """Return the whole list."""
    parts = {
        "Names": names(),
        "Commands": commands(),
        "Config keys": config_keys(),
        "File formats": formats(),
        "HTTP": paths(),
        "Environment variables": iter(VARIABLES),
    }
    return "\n".join(f"# {title}\n\n" + "\n".join(lines) + "\n" for title, lines in parts.items())


def names() -> Iterator[str]:
    """Yield a line for each public name, and for each member of a public class."""
    asked = {
        f"{module}.{name}": resolved(module, name)
        for module, some in MODULES.items()
        for name in (exported(module) if some == ALL else some)
    }
    listed = {id(node) for _, node in asked.values()}
    written: dict[int, str] = {}
    for path, (home, node) in asked.items():
        if node is None:
            yield f"{path} (module)"
        elif id(node) in written:
            yield f"{path} = {written[id(node)]}"
        else:
            written[id(node)] = path
            yield from said(path, home, node, listed)


def said(path: str, home: str, node: Node, listed: Set[int] = frozenset()) -> Iterator[str]:
    """Yield the lines of a name."""
    if isinstance(node, ast.FunctionDef):
        yield path + signature(node)
    elif not isinstance(node, ast.ClassDef):
        yield f"{path} (value)"
    else:
        bases = f"({', '.join(map(ast.unparse, node.bases))})" if node.bases else ""
        yield f"class {path}{bases}"
        for line in sorted(set(members(home, node, listed).values())):
            yield f"    {line}"


def members(home: str, node: ast.ClassDef, listed: Set[int] = frozenset()) -> dict[str, str]:
    """Return the public members of a class, with members of bases that are not listed apart."""
    found: dict[str, str] = {}
    for base in reversed(node.bases):
        base = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(base, ast.Name):
            where, parent = resolved(home, base.id, missing=True)
            if isinstance(parent, ast.ClassDef) and id(parent) not in listed:
                found |= members(where, parent, listed)
    for it in node.body:
        if isinstance(it, ast.FunctionDef) and (it.name == "__init__" or it.name[0] != "_"):
            kinds = {ast.unparse(one).split(".")[-1].split("(")[0] for one in it.decorator_list}
            if "setter" in kinds:
                continue
            kind = next((f"{one} " for one in ("classmethod", "staticmethod") if one in kinds), "")
            is_value = kinds & {"property", "cached_property"}
            answer = f": {ast.unparse(it.returns)}" if it.returns else ""
            own = answer if is_value else signature(it, skips=kind != "staticmethod ")
            found[it.name] = f"{kind}{it.name}{own}"
            if it.name == "__init__":
                found |= {name: f"{name} (value)" for name in attributes(it) if name not in found}
        elif isinstance(it, ast.AnnAssign) and ast.unparse(it.target)[0] != "_":
            found[ast.unparse(it.target)] = ast.unparse(it)
    return found


def attributes(node: ast.FunctionDef) -> list[str]:
    """Return the public attributes that a constructor sets."""
    targets = (it for it in ast.walk(node) if isinstance(it, ast.Attribute))
    own = (it for it in targets if isinstance(it.ctx, ast.Store) and it.attr[0] != "_")
    return [it.attr for it in own if ast.unparse(it.value) == "self"]


def signature(node: ast.FunctionDef, *, skips: bool = False) -> str:
    """Return parameters, defaults and types; with ``skips``, not the first parameter."""
    arguments = node.args
    if skips:
        first, rest = arguments.posonlyargs, arguments.args
        parts = {"posonlyargs": first[1:], "args": rest if first else rest[1:]}
        arguments = ast.arguments(**dict(ast.iter_fields(arguments)) | parts)
    answer = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(arguments)}){answer}"


@cache
def tree_of(module: str) -> ast.Module | None:
    """Return the syntax tree of a module of the package."""
    parts = module.removeprefix("kgfast.").split(".")
    folder = ROOT if module == "kgfast" or parts[0] == "kernels" else ROOT / "kgfast"
    stem = folder.joinpath(*parts)
    for path in (stem.with_suffix(".py"), stem / "__init__.py"):
        if path.is_file():
            return ast.parse(path.read_text())
    return None


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, with those under a condition."""
    for it in body:
        yield it
        if isinstance(it, ast.If | ast.Try):
            yield from statements(it.body)


def exported(module: str) -> list[str]:
    """Return the names in the ``__all__`` of a module."""
    tree = tree_of(module)
    assert tree is not None, module
    for it in tree.body:
        if isinstance(it, ast.Assign) and ast.unparse(it.targets[0]) == "__all__":
            found: list[str] = ast.literal_eval(it.value)
            return found
    raise LookupError(f"{module} has no __all__")


def resolved(module: str, name: str, *, missing: bool = False) -> tuple[str, Node | None]:
    """Return the module that defines a name, and its definition; None for a module."""
    tree = tree_of(module)
    found: Node | None = None
    for it in statements(tree.body if tree else []):
        if isinstance(it, ast.ImportFrom) and (it.module or "").startswith("kgfast"):
            own = next((one.name for one in it.names if (one.asname or one.name) == name), None)
            if own is not None and it.module != module:
                return resolved(str(it.module), own, missing=missing)
        elif isinstance(it, ast.FunctionDef | ast.ClassDef):
            found = it if it.name == name else found  # the last of several overloads has the body
        elif isinstance(it, ast.Assign | ast.AnnAssign):
            targets = it.targets if isinstance(it, ast.Assign) else [it.target]
            found = it if name in map(ast.unparse, targets) else found
    if found is None and tree_of(f"{module}.{name}") is not None:
        return f"{module}.{name}", None
    if found is None and not missing:
        raise LookupError(f"{module} has no {name}")
    return module, found


def commands() -> Iterator[str]:
    """Yield each command with its arguments and options."""
    from typer.main import get_command

    from kgfast.cli import app

    found: dict[str, Any] = vars(get_command(app))["commands"]
    for name, command in sorted(found.items()):
        yield f"kgfast {name}"
        hints = get_type_hints(inspect.unwrap(command.callback))
        for it in command.params:
            hint = hints.get(it.name, bool)
            is_argument = it.param_type_name == "argument"
            spelled = it.metavar if is_argument else "/".join([*it.opts, *it.secondary_opts])
            takes = "" if hint is bool else f" {_takes(hint)}"
            default = getattr(it.default, "value", it.default)
            ending = "" if default in (None, False, []) else f" = {default}"
            yield f"    {spelled or it.name}{takes}{', required' if it.required else ending}"


def _takes(hint: Any) -> str:
    kinds = [it for it in get_args(hint) if it is not NoneType]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "|".join(it.value for it in hint)
    if get_origin(hint) is list:
        return f"{_takes(kinds[0])}, ..."
    return " or ".join(map(_takes, kinds)) if kinds else str(hint.__name__)


def config_keys() -> Iterator[str]:
    """Yield each key of a config, what it takes and its default."""
    from kgfast.training import Config

    for prefix, section in config_page.sections(Config, ""):
        for row in config_page.rows(section, prefix):
            key, takes, default = row.replace("`", "").removeprefix("| ").split(" | ")[:3]
            yield f"{key}: {takes}" + ("" if default == "-" else f" = {default}".rstrip())


def formats() -> Iterator[str]:
    """Yield the version of each format that kgfast writes."""
    for name, place in FORMATS.items():
        module, _, constant = place.rpartition(".")
        yield f"{name}: {getattr(import_module(module), constant)}"


def paths() -> Iterator[str]:
    """Yield the paths that ``kgfast serve`` answers, and the fields of their bodies."""
    tree = tree_of("kgfast.extras.serve.openapi")
    assert tree is not None
    keys = (it.value for it in ast.walk(tree) if isinstance(it, ast.Constant))
    yield from sorted(
        {it for it in keys if isinstance(it, str) and it[:1] == "/" and " " not in it}
    )
    for name in ("TopkBody", "RankBody", "ScoreBody"):
        _, node = resolved("kgfast.extras.serve.bodies", name)
        assert isinstance(node, ast.ClassDef)
        yield name
        fields = [it for it in node.body if isinstance(it, ast.AnnAssign)]
        yield from (f"    {ast.unparse(it)}" for it in fields)


if __name__ == "__main__":
    sys.exit(main())
