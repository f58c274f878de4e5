"""One walk: what pages say to type is typed, in a folder of its own, and timed."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.paths import ROOT
from support.snippets import Snippet, steps

_SERVING = re.compile(r"^kgfast serve\b")
_PLACEHOLDER = re.compile(r"\b(?:DIR|RUN|FOLDER|PROJECT)\b")
_FILE = re.compile(r"# (\w+\.(?:py|yaml))\n")  # the first line of a block that is a file
_SERVER_STARTS = 120.0  # seconds
Row = dict[str, Any]


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


@dataclass
class Walker:
    """Someone who follows pages in the current folder."""

    walk: Walk
    places: Mapping[str, str]
    servers: list[subprocess.Popen[str]] = field(default_factory=list)

    def follow(self) -> Iterator[Row]:
        """Type all steps; yield what each took. A step that fails raises, and names its line."""
        try:
            for page in self.walk.pages:
                names: dict[str, Any] = {"__name__": "__page__"}
                found = page.steps()
                assert found, f"{page.name} has nothing to type"
                for step in found:
                    began = time.perf_counter()
                    self._type(page, step, names)
                    seconds = round(time.perf_counter() - began, 3)
                    first = step.code.strip().splitlines()[0]
                    yield {"walk": self.walk.name, "page": page.name, "line": step.line} | {
                        "step": first,
                        "seconds": seconds,
                    }
        finally:
            for server in self.servers:
                server.terminate()
                server.communicate()

    def _type(self, page: Page, step: Snippet, names: dict[str, Any]) -> None:
        where = f"{page.name}:{step.line}"
        code = _PLACEHOLDER.sub(lambda it: self.places.get(it[0], it[0]), step.code)
        if file := _FILE.match(code):
            Path(file[1]).write_text(code)
        try:
            if step.language == "yaml":
                return
            if step.language in ("python", "py"):
                exec(compile("\n" * (step.line - 1) + code, str(ROOT / page.name), "exec"), names)
            elif _SERVING.match(code):
                self._serve(code)
            else:
                _call(code, self.walk.limit)
        except Exception as error:
            raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error

    def _serve(self, command: str) -> None:
        server = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=_environment(),
        )
        self.servers.append(server)
        assert server.stdout is not None
        end = time.monotonic() + _SERVER_STARTS
        for line in server.stdout:
            if line.startswith("serving "):
                return
            assert time.monotonic() < end, "the server does not start"
        raise AssertionError(f"{command} ended with {server.wait()}")


def follow(walk: Walk, folder: Path) -> list[Row]:
    """Follow the pages of a walk in an empty folder; return a row for each step."""
    with chdir(folder):
        return list(Walker(walk, {"PROJECT": str(ROOT)} | dict(walk.prepare())).follow())


def _call(command: str, limit: float) -> None:
    done = subprocess.run(
        ["bash", "-ec", command],
        capture_output=True,
        text=True,
        env=_environment(),
        timeout=limit,
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
