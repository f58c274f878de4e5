"""The tables of docs/scale.md: what scale.py measured, and what is simulated for many machines.

python benchmarks/scale_page.py            put them into docs/scale.md
python benchmarks/scale_page.py --check    exit code 1 if the page says something else

The simulation is ``kgfast plan`` with the rates that scale.py wrote down, or those predicted for a
GPU; nothing of it was run.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kgfast.extras.planning import Plan, Work, planned
from kgfast.extras.planning.devices import rates_of
from kgfast.extras.planning.plan import MEETING_SECONDS, NETWORK
from kgfast.extras.planning.rates import Rates
from lib import pages
from lib.pages import ROOT
from lib.results import Rows, read_rows
from lib.tables import human_bytes, human_seconds

PAGE = ROOT / "docs" / "scale.md"
RESULT = "cpu-scale.json"
WORKERS = (1, 10, 100, 1000)
MOST, DIM, QUERIES = 10**9, 128, 10_000
DISK = 2e9  # bytes a second of a worker that is simulated


def markdown(folder: Path) -> str:
    """Measured, predicted beside measured, simulated; of the sections that were run."""
    path = folder / RESULT
    rows = read_rows(path)
    goals = json.loads(path.read_text())["goals"]
    of: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        of.setdefault(row["section"], []).append(row)
    parts = ["**A table in a file, 256 queries.**", "", *_streamed(of["stream"]), ""]
    parts += _killed(of.get("killed", []))
    if "processes" in of:
        parts += [*_together(of["processes"], of["sent"], goals), ""]
    if "sampled" in of:
        parts += [
            "**As large as ogbl-wikikg2**, its entities read from a file: 500 random candidates a "
            "query, or all. Ranks are planted: 1 to 32, of which filtering takes half.",
            "",
            *_sampled(of["sampled"]),
            "",
        ]
    parts += [
        "**What `kgfast plan` predicted**, calibrated before and after each run, in seconds "
        f"{_clock(of['plan'])}; the goal is {goals['plan_error']:.0%}.",
        "",
        *_plans(of["plan"]),
        "",
        *pages.sources([rows]),
        "",
        *_simulated(of["plan"]),
    ]
    return "\n".join(parts)


def _streamed(rows: Rows) -> Iterator[str]:
    heads = ("entities", "file", "seconds", "elements/s", "in memory", "disk", "of what binds")
    yield pages.row(*heads, "by cores", "memory held")
    yield "|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for row in rows:
        yield pages.row(
            f"{row['entities']:,} x {row['dim']}",
            human_bytes(row["file_bytes"]),
            f"{row['seconds']['median']:,.1f}",
            f"{row['elements_per_s'] / 1e9:.1f} G",
            f"{row['memory_elements_per_s'] / 1e9:.1f} G",
            f"{row['disk_elements_per_s'] / 1e9:.1f} G, {human_bytes(row['disk_bytes_per_s'])}/s",
            f"{row['of_binding']:.0%} of {row['binding']}",
            f"{row['of_memory_by_cores']:.0%}",
            human_bytes(row["anonymous_bytes"]),
        )


def _killed(rows: Rows) -> Iterator[str]:
    for row in rows:
        end = "bit-equal" if row["equal"] else "NOT EQUAL"
        yield (
            f"Killed with SIGKILL {row['kills']} times at random moments and resumed, "
            f"{row['entities']:,} entities and {row['queries']} queries: {end}; at most "
            f"{row['lost_ranges']} ranges of {row['range_rows']:,} rows were counted again after "
            f"each."
        )
        yield ""


def _together(own: Rows, sent: Rows, goals: dict[str, float]) -> Iterator[str]:
    for row in own:
        yield (
            f"Two processes of one thread against one of two threads, {row['entities']:,} "
            f"entities: {row['ratio']:.2f} times its speed by the clock, "
            f"{row['ratio_by_cores']:.2f} by the time of the cores (goal: {goals['processes']})."
        )
    yield ""
    sizes = ", ".join(f"{row['entities']:,}" for row in sent)
    each = sorted({f"{row['bytes_per_query']:.0f}" for row in sent})
    yield (
        f"Bytes that a query costs between four shards of {sizes} entities: "
        f"{' and '.join(each)}, of {sent[0]['dim']} complex numbers."
    )


def _sampled(rows: Rows) -> Iterator[str]:
    yield pages.row("", "entities", "queries", "candidates", "seconds", "MRR", "Hits@10")
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for row in rows:
        yield pages.row(
            row["contender"],
            f"{row['entities']:,} x {row['dim']}",
            f"{row['queries']:,}",
            f"{row['candidates']:,}",
            f"{row['seconds']:,.1f}",
            f"{row['mrr']:.3f}",
            f"{row['hits_10']:.3f}",
        )


def _clock(rows: Rows) -> str:
    """Whose seconds they are."""
    is_wall = {row["clock"] for row in rows} == {"wall"}
    return "by the clock" if is_wall else "of the cores, shared by the threads"


def _plans(rows: Rows) -> Iterator[str]:
    yield pages.row("work", "entities", "queries", "predicted", "measured", "difference")
    yield "|---|---:|---:|---:|---:|---:|"
    for row in rows:
        yield pages.row(
            row["work"],
            f"{row['entities']:,} x {row['dim']}",
            f"{row['queries']:,}",
            human_seconds(row["predicted_seconds"]),
            human_seconds(row["measured_seconds"]),
            f"{row['error']:+.0%}",
        )
    for row in rows:
        if "bytes_error" in row:
            yield ""
            yield (
                f"Memory of {row['entities']:,} entities in a file: "
                f"{human_bytes(row['predicted_bytes'])} predicted, "
                f"{human_bytes(row['measured_bytes'])} measured ({row['bytes_error']:+.0%})."
            )


def _simulated(rows: Rows) -> Iterator[str]:
    """Weak and strong scaling, of this machine and of a GPU."""
    here = Rates.from_dict(
        next(row["rates"] for row in rows if row["work"].startswith("ranks, rotate, float16"))
    )
    yield (
        f"**Simulated, not run**: {QUERIES:,} queries of one side, {DIM} complex float16; each "
        f"worker reads its own disk at {human_bytes(DISK)}/s, sends at {NETWORK * 8 / 1e9:.0f} "
        f"Gb/s, and is {MEETING_SECONDS * 1e6:.0f} µs late at each meeting of the processes "
        "(assumed). A machine is the one of the table above, with its measured rates; an H200 is "
        "predicted from compiled kernels. Weak scaling: a million entities a worker. Strong: 10^9 "
        "entities, however many workers there are."
    )
    yield ""
    heads = ("scaling", "workers", "entities", "machines", "binds", "H200", "binds", "sent by each")
    yield pages.row(*heads)
    yield "|---|---:|---:|---:|---|---:|---|---:|"
    for scaling in ("weak", "strong"):
        for workers in WORKERS:
            entities = MOST // WORKERS[-1] * workers if scaling == "weak" else MOST
            work = Work(entities, DIM, QUERIES, "float16", sides=1, workers=workers)
            plans = [planned(work, it, disk=DISK) for it in (here, rates_of("h200"))]
            yield pages.row(
                scaling,
                f"{workers:,}",
                f"{entities:,}",
                *(cell for plan in plans for cell in _cells(plan)),
                human_bytes(plans[0].sent_bytes),
            )


def _cells(plan: Plan) -> tuple[str, str]:
    """Time, with reading what is held, and what binds."""
    return human_seconds(plan.total_seconds), plan.binding


def main() -> int:
    """Update, print or check the page."""
    return pages.main(__file__, __doc__, PAGE, markdown)


if __name__ == "__main__":
    sys.exit(main())
