"""Copies of the tree, in which steps of CONTRIBUTING.md are followed."""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from support.paths import ROOT


def steps(title: str) -> list[str]:
    """Return the files that the steps below a heading of CONTRIBUTING.md begin with."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.split(f"## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"^\d\. `([\w/.<>]+)`", section, re.MULTILINE)


def write(path: Path, edits: Mapping[str, str]) -> None:
    """Insert additions after their places in a file."""
    text = path.read_text()
    for place, addition in edits.items():
        assert text.count(place) == 1, f"{path.name}: {place}"
        text = text.replace(place, place + addition)
    path.write_text(text)


def python(folder: Path, env: Mapping[str, str], *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
