"""Rows of results: the files that they stand in, and the pictures that are drawn of them."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

RESULTS = Path(__file__).resolve().parents[1] / "results"

Rows = Sequence[Mapping[str, Any]]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a results file."""
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


def find(rows: Rows, section: str, contender: str, **work: Any) -> Mapping[str, Any] | None:
    """The row of a contender that was timed, or None."""
    for row in rows:
        named = row["section"] == section and row["contender"] == contender
        if named and row["seconds"] and all(row[key] == value for key, value in work.items()):
            return row
    return None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a results file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


def finite(value: float) -> float | None:
    """None for NaN, which JSON does not have."""
    return value if math.isfinite(value) else None


def draw(name: str, rows: Rows, path: Path | None, out: Console) -> None:
    """Draw a picture of `lib.pictures`; without a path none, without matplotlib a word."""
    if path is None:
        return
    try:
        from lib import pictures
    except ImportError:
        out.print('no picture: matplotlib is not installed (pip install "kgfast[bench]")')
        return
    getattr(pictures, name)(rows, path)
