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

# Arguments that a call must name. Some calls need no dtype, since the data that they are given have
# one.
REQUIRED = {
    **dict.fromkeys(
        (
            *("arange", "empty", "empty_permuted", "empty_strided", "eye", "full", "linspace"),
            *("logspace", "normal", "ones", "rand", "randint", "randn", "randperm", "range"),
            *("scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros"),
        ),
        ("dtype", "device"),
    ),
    **dict.fromkeys(("as_tensor", "asarray", "frombuffer", "sparse_coo_tensor"), ("device",)),
}


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
    modules: set[str] = set()  # names of torch in the module
    functions: dict[str, str] = {}  # functions of torch that are imported by name
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {it.asname or it.name for it in node.names if it.name == "torch"}
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            functions |= {it.asname or it.name: it.name for it in node.names}
    for node in ast.walk(tree):
        name = None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = node.attr if node.value.id in modules else None
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            name = functions.get(node.id)
        if name not in REQUIRED or not isinstance(node, ast.expr):
            continue
        call = called.get(id(node))
        given = {keyword.arg for keyword in call.keywords} if call else set()
        missing = [it for it in REQUIRED[name] if it not in given]
        if missing:
            said = f"torch.{name} must name {' and '.join(missing)}: the default is the process's"
            found.append(Finding(path, node.lineno, said))
    return sorted(found, key=lambda finding: finding.line)


def sources(
    paths: Sequence[str], folders: Sequence[str] = FOLDERS, suffixes: Sequence[str] = (".py",)
) -> Iterator[Path]:
    """Yield the given files, or all files of some folders with these suffixes."""
    yield from map(Path, paths)
    for folder in folders if not paths else ():
        files = (ROOT / folder).rglob("*")
        yield from sorted(path for path in files if path.suffix in suffixes)


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
    return int(report(sources(paths), findings) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
