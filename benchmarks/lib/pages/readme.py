"""The block of README.md: one table of at most six rows, of one machine.

The machine is the one of the picture. A row says what was measured, kgfast's number, and the best
peer's with its options, so that it can be read alone. Extrapolated numbers have a ``~``.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from lib.naive import formula_bytes
from lib.pages import packages
from lib.peers.ranks import PYKEEN_BATCHES, PYKEEN_SLICES
from lib.results import Row, Rows, engine_of, find, of_section, read_rows, synthetic_graphs
from lib.tables import LABELS, Columns, cell_of, human_bytes, human_seconds, markdown, median

FILES = ("eval-speed", "peers-speed", "train-speed")
EVALUATIONS = ("kgfast, planted", "matmul + compare", "PyKEEN's evaluator")
STEPS = {"plain torch, tuned": "torch", "plain torch, tuned, compiled": "torch.compile"}
COLUMNS: Columns = (
    ("measured", "{what}"),
    ("kgfast:", "**{ours}**"),
    ("the best peer, at its fastest setting of those tried", "{peer}"),
    ("the peer takes:", "{times}"),
)
GRAPH = (
    "The graph is synthetic, with {graph[entities]:,} entities (WN18RR has 40,943), and RotatE's "
    "tables fit it. Both cores work where a row does not say one thread. Peers compute in float32, "
    "and approximate nothing. [Speed](docs/reference/speed.md), "
    "[losses](docs/reference/losses.md#measured) and [indexes](docs/how-to/prepared.md) have more "
    "rows, with those that peers win."
)
WHEEL = (
    " Where torch is installed, pip installs the wheel in {install_beyond_torch_s:.1f} s, by "
    "`{command}`; `pip install .` compiles it first."
)


def block(folder: Path) -> str:
    """Write the table, and where its numbers come from."""
    about = cell_of(read_rows(folder / "cpu-eval-mem.json")[0], GRAPH)
    wheel = folder / "wheel.json"
    install = cell_of(json.loads(wheel.read_text()), WHEEL) if wheel.exists() else ""
    return f"{about}\n\n{table(folder)}{install}"


def table(folder: Path) -> str:
    """Write the table of one machine."""
    pictured = read_rows(folder / "cpu-eval-mem.json")
    others = [folder / f"cpu-{name}.json" for name in FILES]
    rows = [row for path in others if path.exists() for row in read_rows(path)]
    rows = [*pictured, *(row for row in rows if _run_of(row) == _run_of(pictured[0]))]
    lines = list(_lines(rows))
    assert len(lines) <= 6
    return "\n".join([*markdown(COLUMNS, lines), "", _source(rows)])


def _run_of(row: Row) -> tuple[str, ...]:
    return *engine_of(row), row["versions"]["kgfast"]


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
    whole = _whole_rows(by["eval_speed"])
    yield _memory(max(by["eval_mem"], key=lambda row: int(row["dim"])), whole)
    yield from _whole(whole)
    yield from _ranks(by["eval_speed"])
    yield from _nearest(by["peers_speed"])
    shared = [row for row in by["train_speed"] if "per row" not in row["contender"]]
    yield from _steps([row for row in shared if row["contender"] != "pykeen"])


def _line(what: str, ours: str, peer: str, times: float) -> dict[str, str]:
    longer = f"{times:.2g}x" if times < 1 else f"{times:,.1f}x"
    lost = ": the peer wins" if times < 1 else ""
    return {"what": what, "ours": ours, "peer": peer, "times": longer + lost}


def _whole_rows(rows: Rows) -> dict[str, Row]:
    """Return the widest evaluations by the L2 norm; nothing unless all were timed."""
    rows = [row for row in rows if row.get("section") == "whole"]
    dim = max((row["dim"] for row in rows), default=0)
    timed = {name: find(rows, "whole", f"{name}, L2", dim=dim) for name in EVALUATIONS}
    return {name: row for name, row in timed.items() if row and all(timed.values())}


def _memory(row: Row, whole: dict[str, Row]) -> dict[str, str]:
    """Compare with PyKEEN's formula: at its fastest options, if these were timed, and at 128."""
    ours, large = row["kgfast"]["bytes"], row["formula"]["pykeen"]
    at_once = cell_of(row, "{formula[batch]} queries and all entities at once")
    least, peer = large, f"{human_bytes(large)}: PyKEEN, {at_once}, by formula"
    if whole:
        batch, slices = _options(whole)
        known = row["graph"]["known_triples"]
        least = formula_bytes("pykeen", batch, slices, row["dim"], known)
        peer = f"{human_bytes(least)}: PyKEEN, {batch} queries and slices of {slices:,} entities"
        few, short = min(PYKEEN_BATCHES["cpu"]), min(PYKEEN_SLICES["cpu"])
        slow = human_bytes(formula_bytes("pykeen", few, short, row["dim"], known))
        peer += f" ({human_bytes(large)}: {at_once}; {slow}: slower, {few} and {short}), by formula"
    what = "filtered evaluation of {kgfast[queries]:,} queries, RotatE, dim {dim}: memory"
    return _line(cell_of(row, f"{what} beyond the inputs"), human_bytes(ours), peer, least / ours)


