"""Find docstrings and comments that begin with a word that leaves the noun out.

"Of one batch", "What is left" and "Those of now" point at a noun that the reader must guess.
A docstring begins with a verb or a noun instead, and so does a comment::

    python tools/check_words.py            # all folders
    python tools/check_words.py FILE ...

Sentences within a docstring or a comment may begin with "As", "How", "Where", "It" or "They".
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence

from check_allocations import Finding, report, sources

FOLDERS = ("kgfast", "kernels", "benchmarks", "tests", "tools", "examples")

_SENTENCE = ("That", "Those", "What", "Whether", "Which", "Who", "Whom", "Whose", "Of")
OPENINGS = (*_SENTENCE, "As", "How", "It", "Its", "The same", "Their", "Them", "They", "Where")

_FIRST = re.compile(rf"(?i:{'|'.join(OPENINGS)})\b")
_LATER = re.compile(rf"(?:^|[.!?]\s)\s*((?:{'|'.join(_SENTENCE)})\b)")
# Comments with none of this need no closer look, which takes milliseconds a file.
_IN_COMMENT = re.compile(rf"#\W*(?i:{'|'.join(OPENINGS)})\b|#.*\b(?:{'|'.join(_SENTENCE)})\b")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def findings(source: str, path: str) -> list[Finding]:
    """Return the texts of a module that begin wrongly, by line.

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
    found = []
    comments = _comments(source) if _IN_COMMENT.search(source) else ()
    for line, text in (*_docstrings(source, path), *comments):
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


def _docstrings(source: str, path: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring."""
    for node in ast.walk(ast.parse(source, path)):
        text = ast.get_docstring(node) if isinstance(node, _DOCUMENTED) else None
        if text is not None and isinstance(node, _DOCUMENTED):
            yield node.body[0].lineno, text


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each comment; lines of comments in a row are one."""
    block: list[str] = []
    first, last = 0, (-1, -1)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        row, column = token.start
        is_alone = not token.line[:column].strip()
        if block and (not is_alone or last != (row - 1, column)):
            yield first, "\n".join(block)
            block = []
        if not block:
            first = row
        block.append(token.string.lstrip("#").strip())
        last = (row, column) if is_alone else (-1, -1)
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
    return int(report(sources(paths, FOLDERS), findings) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
