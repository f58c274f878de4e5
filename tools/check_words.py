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
from collections.abc import Iterator, Sequence
from pathlib import Path

from check_allocations import ROOT, Finding, report, sources

CPP = (".h", ".cpp")
FILES = ("setup.py", "Makefile", "Dockerfile")
FOLDERS = ("kgfast", "kernels", "benchmarks", "tests", "tools", "examples")

_SENTENCE = "That|Those|What|Whether|Which|Who|Whom|Whose|Of"
_FIRST = re.compile(rf"(?i:{_SENTENCE}|As|How|It|Its|The same|Their|Them|They|Where)\b")
_LATER = re.compile(rf"(?:^|[.!?]\s)\s*((?:{_SENTENCE})\b.*)")
_CPP_COMMENT = re.compile(r"(?:^|[\s;{(,])//\s?(.*)")
_HASH_COMMENT = re.compile(r"^\s*#\s?(.*)")  # alone on a line
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

Comment = tuple[int, str, bool]  # line, text, and whether the comment stands alone on its line


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
    if path.endswith(CPP):
        texts = list(_blocks(_comments_of_lines(source, _CPP_COMMENT)))
    elif Path(path).name in FILES[1:]:
        texts = list(_blocks(_comments_of_lines(source, _HASH_COMMENT)))
    else:
        texts = [*_docstrings(source, path), *_blocks(_comments(source))]
    found = []
    for line, text in texts:
        sentences = [it[1] for part in _paragraphs(text) for it in _LATER.finditer(part)]
        if _FIRST.match(text):
            sentences.insert(0, text.splitlines()[0])
        if sentences:
            found.append(Finding(path, line, f"begins without its noun: {sentences[0][:60]}"))
    return sorted(found, key=lambda finding: finding.line)


def _docstrings(source: str, path: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source, path)):
        text = ast.get_docstring(node) if isinstance(node, _DOCUMENTED) else None
        if text is not None and isinstance(node, _DOCUMENTED):
            yield node.body[0].lineno, text


def _comments(source: str) -> Iterator[Comment]:
    if "#" not in source:
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            yield row, token.string.lstrip("#").strip(), not token.line[:column].strip()


def _comments_of_lines(source: str, pattern: re.Pattern[str]) -> Iterator[Comment]:
    for row, line in enumerate(source.splitlines(), 1):
        if found := pattern.search(line):
            yield row, found[1].strip(), not line[: found.start()].strip()


def _blocks(comments: Iterator[Comment]) -> Iterator[tuple[int, str]]:
    """Yield first line and text of comments; comments alone on lines in a row are one."""
    block: list[str] = []
    first = last = 0
    for row, text, is_alone in comments:
        if block and (not is_alone or last != row - 1):
            yield first, "\n".join(block)
            block = []
        first = first if block else row
        block.append(text)
        last = row if is_alone else 0
    if block:
        yield first, "\n".join(block)


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the lines that are indented alike and follow each other, as one line each."""
    lines: list[str] = []
    indent = 0
    for line in [*text.splitlines(), ""]:
        own = len(line) - len(line.lstrip())
        if lines and (not line.strip() or own != indent):
            yield " ".join(lines)
            lines = []
        if line.strip():
            lines.append(line.strip())
            indent = own


def main(paths: Sequence[str]) -> int:
    """Print every finding; return 1 if there is one."""
    found = report(sources(paths or [str(ROOT / name) for name in FILES]), findings)
    if not paths:
        found += report(sources([], FOLDERS, (".py", *CPP)), findings)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
