"""Imports between modules, read from the source: nothing is imported."""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from support.paths import ROOT

Graph = Mapping[str, set[str]]
FOLDERS = {"kgfast": ROOT / "kgfast", "kgfast.kernels": ROOT / "kernels"}


@cache
def parsed(path: Path) -> ast.Module:
    """Parse a file, once for all tests that look at it."""
    return ast.parse(path.read_text())


def sources() -> dict[str, Path]:
    """Find the file of every module; a package's is its ``__init__.py``."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found[".".join([package, *parts])] = path
    return found


def graphs(files: Mapping[str, Path]) -> tuple[Graph, Graph]:
    """Map modules to what they import at once, and to what only functions or types import."""
    at_once: dict[str, set[str]] = {name: set() for name in files}
    later: dict[str, set[str]] = {name: set() for name in files}
    for name, path in files.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for node, is_late in _imports(parsed(path), False):
            edges = later if is_late else at_once
            edges[name] |= {it for it in _targets(node, package, files) if it != name}
    return at_once, later


def cycles(graph: Graph) -> list[list[str]]:
    """List groups of modules that reach each other, sorted."""
    reach = {name: reachable(graph, name) for name in graph}
    groups = {
        tuple(sorted(other for other in reach[name] if name in reach[other]))
        for name in graph
        if name in reach[name]
    }
    return sorted(map(list, groups))


def reachable(graph: Graph, start: str) -> set[str]:
    """Find all modules that an import of ``start`` leads to."""
    found: set[str] = set()
    todo = [start]
    while todo:
        new = graph[todo.pop()] - found
        found |= new
        todo += new
    return found


def _imports(node: ast.AST, is_late: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Yield import statements, and True for those that loading the module leaves out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, is_late
        else:
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            is_typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
            yield from _imports(child, is_late or is_function or is_typing)


def _targets(node: ast.AST, package: str, files: Mapping[str, Path]) -> Iterator[str]:
    """Yield the modules of the house that a statement names."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in files)
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1]
            base = ".".join([*above, base] if base else above)
        for alias in node.names:
            name = f"{base}.{alias.name}"
            yield from (it for it in [name if name in files else base] if it in files)
