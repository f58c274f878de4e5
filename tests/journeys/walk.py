"""One walk: what pages say to type is typed, in a folder of its own."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import chdir
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from support.paths import ROOT
from support.snippets import Snippet, steps

_SERVING = re.compile(r"^kgfast serve\b")
_PLACEHOLDER = re.compile(r"\b(?:DIR|RUN|FOLDER|PROJECT)\b")
_FILE = re.compile(r"# (\w+\.(?:py|yaml))\n")  # the first line of a block that is a file


@dataclass(frozen=True)
class Page:
    """A page that is followed, or the sections of it that are."""

    name: str  # a path below the root
    sections: tuple[str, ...] | None = None  # headings; "" is what stands above the first

    def steps(self) -> list[Snippet]:
        """List what its reader types."""
        text = (ROOT / self.name).read_text(encoding="utf-8")
        found = [it for it in steps(text) if it.reason is None]
        if self.sections is not None:
            found = [it for it in found if _heading(text, it.line) in self.sections]
            empty = set(self.sections) - {_heading(text, it.line) for it in found}
            assert not empty, f"{self.name} has nothing to type in {empty}"
        assert found, f"{self.name} has nothing to type"
        return found


@dataclass(frozen=True)
class Walk:
    """Pages in the order in which a user follows them."""

    name: str
    pages: tuple[Page, ...]
    prepare: Callable[[], Mapping[str, str]] = dict  # makes the user's files; says what DIR is
    needs: tuple[str, ...] = ()  # packages that the pages tell the reader to have
    data: Path | None = None  # a graph that is no part of the project
    limit: float = 3600.0  # seconds for one command


def follow(walk: Walk, folder: Path) -> list[str]:
    """Type all steps of a walk in an empty folder, and list them; an error names the line."""
    servers: list[subprocess.Popen[str]] = []
    typed = []
    with chdir(folder):
        places = {"PROJECT": str(ROOT)} | dict(walk.prepare())
        try:
            for page in walk.pages:
                names: dict[str, Any] = {"__name__": "__page__"}
                for step in page.steps():
                    code = _PLACEHOLDER.sub(lambda match: places.get(match[0], match[0]), step.code)
                    where = f"{page.name}:{step.line}"
                    try:
                        servers += _type(replace(step, code=code), where, names, walk.limit)
                    except Exception as error:
                        raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
                    typed.append(where)
        finally:
            for server in servers:
                server.terminate()
                server.communicate()
    return typed


def _type(
    step: Snippet, where: str, names: dict[str, Any], limit: float
) -> list[subprocess.Popen[str]]:
    """Do a step; return the server that it starts, if any."""
    if file := _FILE.match(step.code):
        Path(file[1]).write_text(step.code)
    if step.language in ("python", "py"):
        code = "\n" * (step.line - 1) + step.code
        exec(compile(code, str(ROOT / where.partition(":")[0]), "exec"), names)
    elif _SERVING.match(step.code):
        return [_serving(step.code)]
    elif step.language != "yaml":
        _call(step.code, limit)
    return []


def _serving(command: str) -> subprocess.Popen[str]:
    server = subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=_environment(),
    )
    assert server.stdout is not None
    for line in server.stdout:
        if line.startswith("serving "):
            return server
    raise AssertionError(f"{command} ended with {server.wait()}")


def _call(command: str, limit: float) -> None:
    done = subprocess.run(
        ["bash", "-ec", command], capture_output=True, text=True, env=_environment(), timeout=limit
    )
    assert done.returncode == 0, (
        f"`{command.strip()}` ended with {done.returncode}: {done.stderr[-800:]}"
    )


def _environment() -> dict[str, str]:
    scripts = str(Path(sys.executable).parent)
    return os.environ | {
        "PATH": os.pathsep.join([scripts, os.environ["PATH"]]),
        "PYTHONUNBUFFERED": "1",
    }


def _heading(text: str, line: int) -> str:
    above = re.findall(r"^## (.+)$", "\n".join(text.splitlines()[:line]), re.MULTILINE)
    return above[-1] if above else ""