def _options(whole: dict[str, Row]) -> tuple[int, int]:
    """Return the queries and the entities at once of PyKEEN's fastest evaluation."""
    fastest = whole["PyKEEN's evaluator"]
    return fastest["batch_size"], fastest["slice_size"] or fastest["entities"]


def _whole(whole: dict[str, Row]) -> Iterator[dict[str, str]]:
    if whole:
        ours, theirs, pykeen = whole.values()
        what = "filtered evaluation of {queries:,} queries, RotatE by L2, dim {dim}: time"
        peer = f"{median(theirs)}: torch, a product of matrices for each {theirs['batch']} queries"
        batch, slices = _options(whole)
        peer += f" (PyKEEN, {batch} queries and slices of {slices:,}: {median(pykeen)}"
        peer += f", {pykeen['note']})"
        times = _median(theirs) / _median(ours)
        yield _line(cell_of(ours, what), median(ours), peer, times)


def _ranks(rows: Rows) -> Iterator[dict[str, str]]:
    """Yield counts of RotatE at the largest width: of many queries, and of one."""
    for section in ("rotate", "single"):
        planted = [row for row in of_section(rows, section) if row["table"] == "planted"]
        for ours in [row for row in planted if row["contender"] == "kgfast"][-1:]:
            same = [row for row in planted if row["dim"] == ours["dim"] and row["seconds"]]
            best = min((row for row in same if row["contender"] in LABELS), key=_median)
            queries = "queries" if ours["batch"] > 1 else "query"
            what = cell_of(ours, f"ranks of {{batch}} {queries}, RotatE, dim {{dim}}: time")
            is_whole = best.get("chunk", 0) >= best["entities"]
            chunk = "all entities at once" if is_whole else "chunks of {chunk:,} entities"
            peer = f"{median(best)}: {LABELS[best['contender']]}, {cell_of(best, chunk)}"
            yield _line(what, median(ours), peer, best["times_kgfast"])


def _nearest(rows: Rows) -> Iterator[dict[str, str]]:
    """Yield the 10 best of one query by one thread; trained tables as a range beside the times."""
    alone = [row for row in rows if row["threads"] == row["batch"] == 1 and row["score"] == "dot"]
    trained = sorted(_closest(row) for row in alone if row["table"].startswith("trained"))
    for row in [row for row in alone if "run" not in row][:1]:
        what = "the {k} best of {entities:,} random rows of {dim} numbers by `{score}`, 1 query"
        what = cell_of(row, f"{what}, an index, one thread: time")
        name, seconds = row["best_peer"], row["seconds"]
        setting = row["options"].get(name)
        peer = f"{human_seconds(seconds[name]['median'])}: {name}"
        peer += f", {setting}" if setting else ""
        line = _line(what, human_seconds(seconds["index"]["median"]), peer, _closest(row))
        if trained:
            lost = ": the peer wins" if trained[-1] < 1 else ""
            line["times"] += f"; trained: {trained[0]:.2g}x to {trained[-1]:.2g}x{lost}"
        yield line


def _closest(row: Row) -> float:
    return float(row["times_index"][row["best_peer"]])


def _steps(rows: Rows) -> Iterator[dict[str, str]]:
    """Yield the fastest step of kgfast and the fastest of a peer."""
    timed = [row for row in rows if row["seconds"]]
    kinds: tuple[list[Row], list[Row]] = [], []
    for row in timed:
        kinds[not row["contender"].startswith("kgfast")].append(row)
    if all(kinds):
        fastest, best = (min(them, key=_median) for them in kinds)
        what = "training step, RotatE, dim {dim}, {batch} triples x {negatives:,} shared negatives"
        peer = STEPS.get(best["contender"], best["contender"])
        peer = cell_of(best, f"{median(best)}: {peer}, {{rows_at_once}} triples at once")
        times = _median(best) / _median(fastest)
        yield _line(cell_of(fastest, f"{what}: time"), median(fastest), peer, times)


def _median(row: Row) -> float:
    return float(row["seconds"]["median"])
