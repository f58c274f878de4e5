"""Build an index of 100 million known triples from files: seconds, memory, disk.

    python benchmarks/known_build.py             writes results/cpu-known-build.json

Triples are drawn with a seed and written as four files of each format; some pairs have very many
answers. Each format is built in a process of its own, and its arrays are compared with those of one
sort in memory. Files are deleted afterwards.
"""

import filecmp
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import kgfast
from lib.benchmark import Benchmark, Option, Options
from lib.columns import BUILDS
from lib.measure import Sampled, anonymous_bytes, in_child, timed

IntArray = npt.NDArray[np.int64]
Columns = npt.NDArray[np.int32]

FORMATS = ("npy", "parquet", "tsv")
PARTS, BLOCK, SEED = 4, 1_000_000, 18
QUERIES, BATCH = 8192, 128
SIZES = {  # in earnest, in a smoke test
    "triples": (100_000_000, 20_000),
    "entities": (10_000_000, 2000),
    "relations": (1000, 10),
}
GOALS = {"triples": 100_000_000, "seconds": 300, "anonymous_bytes": 2 << 30}


def rows_of(options: Options) -> Iterator[dict[str, Any]]:
    """Draw triples, build an index of each format, and compare it."""
    graph = {name: getattr(options, name) for name in SIZES}
    triples, first = drawn(graph), None
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for kind in options.formats:
            row = measured(triples, graph, kind, Path(folder), options.max_memory)
            index = Path(folder) / f"{kind}-known"
            is_equal = are_same(index, first) if first else are_those_of_one_sort(index, triples)
            first = first or index
            yield {"format": kind, **graph, **row, "equal": is_equal}


def drawn(graph: dict[str, int]) -> Columns:
    """Draw triples, int32 ``[3, T]``: heads are even, relations and tails skewed."""
    found = np.empty((3, graph["triples"]), np.int32)
    for number, first in enumerate(range(0, graph["triples"], BLOCK)):
        generator = np.random.default_rng([SEED, number])
        heads, relations, tails = found[:, first : first + BLOCK]
        heads[:] = generator.integers(0, graph["entities"], len(heads))
        draws = generator.random(len(heads))
        relations[:] = graph["relations"] * (draws * draws * draws)
        draws = generator.random(len(heads))
        tails[:] = graph["entities"] * (draws * draws * draws * draws * draws)
    return found


def measured(
    triples: Columns, graph: dict[str, int], kind: str, folder: Path, max_memory: str
) -> dict[str, Any]:
    """Write, build and query one format."""
    files = write(triples, kind, folder)
    index = folder / f"{kind}-known"
    row = {
        "max_memory": max_memory,
        "input_bytes": sum(path.stat().st_size for path in files),
        **in_child(built, files, index, max_memory),
        "bytes": sum(path.stat().st_size for path in index.iterdir()),
        **in_child(asked, index, graph["entities"], graph["relations"]),
    }
    for path in files:
        path.unlink()
    return row


def write(triples: Columns, kind: str, folder: Path) -> list[Path]:
    """Write the files of a format, through to the disk."""
    files = []
    for part, columns in enumerate(np.array_split(triples, PARTS, axis=1)):
        files.append(folder / f"part-{part}.{kind}")
        (write_npy if kind == "npy" else write_with_arrow)(files[-1], columns)
        with files[-1].open("rb") as file:
            os.fsync(file.fileno())
    return files


def write_npy(path: Path, columns: Columns) -> None:
    """Write int32, one row after the other."""
    np.save(path, np.ascontiguousarray(columns.T))


def write_with_arrow(path: Path, columns: Columns) -> None:
    """Write a table of Parquet, or lines of three numbers between tabs."""
    import pyarrow
    from pyarrow import csv, parquet

    table = pyarrow.table(dict(zip(("head", "relation", "tail"), columns, strict=True)))
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        csv.write_csv(table, path, csv.WriteOptions(include_header=False, delimiter="\t"))


def built(files: list[Path], index: Path, max_memory: str) -> dict[str, Any]:
    """Measure building once: it takes minutes."""
    before = anonymous_bytes()
    with Sampled() as memory:
        _, taken = timed(lambda: kgfast.KnownTriples.build(files, index, max_memory=max_memory))
    return {**taken, "anonymous_bytes": memory.bytes, "anonymous_bytes_before": before}


def asked(index: Path, entities: int, relations: int) -> dict[str, Any]:
    """Measure queries of an opened folder, for all answers and for those of a shard."""
    generator = torch.Generator().manual_seed(SEED)
    known = kgfast.KnownTriples.open(index)
    anchors = torch.randint(entities, (QUERIES,), generator=generator, device="cpu")
    others = torch.randint(relations, (QUERIES,), generator=generator, device="cpu")
    # the law by which tails were drawn
    hubs = (anchors.double() / entities).pow(5).mul(entities).long()
    found: dict[str, Any] = {"queries": QUERIES, "distinct": len(known)}
    spans = {"all": None, "shard": (0, entities // 16)}
    with Sampled() as memory:
        for name, within in spans.items():
            start, count = time.process_time(), 0
            for first in range(0, QUERIES, BATCH):
                here = slice(first, first + BATCH)
                answers = known.exclude(hubs[here], others[here], "head", within=within)
                count += len(answers[1])
            found |= {f"{name}_cpu_seconds": time.process_time() - start, f"{name}_answers": count}
    return found | {"asking_anonymous_bytes": memory.bytes}


def are_same(index: Path, other: Path) -> bool:
    """Return whether two folders hold equal arrays, byte by byte."""
    names = sorted(path.name for path in index.iterdir())
    return names == sorted(path.name for path in other.iterdir()) and all(
        filecmp.cmp(index / name, other / name, shallow=False) for name in names
    )


def are_those_of_one_sort(index: Path, triples: Columns) -> bool:
    """Return whether the arrays are those of one sort in memory."""
    entities, relations = int(triples[::2].max()) + 1, int(triples[1].max()) + 1
    for side, (anchor, id) in {"tail": (0, 2), "head": (2, 0)}.items():
        keys = triples[anchor].astype(np.int64)
        keys *= relations
        keys += triples[1]
        keys *= entities
        keys += triples[id]
        keys.sort()
        keys = keys[np.concatenate([[True], keys[1:] != keys[:-1]])]
        if not _are(index, side, keys, entities):
            return False
    return True


def _are(index: Path, side: str, keys: IntArray, entities: int) -> bool:
    """Return whether sorted keys are the rows of a side."""
    pairs, indptr, indices = (
        np.load(index / f"{side}.{name}.npy", mmap_mode="r")
        for name in ("pairs", "indptr", "indices")
    )
    counts = np.diff(indptr)
    if len(counts) != len(pairs) or not (counts > 0).all() or not (np.diff(pairs) > 0).all():
        return False
    own = np.repeat(pairs * entities, counts)
    if len(own) != len(indices) or int(indptr[0]) != 0:
        return False
    own += indices
    return bool(np.array_equal(own, keys))


BENCHMARK = Benchmark(
    "known_build",
    __doc__,
    {"builds": rows_of},
    options={
        **{name: Option(f"{name} of the graph", *sizes) for name, sizes in SIZES.items()},
        "formats": Option("of files", [*FORMATS], keywords={"nargs": "*", "choices": FORMATS}),
        "max_memory": Option("of a build", "1GiB"),
        "folder": Option("for the files; else a temporary one", keywords={"type": Path}),
    },
    tables=BUILDS,
    head={"goals": GOALS},
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
