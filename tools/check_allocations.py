"""Find tensors that are made without naming their dtype and device.

``torch.empty(n)`` takes both from the process (``torch.set_default_dtype`` and ``_device``). Where
a caller has changed these defaults, a kernel that writes float32 through the tensor's pointer
corrupts memory. So every such call inside the package names dtype and device::

    python tools/check_allocations.py            # kernels/ and kgfast/
    python tools/check_allocations.py FILE ...

Functions that take after a tensor (``new_empty``, ``zeros_like``) have nothing to name.
"""

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("kernels", "kgfast")

_BOTH = frozenset({"dtype", "device"})
_DEVICE = frozenset({"device"})
# Arguments that a call must name. Some calls need no dtype, since the data that they are given have
# one.
REQUIRED = {
    **dict.fromkeys(
        (
            *("arange", "empty", "empty_permuted", "empty_strided", "eye", "full", "linspace"),
            *("logspace", "normal", "ones", "rand", "randint", "randn", "randperm", "range"),
            *("scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros"),
        ),
        _BOTH,
    ),
    **dict.fromkeys(("as_tensor", "asarray", "frombuffer", "sparse_coo_tensor"), _DEVICE),
}
_LEGACY = ("Tensor", "FloatTensor", "DoubleTensor", "HalfTensor", "LongTensor", "IntTensor")


class Finding(NamedTuple):
    """Offence: a place, and the way to mend it."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def findings(source: str, path: str) -> list[Finding]:
    """Return the offences of a module, by line.

    Parameters
    ----------
    source : str
        Python code.
    path : str
        The name of the module, for messages.

    Raises
    ------
    SyntaxError
        If the code is not Python.
    """
    tree = ast.parse(source, path)
    modules, functions = _imported(tree)
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = []
    for node in ast.walk(tree):
        name = _torch_name(node, modules, functions)
        if name is None or not isinstance(node, ast.expr):
            continue
        message = _offence(name, called.get(id(node)))
        if message:
            found.append(Finding(path, node.lineno, message))
    return sorted(found, key=lambda it: it.line)


def _imported(tree: ast.AST) -> tuple[set[str], dict[str, str]]:
    """Return the names of torch in a module, and of its functions that are imported by name."""
    modules: set[str] = set()
    functions: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {it.asname or it.name for it in node.names if it.name == "torch"}
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            functions |= {it.asname or it.name: it.name for it in node.names}
    return modules, functions


def _torch_name(node: ast.AST, modules: set[str], functions: dict[str, str]) -> str | None:
    """Return the name that an expression reads from torch; None if it reads none."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id in modules else None
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return functions.get(node.id)
    return None


def _offence(name: str, call: ast.Call | None) -> str | None:
    """Say what is wrong with a use of a function of torch; None if nothing is."""
    if name in _LEGACY:
        return f"torch.{name}(...) has no dtype to name: use torch.tensor" if call else None
    if name not in REQUIRED:
        return None
    if call is None:
        return f"torch.{name} must be called where it is named, so that its dtype can be seen"
    given = {keyword.arg for keyword in call.keywords}
    missing = [it for it in ("dtype", "device") if it in REQUIRED[name] - given]
    if not missing:
        return None
    return f"torch.{name} must name {' and '.join(missing)}: the default is the process's"


def sources(
    paths: Sequence[str], folders: Sequence[str] = FOLDERS, suffixes: Sequence[str] = (".py",)
) -> Iterator[Path]:
    """Return the given files, or all files of some folders with these suffixes."""
    if paths:
        yield from map(Path, paths)
        return
    for folder in folders:
        files = (ROOT / folder).rglob("*")
        yield from sorted(it for it in files if it.suffix in suffixes)


def report(paths: Iterable[Path], check: Callable[[str, str], list[Finding]]) -> int:
    """Print every finding of some files and return how many there are."""
    count = 0
    for path in paths:
        name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        for finding in check(path.read_text(), str(name)):
            print(finding)
            count += 1
    return count


def main(paths: Sequence[str]) -> int:
    """Print every offence; return 1 if there is one."""
    count = report(sources(paths), findings)
    if count:
        print(f"{count} allocations take their dtype or device from the process")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
