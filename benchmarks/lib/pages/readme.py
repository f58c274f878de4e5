"""The block of README.md: one table of at most twelve rows, of one machine.

The machine is the one of the picture. A row has kgfast's measure, the best peer's as a multiple of
kgfast's, and the bare loop's (`lib/bare_loop.cpp`). Extrapolated numbers have a ``~``.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.naive import formula_bytes
from lib.pages import packages
from lib.results import Row, Rows, engine_of, find, of_section, read_rows, synthetic_graphs
from lib.tables import LABELS, Columns, cell_of, human_bytes, human_seconds, markdown, median

MOST_ROWS = 12
FILES = ("eval-speed", "peers-speed", "train-speed")
COUNTERS = LABELS | {"matmul + compare": "matmul + compare"}  # peers that count ranks
EVALUATIONS = ("kgfast, planted", "matmul + compare", "PyKEEN's evaluator")
PER_ROW = (  # negatives of each triple's own
    "kgfast, negatives per row",
    "plain torch, negatives per row, tuned",
    "plain torch, negatives per row, tuned, compiled",
    "pykeen",
)
STEPS = {"plain torch, tuned": "torch, tuned", "plain torch, tuned, compiled": "torch.compile"}
COLUMNS: Columns = (
    (" ", "{what}"),
    ("kgfast:", "**{ours}**"),
    ("peer", "{peer}"),
    ("times kgfast:", "{times}"),
    ("bare loop:", "{loop}"),
)
LEGEND = (
    "*Times kgfast* says how many times as long (or as much memory) a peer takes on the same CPU: "
    "below 1 the peer wins, and ~ is extrapolated from a part or by formula. The peer of a time is "
    "the fastest of those tried that approximate nothing, in float32. The "
    "[bare loop](benchmarks/lib/bare_loop.cpp) in C++ computes all scores and counts them.",
    "Lines that name no data use a synthetic graph of WN18RR's size: 40,943 entities and 6,268 "
    "filtered queries. Its tables of RotatE are planted: they fit the graph; normal tables hold "
    "random numbers. Both cores work where a line does not say one thread. A single query gains "
    "only with an [index](docs/how-to/prepared.md). That page, "
    "[losses](docs/reference/losses.md#measured) and [speed](docs/reference/speed.md) have more, "
    "with the rows that peers win; also [trained models](docs/reference/results.md) and "
    "[the state of the GPU kernels](docs/reference/gpu.md).",
)
NEAREST = (
    "the best {k} by `{score}` with an index, {entities:,} x {dim}, {table}, {queries}, one thread"
)


def block(folder: Path) -> str:
    """Write the table, and where its numbers come from."""
    pictured = read_rows(folder / "cpu-eval-mem.json")
    others = [folder / f"cpu-{name}.json" for name in FILES]
    rows = [row for path in others if path.exists() for row in read_rows(path)]
    rows = [*pictured, *(row for row in rows if engine_of(row) == engine_of(pictured[0]))]
    lines = list(_lines(rows))
    assert len(lines) <= MOST_ROWS
    legend = [f"- {line}" for line in (*LEGEND, " ".join(_conditions(rows))) if line]
    return "\n".join([*markdown(COLUMNS, lines), "", *legend, "", _source(rows)])


def _conditions(rows: Rows) -> Iterator[str]:
    """Yield PyKEEN's fastest evaluation, and times of random tables."""
    if whole := _whole_rows(rows):
        ours, _, theirs = whole.values()
        times = f"~{_median(theirs) / _median(ours):,.0f}x"
        batch, entities, dim = theirs["batch_size"], theirs["entities"], theirs["dim"]
        size = theirs["slice_size"] or entities
        graph = next(row["graph"] for row in rows if row["benchmark"] == "eval_mem")
        held = human_bytes(formula_bytes("pykeen", batch, size, dim, graph["known_triples"]))
        yield (
            "PyKEEN's memory is for 128 queries at once, the batch of users who ran out of memory. "
            f"Its fastest options of those tried, {batch} queries and slices of {size:,} rows, "
            f"need {held} by the same formula. PyKEEN's RotatE has the L2 norm: its evaluator "
            f"takes {times} for the second row's task, {theirs['note']}."
        )
    counts = [row for row in rows if row.get("section") == "rotate"]
    times = [
        [row["times_kgfast"] for row in counts if (row["contender"], row["table"]) == key]
        for key in (("compile", "random"), ("bare", "random"))
    ]
    if all(times):
        first, second = (_spread(it) for it in times)
        yield (
            "In random tables of RotatE kgfast can abandon few candidates early: for 128 queries "
            f"torch.compile takes {first} as long as kgfast, and the bare loop {second}."
        )


def _spread(times: Sequence[float]) -> str:
    return f"{min(times):.1f} to {max(times):.1f} times"


def _source(rows: Rows) -> str:
    """Say where and when rows were measured."""
    about, dates = rows[0]["machine"], sorted({row["date"][:10] for row in rows})
    days = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return (
        f"`make bench DATA=DIR` on {about['name']}, {about['isa']}, {about['cores']} cores, "
        f"{days}: {packages(rows[0]['versions'])}. Each row's own command stands in its file. "
        f"{synthetic_graphs([rows])}"
    )


