"""Tables larger than memory and several processes: time, memory, bytes, and runs that are killed.

    python benchmarks/scale.py --folder DIR                 writes results/cpu-scale.json
    python benchmarks/scale.py --sections stream --entities 91_230_610
    python benchmarks/scale.py --quick                      a smoke test: tiny tables

Sections are run alone or together; each replaces its own rows of the file. Tables are made in a
file as large as is asked for, and their ranks are known (lib/planted.py); a row whose ranks are
wrong ends in exit code 1. Rates are ratios of one run: tables in files are read without the cache,
the same kernel is timed in memory, and the disk alone in the same pattern, before and after. The
ranks of 64-dimensional tables stop nothing early, so elements a second are those of any table.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kgfast
from lib import options as known_options
from lib import scale_runs as runs
from lib.machine import facts, machine_line
from lib.measure import Timing, in_child
from lib.planted import Planted
from lib.results import RESULTS, read_rows, write_json
from lib.scale_plans import plan_rows
from lib.tables import console, human_bytes, human_seconds

WIKIDATA = 91_230_610  # entities of WikiKG90Mv2
SIZES = (1_000_000, 10_000_000, WIKIDATA)
DIM, QUERIES = 64, 256
KILLS = 5
PIECE = 4 << 30  # bytes of a file that its disk is measured by
GOALS = {
    "anonymous_bytes": 1 << 30,
    "of_binding": 0.8,
    "lost_ranges": 1,
    "processes": 0.9,
    "plan_error": 0.25,
}
Row = dict[str, Any]


@dataclass
class Bench:
    """The options, the folder of tables, and the rows so far."""

    options: argparse.Namespace
    folder: Path
    rows: list[Row] = field(default_factory=list)
    counted: dict[Planted, Any] = field(default_factory=dict)

    def add(self, section: str, **row: Any) -> Row:
        """Keep a row."""
        self.rows.append({"benchmark": "scale", "section": section, **row})
        return self.rows[-1]

    def planted(self, entities: int) -> Planted:
        """The table of a size."""
        return Planted(entities, self.options.dim, self.options.queries)

    def file(self, planted: Planted) -> Path:
        """Its file."""
        return planted.write(self.folder)

    def ranked(self, planted: Planted) -> Row:
        """One ranking of its file, in a process of its own; its counts are remembered."""
        found: Row = in_child(runs.rank_file, planted, self.file(planted))
        self.counted[planted] = found["counts"]
        return found

    def counts(self, planted: Planted) -> Any:
        """Those of a ranking that nobody touched."""
        return self.counted[planted] if planted in self.counted else self.ranked(planted)["counts"]

    def done_with(self, path: Path) -> None:
        """Delete a file, unless it is kept for the next run."""
        if not self.options.keep:
            path.unlink(missing_ok=True)


def stream(bench: Bench) -> None:
    """Tables of each size in a file, the same kernel in memory, and the disk alone."""
    for entities in bench.options.entities:
        planted = bench.planted(entities)
        near = bench.planted(min(entities, SIZES[0]))
        path, held = bench.file(planted), near.table()
        piece = min(entities, PIECE // (planted.dim * 4))
        rounds: list[Row] = []
        runs.rank(near, held)  # warms up
        for turn in range(1 if entities > SIZES[1] else bench.options.rounds):
            first = (turn * piece) % max(1, entities - piece + 1)
            memory = [runs.rank_in_memory(near, held)]
            disk = [runs.read_cold(path, first, piece)]
            file = bench.ranked(planted)
            memory.append(runs.rank_in_memory(near, held))
            disk.append(runs.read_cold(path, first, piece))
            rounds.append(_round(planted, near, (memory, disk, file)))
        bench.add("stream", **_stream_facts(planted, rounds))
        del held


def _round(planted: Planted, near: Planted, measured: tuple[list[Row], list[Row], Row]) -> Row:
    """Elements a second of one round, by the clock and of a core."""
    memory, disk, file = measured
    per_row = planted.dim * planted.queries
    row_bytes = planted.dim * 4

    def mean(rows: list[Row], name: str) -> float:
        return statistics.fmean(row[name] for row in rows)

    total = planted.entities * per_row
    rates = {
        "memory": near.entities * per_row / mean(memory, "seconds"),
        "disk": mean(disk, "bytes") / mean(disk, "seconds") / row_bytes * per_row,
        "file": total / file["seconds"],
    }
    cores = near.entities * per_row / mean(memory, "cpu_seconds")
    binding = "memory" if rates["memory"] <= rates["disk"] else "disk"
    return {
        "rates": rates,
        "binding": binding,
        "of_binding": rates["file"] / rates[binding],
        "of_memory_by_cores": total / file["cpu_seconds"] / cores,
        "disk_bytes_per_s": mean(disk, "bytes") / mean(disk, "seconds"),
        "file": {name: value for name, value in file.items() if name != "counts"},
        "wrong": file["wrong"] + sum(int(row["wrong"]) for row in memory),
    }


def _stream_facts(planted: Planted, rounds: list[Row]) -> Row:
    """A row: medians of rounds."""
    middle = sorted(rounds, key=lambda it: float(it["of_binding"]))[len(rounds) // 2]
    return {
        "entities": planted.entities,
        "dim": planted.dim,
        "queries": planted.queries,
        "file_bytes": planted.bytes,
        "seconds": Timing.of([it["file"]["seconds"] for it in rounds]).as_dict(),
        "cpu_seconds": Timing.of([it["file"]["cpu_seconds"] for it in rounds]).as_dict(),
        "elements_per_s": middle["rates"]["file"],
        "memory_elements_per_s": middle["rates"]["memory"],
        "disk_elements_per_s": middle["rates"]["disk"],
        "disk_bytes_per_s": middle["disk_bytes_per_s"],
        "binding": middle["binding"],
        "of_binding": middle["of_binding"],
        "of_memory_by_cores": statistics.median(it["of_memory_by_cores"] for it in rounds),
        "anonymous_bytes": max(it["file"]["anonymous_bytes"] for it in rounds),
        "wrong": sum(it["wrong"] for it in rounds),
    }


def killed(bench: Bench) -> None:
    """A ranking that is killed at random moments and goes on, against one that is not."""
    for entities in bench.options.entities:
        planted = bench.planted(entities)
        path = bench.file(planted)
        whole = bench.counts(planted)
        with tempfile.TemporaryDirectory(dir=bench.folder) as name:
            found = runs.kill_and_resume(
                planted, path, Path(name), bench.options.kills, bench.options.seed
            )
        span = found["range_rows"]
        lost = [max(0, it["lost_rows"]) for it in found["killed"]]
        bench.add(
            "killed",
            entities=entities,
            dim=planted.dim,
            queries=planted.queries,
            kills=sum(it["exit_code"] == -9 for it in found["killed"]),
            moments=found["killed"],
            range_rows=span,
            lost_ranges=max(-(-it // span) for it in lost),
            equal=bool(np.array_equal(found["counts"], whole)),
        )


def processes(bench: Bench) -> None:
    """Two processes of one thread, which hold half the rows each, against one of two threads."""
    planted = bench.planted(bench.options.held)
    contenders = {"1 x 2 threads": runs.Ranker(planted, 1, 2)}
    contenders["2 x 1 thread"] = runs.Ranker(planted, 2, 1)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    cores: dict[str, list[float]] = {name: [] for name in contenders}
    wrong = 0
    for _ in range(2 * bench.options.rounds + 1):
        for name, ranker in contenders.items():
            found = ranker.rank()
            seconds[name].append(max(it["seconds"] for it in found))
            cores[name].append(sum(it["cpu_seconds"] for it in found))
            wrong += sum(it["wrong"] for it in found)
    for ranker in contenders.values():
        ranker.close()
    one, two = seconds.values()
    one_cores, two_cores = cores.values()
    bench.add(
        "processes",
        entities=planted.entities,
        dim=planted.dim,
        queries=planted.queries,
        seconds={name: Timing.of(values).as_dict() for name, values in seconds.items()},
        cpu_seconds={name: Timing.of(values).as_dict() for name, values in cores.items()},
        ratio=statistics.median(a / b for a, b in zip(one, two, strict=True)),
        ratio_by_cores=statistics.median(a / b for a, b in zip(one_cores, two_cores, strict=True)),
        wrong=wrong,
    )


def sent(bench: Bench) -> None:
    """Bytes that a query costs between four processes, of tables of several sizes."""
    largest = bench.options.held
    for entities in (largest // 100, largest // 10, largest):
        planted = bench.planted(max(entities, 8 * bench.options.queries))
        ranker = runs.Ranker(planted, 4, 1)
        found = ranker.rank()
        ranker.close()
        bench.add(
            "sent",
            entities=planted.entities,
            dim=planted.dim,
            queries=planted.queries,
            processes=4,
            bytes_per_query=max(it["sent_bytes"] for it in found) / planted.queries,
            wrong=sum(it["wrong"] for it in found),
        )


def sampled(bench: Bench) -> None:
    """An evaluation as large as ogbl-wikikg2's: 500 random candidates a query, and all."""
    entities, dim, queries = (3_000, 8, 16) if bench.options.quick else (2_500_604, 250, 2_000)
    planted = Planted(entities, dim, queries, most=31)
    path = bench.file(planted)
    table = kgfast.tables.open(path)
    generator = torch.Generator().manual_seed(0)
    count = min(500, entities // 8)
    step = entities // count  # one of each of so many parts of the table: none twice
    lists = torch.randint(step, (queries, count), generator=generator)
    lists += step * torch.arange(count)
    for contender, given in (("sampled", lists), ("full", None)):
        table.give_back(0, len(table))

        def work(given: Any = given) -> kgfast.Ranks:
            return runs.rank(planted, table, candidate_ids=given)

        ranks, taken = runs.timed(work)
        bench.add(
            "sampled",
            contender=contender,
            entities=entities,
            dim=dim,
            queries=queries,
            candidates=lists.shape[1] if given is not None else entities,
            mrr=ranks.mrr,
            hits_10=ranks.hits(10),
            wrong=planted.wrong(ranks) if given is None else 0,
            **taken,
        )
    bench.done_with(path)


def plan(bench: Bench) -> None:
    """What ``kgfast plan`` says, beside what is measured."""
    options = bench.options
    for row in plan_rows(
        bench.folder, quick=options.quick, rounds=options.rounds, by_cores=options.by_cores
    ):
        bench.add("plan", **row)


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "stream": stream,
    "killed": killed,
    "processes": processes,
    "sent": sent,
    "sampled": sampled,
    "plan": plan,
}


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = known_options.new_parser(__doc__, quick="tiny tables: seconds")
    parser.add_argument("--sections", nargs="+", choices=tuple(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--entities", type=int, nargs="+", metavar="N", help="rows of the files")
    parser.add_argument("--held", type=int, metavar="N", help="rows that processes share")
    parser.add_argument("--dim", type=int, default=DIM, help="complex numbers of a row")
    parser.add_argument("--queries", type=int, help="256 unless given")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--rounds", type=int, help="3 unless given")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of death")
    parser.add_argument("--folder", type=Path, help="for the tables; else one beside the results")
    parser.add_argument(
        "--by-cores", action="store_true", help="plans by the time of the cores: others use them"
    )
    parser.add_argument("--keep", action="store_true", help="leave the tables in the folder")
    known_options.add_outputs(parser, "scale", plot=False)
    options = parser.parse_args(arguments)
    known_options.set_defaults(
        options,
        whole={"entities": list(SIZES), "held": SIZES[0], "rounds": 3, "queries": QUERIES},
        quick={"entities": [3_000], "held": 2_000, "rounds": 1, "queries": 8},
    )
    known_options.check_positive(
        parser, options, "entities", "held", "dim", "queries", "kills", "rounds"
    )
    known_options.set_outputs(options, "scale")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write; 1 if a rank is not what it was made to be."""
    options, out = parsed(arguments), console()
    about = facts("cpu")
    out.print(machine_line(about), style="dim")
    where = options.folder or Path(tempfile.mkdtemp(dir=None if options.quick else RESULTS))
    where.mkdir(parents=True, exist_ok=True)
    bench = Bench(options, where)
    try:
        for name in SECTIONS:
            if name in options.sections:
                SECTIONS[name](bench)
                if options.json is not None:  # after each: a run that is stopped keeps these
                    _merge(options.json, [row | about for row in bench.rows])
    finally:
        if options.folder is None:
            shutil.rmtree(where)
        elif not options.keep:
            for path in where.glob("planted-*.npy"):
                path.unlink()
    for row in bench.rows:
        out.print(_line(row))
    failed = [row for row in bench.rows if row.get("wrong") or not row.get("equal", True)]
    if failed:
        out.print("[bold white on red] RANKS ARE NOT WHAT THEY WERE MADE TO BE: a bug ")
    return 1 if failed else 0


def _merge(path: Path, rows: list[Row]) -> None:
    """Replace the rows of the same work in a file of results."""
    old = read_rows(path) if path.exists() else []
    new = {_work(row) for row in rows}
    kept = [row for row in old if _work(row) not in new]
    order = list(SECTIONS)
    both = sorted([*kept, *rows], key=lambda it: (order.index(it["section"]), it["entities"]))
    write_json(path, {"goals": GOALS, "rows": both})


def _work(row: Row) -> tuple[Any, ...]:
    names = ("section", "contender", "entities", "dim", "queries", "work")
    return tuple(str(row.get(name)) for name in names)


def _line(row: Row) -> str:
    """A row in words."""
    start = f"{row['section']:>9}  {row['entities']:>11,} x {row['dim']}"
    if row["section"] == "stream":
        return (
            f"{start}: {human_seconds(row['seconds']['median'])}, "
            f"{row['elements_per_s'] / 1e9:.1f}e9 elements/s, {row['of_binding']:.2f} of "
            f"{row['binding']} ({row['of_memory_by_cores']:.2f} of memory by cores), "
            f"{human_bytes(row['anonymous_bytes'])}"
        )
    if row["section"] == "killed":
        return (
            f"{start}: killed {row['kills']} times, at most {row['lost_ranges']} ranges lost, "
            f"{'equal' if row['equal'] else 'NOT EQUAL'}"
        )
    if row["section"] == "processes":
        return f"{start}: {row['ratio']:.2f} ({row['ratio_by_cores']:.2f} by cores)"
    if row["section"] == "sent":
        return f"{start}: {row['bytes_per_query']:.0f} bytes a query"
    if row["section"] == "sampled":
        return f"{start}: {row['contender']}, {human_seconds(row['seconds'])}, MRR {row['mrr']:.3f}"
    return (
        f"{start}: {row['work']}: {human_seconds(row['predicted_seconds'])} predicted, "
        f"{human_seconds(row['measured_seconds'])} measured"
    )


if __name__ == "__main__":
    sys.exit(main())
