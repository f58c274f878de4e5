"""The block of docs/explanation/scale.md: measurements of scale.py, and simulated machines.

The simulation is ``kgfast plan`` with the rates that scale.py wrote down, or those predicted for a
GPU; nothing of it was run.
"""

from collections.abc import Iterator
from pathlib import Path

from kgfast.extras.planning import Work, planned
from kgfast.extras.planning.devices import rates_of
from kgfast.extras.planning.plan import MEETING_SECONDS, NETWORK
from kgfast.extras.planning.rates import Rates
from lib.columns import PLANS, SAMPLED, STREAMED
from lib.pages import goals_of, sources
from lib.results import Row, Rows, of_section, read_rows
from lib.tables import Columns, cell_of, human_bytes, markdown

RESULT = "cpu-scale.json"
WORKERS = (1, 10, 100, 1000)
MOST, DIM, QUERIES = 10**9, 128, 10_000
DISK = 2e9  # bytes a second of a worker that is simulated
SIMULATED: Columns = (
    ("scaling", "{scaling}"),
    ("workers:", "{workers:,}"),
    ("entities:", "{entities:,}"),
    ("machines:", "{here.total_seconds:time}"),
    ("binds", "{here.binding}"),
    ("H200:", "{gpu.total_seconds:time}"),
    ("binds", "{gpu.binding}"),
    ("sent by each:", "{here.sent_bytes:bytes}"),
)
KILLED = (
    "Killed with SIGKILL {kills} times at random moments and resumed, {entities:,} entities and "
    "{queries} queries: {end}; {again}.\n"
)
AGAIN = "at most {lost_ranges} ranges of {range_rows:,} rows were counted again after each"
ONE_AGAIN = "at most one range of {range_rows:,} rows was counted again after each"
NONE_AGAIN = "no range was counted twice"
TOGETHER = (
    "Two processes of one thread against one of two threads, {entities:,} entities: {ratio:.2f} "
    "times its speed by the clock, {ratio_by_cores:.2f} by the time of the cores (goal: {goal})."
)
MEMORY = (
    "\nMemory of {entities:,} entities in a file: {predicted_bytes:bytes} predicted, "
    "{measured_bytes:bytes} measured ({bytes_error:+.0%})."
)


def block(folder: Path) -> str:
    """Write what was measured, predicted beside measured, and simulated."""
    return "\n".join(_lines(read_rows(folder / RESULT), goals_of(folder / RESULT)))


def _lines(rows: Rows, goals: dict[str, float]) -> Iterator[str]:
    yield "**A table in a file, 256 queries.**\n"
    yield from [*markdown(STREAMED, of_section(rows, "stream")), ""]
    for row in of_section(rows, "killed"):
        ends = {"end": "bit-equal" if row["equal"] else "NOT EQUAL", "again": _again(row)}
        yield cell_of({**row, **ends}, KILLED)
    for row in of_section(rows, "processes"):
        yield cell_of({**row, "goal": goals["processes"]}, TOGETHER)
    sent = of_section(rows, "sent")
    sizes = ", ".join(f"{row['entities']:,}" for row in sent)
    each = sorted({f"{row['bytes_per_query']:.0f}" for row in sent})
    yield (
        f"\nBytes that a query costs between four shards of {sizes} entities: "
        f"{' and '.join(each)}, of {sent[0]['dim']} complex numbers.\n"
    )
    yield (
        "**As large as ogbl-wikikg2**, its entities read from a file: 500 random candidates a "
        "query, or all. Ranks are planted: 1 to 32, of which filtering takes half.\n"
    )
    yield from [*markdown(SAMPLED, of_section(rows, "sampled")), ""]
    plans = of_section(rows, "plan")
    is_wall = {row["clock"] for row in plans} == {"wall"}
    clock = "by the clock" if is_wall else "of the cores, shared by the threads"
    yield (
        "**What `kgfast plan` predicted**, calibrated before and after each run, in seconds "
        f"{clock}; the goal is {goals['plan_error']:.0%}.\n"
    )
    yield from markdown(PLANS, plans)
    yield from (cell_of(row, MEMORY) for row in plans if "bytes_error" in row)
    yield from ["", *sources([rows]), ""]
    yield from _simulated(plans)


def _again(row: Row) -> str:
    """Say how many ranges a run that was killed counted again."""
    return cell_of(row, {0: NONE_AGAIN, 1: ONE_AGAIN}.get(row["lost_ranges"], AGAIN))


def _simulated(rows: Rows) -> Iterator[str]:
    """Yield weak and strong scaling, of this machine and of a GPU."""
    here = Rates.from_dict(
        next(row["rates"] for row in rows if row["work"].startswith("ranks, rotate, float16"))
    )
    yield (
        f"**Simulated, not run**: {QUERIES:,} queries of one side, {DIM} complex float16; each "
        f"worker reads its own disk at {human_bytes(DISK)}/s, sends at {NETWORK * 8 / 1e9:.0f} "
        f"Gb/s, and is {MEETING_SECONDS * 1e6:.0f} µs late at each meeting of the processes "
        "(assumed). A machine is the one of the table above, with its measured rates; an H200 is "
        "predicted from compiled kernels. Weak scaling: a million entities a worker. Strong: 10^9 "
        "entities, however many workers there are.\n"
    )
    lines = []
    for scaling in ("weak", "strong"):
        for workers in WORKERS:
            entities = MOST // WORKERS[-1] * workers if scaling == "weak" else MOST
            work = Work(entities, DIM, QUERIES, "float16", sides=1, workers=workers)
            plans = [planned(work, it, disk=DISK) for it in (here, rates_of("h200"))]
            line = {"scaling": scaling, "workers": workers, "entities": entities}
            lines.append(line | dict(zip(("here", "gpu"), plans, strict=True)))
    yield from markdown(SIMULATED, lines)