def _lines(rows: Rows) -> Iterator[dict[str, str]]:
    by = {
        name: [row for row in rows if row["benchmark"] == name]
        for name in ("eval_mem", "eval_speed", "peers_speed", "train_speed")
    }
    yield from _memory(max(by["eval_mem"], key=lambda row: int(row["dim"])))
    yield from _whole(by["eval_speed"])
    yield from _ranks(by["eval_speed"])
    yield from _nearest(by["peers_speed"])
    steps = "training step, RotatE, dim {dim}, {batch} triples x {negatives} shared negatives"
    pools = [row for row in by["train_speed"] if row["contender"] not in PER_ROW]
    yield from _steps(pools, steps)


def _line(what: str, ours: str, peer: str = "", times: str = "", loop: str = "") -> dict[str, str]:
    return {"what": what, "ours": ours, "peer": peer, "times": times, "loop": loop}


def _memory(row: Row) -> Iterator[dict[str, str]]:
    what = cell_of(row, "filtered evaluation, RotatE, dim {dim}: memory beyond the inputs")
    ours, theirs = row["kgfast"]["bytes"], row["formula"]["pykeen"]
    peer = cell_of(row, "PyKEEN, {formula[batch]} queries at once, by formula")
    yield _line(what, human_bytes(ours), peer, f"~{theirs / ours:,.0f}x")


def _whole_rows(rows: Rows) -> dict[str, Row]:
    """Return the widest evaluations by the L2 norm; nothing unless all were timed."""
    rows = [row for row in rows if row.get("section") == "whole"]
    dim = max((row["dim"] for row in rows), default=0)
    found = {name: find(rows, "whole", f"{name}, L2", dim=dim) for name in EVALUATIONS}
    timed = {name: row for name, row in found.items() if row}
    return timed if len(timed) == len(EVALUATIONS) else {}


def _whole(rows: Rows) -> Iterator[dict[str, str]]:
    if whole := _whole_rows(rows):
        ours, theirs, _ = whole.values()
        what = f"filtered evaluation, RotatE with the L2 norm, dim {ours['dim']}: time"
        times = f"{_median(theirs) / _median(ours):.1f}x"
        yield _line(what, median(ours), "matmul + compare", times)


def _ranks(rows: Rows) -> Iterator[dict[str, str]]:
    """Yield counts at the largest width: of planted tables, of one query, and of dot."""
    for section, table in (("rotate", "planted"), ("single", "planted"), ("dot", "normal")):
        own = [row for row in of_section(rows, section) if row["contender"] == "kgfast"]
        own = [row for row in own if row["table"] == table]
        for row in own[-1:]:
            work = {name: row[name] for name in ("table", "dim", "batch")}
            found = {name: find(rows, section, name, **work) for name in (*COUNTERS, "bare")}
            timed = {name: it["times_kgfast"] for name, it in found.items() if it}
            loop = f"{timed.pop('bare'):.2f}x" if "bare" in timed else ""
            peer = min(timed, key=timed.__getitem__)
            score = "dot" if section == "dot" else "RotatE"
            what = f"ranks, {score}, dim {row['dim']}, {_queries(row['batch'])}"
            yield _line(what, median(row), COUNTERS[peer], f"{timed[peer]:.1f}x", loop)


def _nearest(rows: Rows) -> Iterator[dict[str, str]]:
    """Yield the best k by one thread: dot of a random table, and a trained table of each score."""
    alone = [row for row in rows if row["threads"] == 1]
    random = [row for row in alone if row["score"] == "dot" and "run" not in row]
    chosen = [row for row in random if row["batch"] in (1, 64)]
    single = [row for row in alone if row["table"].startswith("trained") and row["batch"] == 1]
    single.sort(key=lambda row: row["times_index"][row["best_peer"]], reverse=True)
    chosen += {row["score"]: row for row in single}.values()  # the closest race of each score
    for row in sorted(chosen, key=lambda row: ("run" in row, row["score"], row["batch"])):
        times: Mapping[str, Any] = row["times_index"]
        what = cell_of({**row, "queries": _queries(row["batch"])}, NEAREST)
        ours, peer = human_seconds(row["seconds"]["index"]["median"]), row["best_peer"]
        loop = f"{times['bare loop']:.2f}x" if "bare loop" in times else ""
        yield _line(what, ours, peer, f"{times[peer]:.2f}x", loop)


def _steps(rows: Rows, what: str) -> Iterator[dict[str, str]]:
    """Yield the fastest step of kgfast and the fastest of a peer."""
    timed = [row for row in rows if row["seconds"]]
    own = [row for row in timed if row["contender"].startswith("kgfast")]
    others = [row for row in timed if row not in own]
    if own and others:
        fastest, best = (min(them, key=_median) for them in (own, others))
        peer = STEPS.get(best["contender"], best["contender"])
        times = f"{_median(best) / _median(fastest):.1f}x"
        yield _line(cell_of(fastest, what), median(fastest), peer, times)


def _median(row: Row) -> float:
    return float(row["seconds"]["median"])


def _queries(batch: int) -> str:
    return "1 query" if batch == 1 else f"{batch} queries"
