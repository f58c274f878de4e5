"""The block of docs/reference/speed.md: a column of measurements a machine, and gains of an index.

CPUs stand before GPUs. Extrapolated numbers keep their mark.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from lib.pages import machine_of, sources
from lib.results import Row, Rows, engine_of, find, read_rows
from lib.tables import LABELS, cell_of, markdown, median

LEGEND = (
    "N = 40,943 entities; whole test set: 6,268 queries, filtered. Bold: kgfast, measured; in "
    "brackets, how many times as long its peers take; a peer that wins takes less time. "
    "~ extrapolated from a part of the work."
)

PER_ROW = (  # negatives of each triple's own
    "kgfast, negatives per row",
    "plain torch, negatives per row, tuned",
    "plain torch, negatives per row, tuned, compiled",
    "pykeen",
)
OTHERS = {"matmul + compare": "matmul + compare", "bare": "bare loop"}
BENCHMARKS = ("eval_mem", "eval_speed", "train_speed")
MEMORY = (
    ("peak memory beyond the inputs, whole test set, dim {dim}", "**{kgfast[bytes]:bytes}**"),
    ("one `[{formula[batch]}, N, {dim}]` complex tensor, by formula", "{formula[tensor]:bytes}"),
    (
        "official code / LibKGE / PyKEEN, batch {formula[batch]}, dim {dim}, by formula",
        "{formula[official]:bytes} / {formula[libkge]:bytes} / {formula[pykeen]:bytes}",
    ),
    (
        "naive evaluation in plain torch, whole test set, dim {dim}",
        "~{naive[extrapolated_seconds]:time}",
    ),
)
TRAINING = "RotatE training step, dim {dim}, {batch} triples x {negatives}"


def block(folder: Path) -> str:
    """Write the table of machines and, where there is its file, that of an index."""
    return "\n".join([*machines(read_results(folder)), *ratios(folder)])


def read_results(folder: Path) -> list[Rows]:
    """Read the rows of each machine, the CPU first."""
    machines: dict[tuple[bool, str], list[Row]] = {}
    for path in [*sorted(folder.glob("*-eval-*.json")), *sorted(folder.glob("*-train-speed.json"))]:
        for row in read_rows(path):
            if row["benchmark"] in BENCHMARKS:  # others are of other pages
                about = row["machine"]
                machines.setdefault((about["device"] != "cpu", about["name"]), []).append(row)
    return [machines[key] for key in sorted(machines)]


def machines(found: Sequence[Rows]) -> Iterator[str]:
    """Yield the table, one column per machine, and where its numbers come from."""
    names = [machine_of(rows) for rows in found]
    lines: dict[str, dict[str, str]] = {}
    for name, rows in zip(names, found, strict=True):
        for what, measured in measurements(rows):
            lines.setdefault(what, {"what": what})[name] = measured
    columns = [(" ", "{what}"), *((f"{name}:", _of_machine(name)) for name in names)]
    yield from markdown(columns, list(lines.values()))
    yield from ["", LEGEND, *sources(found)]


def _of_machine(name: str) -> Callable[[Row], str]:
    return lambda line: line.get(name, "")


def ratios(folder: Path) -> Iterator[str]:
    """Yield how many times as fast an index is, a column for each instruction set."""
    path = folder / "cpu-index-speed.json"
    if not path.is_file():
        return
    index = read_rows(path)
    engines = list(dict.fromkeys(map(engine_of, index)))
    lines: dict[str, dict[str, str]] = {}
    for engine in engines:
        for what, times in _index_lines([row for row in index if engine_of(row) == engine]):
            lines.setdefault(what, {"what": what})[", ".join(engine)] = times
    names = [", ".join(engine) for engine in engines]
    columns = [("times as fast, one thread", "{what}")]
    columns += [(f"{name}:", _of_machine(name)) for name in names]
    yield from ["", *markdown(columns, list(lines.values())), "", *sources([index])]


def _index_lines(rows: Rows) -> Iterator[tuple[str, str]]:
    single = [row for row in rows if row["batch"] == 1 and row["dim"] == 256]
    if not single:
        return
    cells = ", ".join(f"{row['section']} {row['table_times_index']:.1f}x" for row in single)
    first = single[0]
    work = f"one query for the best {first['k']} of {first['entities']:,} x {first['dim']}"
    yield f"{work}: times as fast with an index as without", cells


def measurements(rows: Rows) -> Iterator[tuple[str, str]]:
    """Yield (what, measured) of one machine."""
    by = {name: [row for row in rows if row["benchmark"] == name] for name in BENCHMARKS}
    widest = max(by["eval_mem"], key=lambda row: int(row["dim"]), default=None)
    if widest is not None:
        lines = [(cell_of(widest, what), cell_of(widest, cell)) for what, cell in MEMORY]
        yield from (line for line in lines if line[1])
    for row in by["eval_speed"]:
        if row["section"] == "whole" and row["seconds"]:
            is_ours = row["contender"].startswith("kgfast")
            measured = f"**{median(row)}**" if is_ours else median(row)
            yield cell_of(row, "{contender}: whole test set, dim {dim}"), measured
    yield from _peer_lines(by["eval_speed"])
    yield from _training_lines(by["train_speed"])


def _peer_lines(rows: Rows) -> Iterator[tuple[str, str]]:
    """Yield rank counts: kgfast's time, and its peers' as multiples of it."""
    for ours in rows:
        section, batch = ours["section"], ours.get("batch")
        if section not in ("rotate", "single", "dot") or ours["contender"] != "kgfast":
            continue
        work = {name: ours[name] for name in ("table", "dim", "batch")}
        peers = [
            _peer(label, row["times_kgfast"], ".1f")
            for peer, label in (LABELS | OTHERS).items()
            if (row := find(rows, section, peer, **work))
        ]
        score = "dot" if section == "dot" else "rotate"
        what = f"{score}, dim {ours['dim']}, {ours['table']} table, {_queries(batch)}"
        yield what, f"**{median(ours)}** ({', '.join(peers)})"


def _training_lines(rows: Rows) -> Iterator[tuple[str, str]]:
    """Yield a step of training, and its peers' as multiples of it."""
    timed = [row for row in rows if row["seconds"]]
    for own, what in (("kgfast", "shared negatives"), (PER_ROW[0], "negatives of their own")):
        group = [row for row in timed if (row["contender"] in PER_ROW) == (own in PER_ROW)]
        for row in group:
            if row["contender"] == own:
                peers = ", ".join(_times(it, row) for it in group if it is not row)
                yield f"{cell_of(row, TRAINING)} {what}", f"**{median(row)}** ({peers})"


def _times(row: Row, ours: Row) -> str:
    """Return a peer and its time as a multiple of kgfast's."""
    times = row["seconds"]["median"] / ours["seconds"]["median"]
    name = row["contender"].replace("pykeen", "PyKEEN").replace(", negatives per row", "")
    return _peer(name, times, ".0f")


def _peer(name: str, times: float, form: str) -> str:
    return f"{name} {times:{form}}x" if times >= 1 else f"{name} wins: {times:.2f}x"


def _queries(batch: int) -> str:
    return "1 query" if batch == 1 else f"{batch} queries"
