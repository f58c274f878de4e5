"""The code of pages: fenced blocks, what marks one that cannot run, and lines of commands."""

import doctest
import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- not run: (.*?) *-->\s*\Z", re.DOTALL)
_COMMAND = re.compile(r"^(?: {4,}|\$ )(kgfast [a-z].+?)(?: {2,}.*| # .*)?$", re.MULTILINE)
_SHELLS = ("", "sh", "bash", "console", "shell")


@dataclass(frozen=True)
class Snippet:
    """A fenced block; ``reason`` says why it does not run, of ``<!-- not run: REASON -->``."""

    line: int
    language: str
    code: str
    reason: str | None


def snippets(text: str) -> Iterator[Snippet]:
    """Yield all fenced blocks of a page."""
    for fence in _FENCE.finditer(text):
        mark = _MARK.search(text, 0, fence.start())
        line = text.count("\n", 0, fence.start(3)) + 1
        yield Snippet(line, fence[2], fence[3], None if mark is None else mark[1])


def run_page(path: Path, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run the Python of a page in order, in one namespace; name the line of what fails.

    Blocks of ``text`` are outputs: blocks before them must have printed these lines.
    """
    names = {"__name__": "__page__"} if names is None else names
    printed = io.StringIO()
    for snippet in snippets(path.read_text(encoding="utf-8")):
        if snippet.reason is not None:
            assert len(snippet.reason) > 10, f"{path}:{snippet.line}: a mark says why not"
        elif snippet.language in ("python", "py"):
            with redirect_stdout(printed):
                _run(path, snippet, names)
        elif snippet.language == "text":
            said = printed.getvalue()
            assert snippet.code in said, f"{path}:{snippet.line}: printed otherwise:\n{said}"
    return names


def _run(path: Path, snippet: Snippet, names: dict[str, Any]) -> None:
    if snippet.code.lstrip().startswith(">>>"):
        test = doctest.DocTestParser().get_doctest(
            snippet.code, names, path.name, str(path), snippet.line - 1
        )
        said: list[str] = []
        failed = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
        assert not failed.failed, "".join(said)
        names.update(test.globs)
        return
    # Lines are those of the page in tracebacks.
    code = compile("\n" * (snippet.line - 1) + snippet.code, str(path), "exec")
    try:
        exec(code, names)
    except Exception as error:
        raise AssertionError(f"{path}:{snippet.line}: {type(error).__name__}: {error}") from error


def steps(text: str) -> list[Snippet]:
    """List all that a reader of a page types, in order: Python, YAML, and lines of a shell."""
    fences = list(snippets(text))
    blanked = _FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)
    typed = [it for it in fences if it.language in ("python", "py", "yaml", *_SHELLS[1:])]
    for found in _COMMAND.finditer(blanked):
        line = blanked.count("\n", 0, found.start()) + 1
        typed.append(Snippet(line, "sh", found[1], None))
    return sorted(typed, key=lambda it: it.line)


def commands(text: str) -> list[str]:
    """List lines that call kgfast: of indented blocks, and of fenced ones that are a shell's."""
    fenced = [it.code for it in snippets(text) if it.language in _SHELLS]
    lines = "\n".join(f"    {line}" for code in fenced for line in code.splitlines())
    return _COMMAND.findall(f"{_FENCE.sub('', text)}\n{lines}")
