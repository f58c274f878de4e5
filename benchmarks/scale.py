"""Rank tables larger than memory, and by several processes.

    python benchmarks/scale.py --folder DIR                 writes results/cpu-scale.json
    python benchmarks/scale.py --sections stream --entities 91_230_610

Tables are written to files, and their ranks are known (lib/planted.py). Rates are ratios of one
run: files are read without the cache, and the same kernel in memory and the disk alone are timed
before and after. Ranks of 64 dimensions stop nothing early.
"""

import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import kgfast
from lib import scale_runs as runs
from lib.benchmark import Benchmark, Option, Options
from lib.columns import SAMPLED, STREAMED
from lib.measure import Timing, in_child, timed
from lib.planted import Planted
from lib.results import RESULTS

WIKIDATA = 91_230_610  # entities of WikiKG90Mv2
SIZES = (1_000_000, 10_000_000, WIKIDATA)
PIECE = 4 << 30  # bytes of a file that its disk is measured by
Row = dict[str, Any]


def planted_of(options: Options, entities: int) -> Planted:
    """Return the table of a size."""
    return Planted(entities, options.dim, options.queries)


def row_of(section: str, planted: Planted, **row: Any) -> Row:
    """Return a row of a table."""
    work = {"entities": planted.entities, "dim": planted.dim, "queries": planted.queries}
    return {"section": section} | work | row


