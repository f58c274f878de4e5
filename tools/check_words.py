"""Find docstrings and comments that begin with a word that leaves the noun out.

"Of one batch", "What is left" and "Those of now" point at a noun that the reader must guess.
A docstring begins with a verb or a noun instead, and so does a comment, of Python, of C++, of the
Makefile or of the Dockerfile::

    python tools/check_words.py            # all folders, and FILES
    python tools/check_words.py FILE ...

Sentences within a docstring or a comment may begin with "As", "How", "Where", "It" or "They".
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from check_allocations import ROOT, Finding, report, sources

CPP = (".h", ".cpp")
HASHES = ("Makefile", "Dockerfile")
FILES = ("setup.py", *HASHES)
FOLDERS = ("kgfast", "kernels", "benchmarks", "tests", "tools", "examples")

_SENTENCE = ("That", "Those", "What", "Whether", "Which", "Who", "Whom", "Whose", "Of")
OPENINGS = (*_SENTENCE, "As", "How", "It", "Its", "The same", "Their", "Them", "They", "Where")

_FIRST = re.compile(rf"(?i:{'|'.join(OPENINGS)})\b")
_LATER = re.compile(rf"(?:^|[.!?]\s)\s*((?:{'|'.join(_SENTENCE)})\b)")
# Comments with none of this need no closer look, which takes milliseconds a file.
_CPP_COMMENT = re.compile(r"(?:^|[\s;{(,])//\s?(.*)")
_HASH_COMMENT = re.compile(r"\s*#\s?(.*)")  # alone on a line
_IN_COMMENT = re.compile(rf"#\W*(?i:{'|'.join(OPENINGS)})\b|#.*\b(?:{'|'.join(_SENTENCE)})\b")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def findings(source: str, path: str) -> list[Finding]:
    """Return the texts of a file that begin wrongly, by line.

    Parameters
    ----------
    source : str
        Code: C++ where the path ends in ``.h`` or ``.cpp``, of a Makefile or Dockerfile by its
        name, or else Python.
    path : str
        The name of the file.

    Raises
    ------
    SyntaxError
        If code that should be Python is not.
    """
    found = []
    for line, text in _texts(source, path):
        opening = _FIRST.match(text)
        later = [it for part in _paragraphs(text) for it in _LATER.finditer(part)]
        if opening:
            found.append(_finding(path, line, text.splitlines()[0]))
        elif later:
            sentence = later[0].string[later[0].start(1) :]
            found.append(_finding(path, line, sentence[:60]))
    return sorted(found, key=lambda it: it.line)


def _finding(path: str, line: int, text: str) -> Finding:
    return Finding(path, line, f"begins without its noun: {text}")


def _texts(source: str, path: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring and each comment that needs a look."""
    if path.endswith(CPP):
        yield from _blocks(_cpp_comments(source))
        return
    if Path(path).name in HASHES:
        yield from _blocks(_hash_comments(source))
        return
    yield from _docstrings(source, path)
    if _IN_COMMENT.search(source):
        yield from _blocks(_comments(source))


def _docstrings(source: str, path: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring."""
    for node in ast.walk(ast.parse(source, path)):
        text = ast.get_docstring(node) if isinstance(node, _DOCUMENTED) else None
        if text is not None and isinstance(node, _DOCUMENTED):
            yield node.body[0].lineno, text


def _comments(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield line and text of each comment of Python, and whether it stands alone."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            yield row, token.string.lstrip("#").strip(), not token.line[:column].strip()


def _cpp_comments(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield line, text and whether it stands alone of each comment of C++."""
    for row, line in enumerate(source.splitlines(), 1):
        if found := _CPP_COMMENT.search(line):
            yield row, found[1].strip(), not line[: found.start()].strip()


def _hash_comments(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield line and text of each comment of a Makefile or Dockerfile, alone on its line."""
    for row, line in enumerate(source.splitlines(), 1):
        if found := _HASH_COMMENT.match(line):
            yield row, found[1].strip(), True


def _blocks(comments: Iterable[tuple[int, str, bool]]) -> Iterator[tuple[int, str]]:
    """Yield first line and text of comments; comments alone on lines in a row are one."""
    block: list[str] = []
    first = last = 0
    for row, text, is_alone in comments:
        if block and (not is_alone or last != row - 1):
            yield first, "\n".join(block)
            block = []
        if not block:
            first = row
        block.append(text)
        last = row if is_alone else 0
    if block:
        yield first, "\n".join(block)


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the lines that are indented alike and follow each other, as one line each."""
    lines: list[str] = []
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if lines and (not line.strip() or indent != len(lines[0]) - len(lines[0].lstrip())):
            yield " ".join(it.strip() for it in lines)
            lines = []
        if line.strip():
            lines.append(line)
    yield " ".join(it.strip() for it in lines)


def main(paths: Sequence[str]) -> int:
    """Print every finding; return 1 if there is one."""
    named = paths or [str(ROOT / name) for name in FILES]
    found = report(sources(named), findings)
    if not paths:
        found += report(sources(paths, FOLDERS, (".py", *CPP)), findings)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
