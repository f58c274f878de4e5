"""Rows of results, and the files that they stand in."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"

Row = Mapping[str, Any]
Rows = Sequence[Row]

ON_SYNTHETIC = (  # benchmarks whose rows, or some of them, are of graphs of `synthetic`
    "epoch_speed",
    "eval_mem",
    "eval_mem_crops",
    "eval_speed",
    "loop_speed",
    "med_speed",
    "train_speed",
)
# Rows without a fingerprint are of this generator: its graphs were those of AVX-512 alone.
_FIRST_GRAPH = "8c79b65c"


def synthetic_graphs(tables: Sequence[Rows]) -> str:
    """Say which synthetic graph rows are of; return nothing for rows of other graphs."""
    rows = [row for rows in tables for row in rows if row.get("benchmark") in ON_SYNTHETIC]
    found = sorted({row.get("synthetic_graph", _FIRST_GRAPH) for row in rows})
    names = " and ".join(f"`{it}`" for it in found)
    return f"Fingerprint of the synthetic graph: {names}." if found else ""


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a results file."""
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


def of_section(rows: Rows, section: str) -> list[Row]:
    """Choose the rows of a section."""
    return [row for row in rows if row["section"] == section]


def find(rows: Rows, section: str, contender: str, **work: Any) -> Row | None:
    """Return the row of a contender that was timed, or None."""
    for row in of_section(rows, section):
        named = row["contender"] == contender and row["seconds"]
        if named and all(row[key] == value for key, value in work.items()):
            return row
    return None


def with_winners(rows: Rows, work: Sequence[str]) -> list[Row]:
    """Add ``wins`` to each row: whether a peer took less time than kgfast.

    Rows with equal values of the keys ``work`` have the same work. Peers in bf16 race kgfast's bf16
    where there is one, and else float32.
    """

    def key(row: Row) -> tuple[Any, ...]:
        return (*map(row.get, work), "bf16" in row["contender"])

    def best(row: Row) -> float:
        *same, _ = key(row)
        return float(ours.get(key(row), ours.get((*same, False), 0.0)))

    timed = [row for row in rows if row["seconds"]]
    own = [row for row in timed if row["contender"].startswith("kgfast")]
    ours = {key(row): row["seconds"]["median"] for row in own}
    peers = [row for row in timed if row not in own and row["contender"] != "products"]
    winners = [row for row in peers if row["seconds"]["median"] < best(row)]
    return [{**row, "wins": row in winners} for row in rows]


def engine_of(row: Row) -> tuple[str, str]:
    """Return the machine and the instruction set of a row."""
    return row["machine"]["name"], row["machine"]["isa"]


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a results file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


def finite(value: float) -> float | None:
    """Replace NaN, which JSON does not have, by None."""
    return value if math.isfinite(value) else None