def stream(options: Options) -> Iterator[Row]:
    """Yield tables of each size in a file, the same kernel in memory, and the disk alone."""
    for entities in options.entities:
        planted = planted_of(options, entities)
        near = planted_of(options, min(entities, SIZES[0]))
        path, held = planted.write(options.folder), near.table()
        piece = min(entities, PIECE // (planted.dim * 4))
        rounds: list[Row] = []
        runs.rank(near, held)  # warms up
        for turn in range(1 if entities > SIZES[1] else options.rounds):
            first = (turn * piece) % max(1, entities - piece + 1)
            memory = [runs.rank_in_memory(near, held)]
            disk = [runs.read_cold(path, first, piece)]
            file = in_child(runs.rank_file, planted, path)
            memory.append(runs.rank_in_memory(near, held))
            disk.append(runs.read_cold(path, first, piece))
            rounds.append(_round(planted, near, memory, disk, file))
        facts = {name: statistics.median(it[name] for it in rounds) for name in rounds[0]}
        by = {"memory": facts["memory_elements_per_s"], "disk": facts["disk_elements_per_s"]}
        binding = min(by, key=lambda name: by[name])
        facts |= {"binding": binding, "of_binding": facts["elements_per_s"] / by[binding]}
        for name in ("seconds", "cpu_seconds"):
            facts[name] = Timing.of([it[name] for it in rounds]).as_dict()
        wrong = sum(it["wrong"] for it in rounds)
        yield row_of("stream", planted, file_bytes=planted.bytes, **facts | {"wrong": wrong})
        del held


def _round(planted: Planted, near: Planted, memory: list[Row], disk: list[Row], file: Row) -> Row:
    """Return elements a second of one round, by the clock and of a core."""
    per_row = planted.dim * planted.queries
    total, held = planted.entities * per_row, near.entities * per_row

    def mean(rows: list[Row], name: str) -> float:
        return statistics.fmean(row[name] for row in rows)

    disk_bytes = mean(disk, "bytes") / mean(disk, "seconds")
    return {
        "elements_per_s": total / file["seconds"],
        "memory_elements_per_s": held / mean(memory, "seconds"),
        "disk_elements_per_s": disk_bytes / (planted.dim * 4) * per_row,
        "disk_bytes_per_s": disk_bytes,
        "of_memory_by_cores": total / file["cpu_seconds"] / (held / mean(memory, "cpu_seconds")),
        **{name: file[name] for name in ("seconds", "cpu_seconds", "anonymous_bytes")},
        "wrong": file["wrong"] + sum(int(row["wrong"]) for row in memory),
    }


def processes(options: Options) -> Iterator[Row]:
    """Yield two processes of one thread, which hold half the rows each, against two threads."""
    planted = planted_of(options, options.held)
    contenders = {"1 x 2 threads": runs.Ranker(planted, 1, 2)}
    contenders["2 x 1 thread"] = runs.Ranker(planted, 2, 1)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    cores: dict[str, list[float]] = {name: [] for name in contenders}
    wrong = 0
    for _ in range(2 * options.rounds + 1):
        for name, ranker in contenders.items():
            found = ranker.rank()
            seconds[name].append(max(it["seconds"] for it in found))
            cores[name].append(sum(it["cpu_seconds"] for it in found))
            wrong += sum(it["wrong"] for it in found)
    for ranker in contenders.values():
        ranker.close()

    def ratio(both: dict[str, list[float]]) -> float:
        return statistics.median(a / b for a, b in zip(*both.values(), strict=True))

    yield row_of(
        "processes",
        planted,
        seconds={name: Timing.of(values).as_dict() for name, values in seconds.items()},
        cpu_seconds={name: Timing.of(values).as_dict() for name, values in cores.items()},
        ratio=ratio(seconds),
        ratio_by_cores=ratio(cores),
        wrong=wrong,
    )


def sampled(options: Options) -> Iterator[Row]:
    """Yield an evaluation as large as ogbl-wikikg2's: 500 random candidates a query, and all."""
    entities, dim, queries = (3_000, 8, 16) if options.quick else (2_500_604, 250, 2_000)
    planted = Planted(entities, dim, queries, most=31)
    path = planted.write(options.folder)
    table = kgfast.tables.open(path)
    generator = torch.Generator().manual_seed(0)
    count = min(500, entities // 8)
    step = entities // count  # one of each of so many parts of the table: none twice
    lists = torch.randint(step, (queries, count), generator=generator)
    lists += step * torch.arange(count)
    for contender, given in (("sampled", lists), ("full", None)):
        runs.forget(path)

        def work(given: Any = given) -> kgfast.Ranks:
            return runs.rank(planted, table, candidate_ids=given)

        ranks, taken = timed(work)
        yield row_of(
            "sampled",
            planted,
            contender=contender,
            candidates=lists.shape[1] if given is not None else entities,
            mrr=ranks.mrr,
            hits_10=ranks.hits(10),
            wrong=planted.wrong(ranks) if given is None else 0,
            **taken,
        )
    if not options.keep:
        path.unlink()


@contextmanager
def tables(options: Options) -> Iterator[None]:
    """Make the folder of the tables, and delete them unless they are kept for the next run."""
    is_own = options.folder is None
    if is_own:
        options.folder = Path(tempfile.mkdtemp(dir=None if options.quick else RESULTS))
    options.folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        if is_own:
            shutil.rmtree(options.folder)
        elif not options.keep:
            for path in options.folder.glob("planted-*.npy"):
                path.unlink()


def stays(row: Row, rows: Sequence[Row], options: Options) -> bool:
    """Return whether a row of the file is of other work than the new ones."""
    names = ("section", "contender", "entities", "dim", "queries")
    return all(any(row.get(it) != new.get(it) for it in names) for new in rows)


SECTIONS = {"stream": stream, "processes": processes, "sampled": sampled}
SHAPE = ("entities:", "{entities:,} x {dim}")
BENCHMARK = Benchmark(
    "scale",
    __doc__,
    SECTIONS,
    options={
        "entities": Option("rows of the files", list(SIZES), [3_000]),
        "held": Option("rows that processes share", SIZES[0], 2_000),
        "dim": Option("complex numbers of a row", 64),
        "queries": Option("of a table", 256, 8),
        "rounds": Option("turns", 3, 1),
        "folder": Option("for the tables; else one beside the results", keywords={"type": Path}),
        "keep": Option("leave the tables in the folder", False),
    },
    tables={
        "stream": ("Tables in files", STREAMED),
        "processes": (
            "Two processes against two threads",
            (SHAPE, ("times the speed:", "{ratio:.2f}"), ("by cores:", "{ratio_by_cores:.2f}")),
        ),
        "sampled": ("As large as ogbl-wikikg2", SAMPLED),
    },
    stays=stays,
    order=lambda row: (list(SECTIONS).index(row["section"]), row["entities"]),
    around=tables,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
