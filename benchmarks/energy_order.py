"""Measure what leading features and norms of the rest would save of a flat scan for the best k.

    python benchmarks/energy_order.py --run DIR    a trained table (may be repeated)

Writes results/cpu-energy-order.json. Rows of dot are rotated to the principal axes of the table,
features of rotate and l1 are ordered by their mean deviation; the norm of the features to come
bounds what they add (Panorama of faiss; Cauchy-Schwarz and the triangle inequality). `read`: bytes
of the table that decide the exact best k, as shares of float32, where the k-th best score is known
from the start. Times: bare loops of lib/energy_order.cpp, one query a call, CPU seconds of one
thread, on whole panels of 64 rows; peers_speed.py has Panorama beside an index.
"""

import ctypes
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import kgfast
from lib.benchmark import Benchmark, Option, Options
from lib.columns import ENERGY
from lib.indexed import normal_like
from lib.native import compiled
from lib.results import Rows

K, LEVELS, LINE, LANES = 10, 8, 60, 64
LEADING = (16, 32, 48, 64, 96, 128)
FACT = 4  # bytes of a bound
FEW = 8  # queries of a table of normal numbers
MRR_TRIPLES = 1_000  # test triples that say how far a run has come
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Work:
    """A table of candidates and queries, float64."""

    score: str
    table: Array  # [N, F]
    queries: Array  # [Q, F]

    @property
    def planes(self) -> int:
        """Return how many numbers a feature has."""
        return 2 if self.score == "rotate" else 1

    def moved(self) -> "Work":
        """Rotate the rows about their mean, or order their features, the widest first."""
        centred = self.table - self.table.mean(0)
        if self.score == "dot":
            axes = np.linalg.eigh(centred.T @ centred)[1][:, ::-1]
            return Work(self.score, centred @ axes, self.queries @ axes)
        spread = self.lengths(centred).mean(0)
        order = np.argsort(-spread, kind="stable")
        order = np.concatenate([order + plane * len(order) for plane in range(self.planes)])
        return Work(self.score, self.table[:, order], self.queries[:, order])

    def lengths(self, rows: Array) -> Array:
        """Return magnitudes of features, ``[N, D]``."""
        if self.score == "rotate":
            real, imaginary = np.split(rows, 2, axis=1)
            return np.hypot(real, imaginary)
        return np.abs(rows)

    def terms(self, query: Array, table: Array) -> Array:
        """Return the terms that each feature adds to scores, ``[N, D]``."""
        return table * query if self.score == "dot" else -self.lengths(table - query)

    def rests(self, rows: Array) -> Array:
        """Return norms of the features behind each level, ``[N, LEVELS]``."""
        sizes = self.lengths(rows) ** 2 if self.score == "dot" else self.lengths(rows)
        whole = sizes.sum(1, keepdims=True) - up_to(sizes)
        return np.sqrt(np.maximum(whole, 0)) if self.score == "dot" else np.maximum(whole, 0)

    def energy(self, share: int) -> float:
        """Return the leading features' share of the deviation from the mean, squared for dot."""
        sizes = self.lengths(self.table - self.table.mean(0))
        sizes = (sizes**2 if self.score == "dot" else sizes).sum(0)
        return float(sizes[: len(sizes) // share].sum() / sizes.sum())


def up_to(terms: Array) -> Array:
    """Return sums of the features up to each level, ``[N, LEVELS]``."""
    width = terms.shape[1] // LEVELS
    return np.cumsum(terms[:, : width * LEVELS].reshape(len(terms), LEVELS, width).sum(2), 1)


def rounded(table: Array) -> tuple[Array, Array]:
    """Round each row to signed bytes; return the bytes' numbers and what is left of the row."""
    unit = np.maximum(np.abs(table).max(1, keepdims=True), 1e-30) / 127
    values = np.rint(table / unit) * unit
    return values, table - values


def bytes_read(work: Work) -> dict[str, float]:
    """Return mean bytes of the table read for a query, as shares of the table in float32."""
    moved, (rows, features) = work.moved(), work.table.shape
    flat, width = rows * features * 4, features // LEVELS
    bytes_of = {name: rounded(it.table) for name, it in (("own", work), ("moved", moved))}
    rests, shares = moved.rests(moved.table), []

    def levels(upper: Array, limit: float, width: int) -> tuple[int, int]:
        """Return bytes read level by level, and rows that stay open."""
        past = upper < limit
        read = np.where(past.any(1), past.argmax(1) + 1, LEVELS)
        return int(read.sum()) * (width + FACT), int((~past.any(1)).sum())

    def near(it: Work, name: str, query: Array) -> Array:
        """Return upper bounds on sums of features up to each level, of bytes."""
        values, errors = bytes_of[name]
        if it.score != "dot":
            return up_to(it.terms(query, values)) + up_to(it.lengths(errors))
        reach = np.sqrt(up_to(query[None] ** 2)) * np.sqrt(up_to(errors**2))
        return up_to(it.terms(query, values)) + reach

    for own, query in zip(work.queries, moved.queries, strict=True):
        scores = moved.terms(query, moved.table).sum(1)
        limit = np.partition(scores, -K)[-K] - 1e-9 * np.abs(scores).max()
        own_limit = limit if work.score != "dot" else limit + own @ work.table.mean(0)
        rest = moved.rests(query[None])
        more = rests * rest if work.score == "dot" else -np.abs(rests - rest)
        floats, _ = levels(up_to(moved.terms(query, moved.table)) + more, limit, 4 * width)
        some, open_some = levels(near(moved, "moved", query) + more, limit, width)
        left = int((near(work, "own", own)[:, -1] >= own_limit).sum())
        whole = rows * (features + 2 * FACT) + left * features * 4
        shares.append([whole / flat, floats / flat, (some + open_some * features * 4) / flat])
    names = ("bytes", "ordered_floats", "ordered_bytes")
    return dict(zip(names, np.mean(shares, 0).tolist(), strict=True))


class _Table(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "features", "leading")),
        *((name, ctypes.c_void_p) for name in ("panels", "rounding", "rest", "lines", "tails")),
        ("tail_width", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("all_rounding", "table")),
    )


class _Asked(ctypes.Structure):
    _fields_ = (
        ("axes", ctypes.c_void_p),
        ("plain", ctypes.c_void_p),
        ("norms", ctypes.c_float * 5),
        ("base", ctypes.c_float),
        ("query", ctypes.c_void_p),
        ("shift", ctypes.c_double),
    )


class Scan:
    """Bytes of a table, leading features first; a scan of all features is a flat scan."""

    def __init__(self, library: Any, work: Work, leading: int) -> None:
        rows, features = work.table.shape
        flat, self.library, self.leading = leading == features, library, leading
        mean = np.zeros(features) if flat else work.table.mean(0)
        centred = work.table - mean
        self.axes = np.eye(features)
        if not flat:
            self.axes = np.ascontiguousarray(np.linalg.eigh(centred.T @ centred)[1][:, ::-1])
        self.mean, moved = mean, centred @ self.axes
        self.units = np.maximum(np.abs(moved).max(0), 1e-12) / 127
        values = np.rint(moved / self.units)
        errors, shifted = moved - values * self.units, (values + 128).astype(np.uint8)
        self.largest = float(np.sqrt((values**2).sum(1)).max())
        self.end = min(leading + LINE, features)
        panels = shifted[:, :leading].reshape(rows // LANES, LANES, leading // 4, 4)
        lines = np.zeros((rows, LINE + 4), np.uint8)
        lines[:, : self.end - leading] = shifted[:, leading : self.end]
        facts = [_norms(errors[:, : self.end]), _norms(moved[:, self.end :])]
        lines[:, LINE:] = np.stack([_upwards(it) for it in facts], 1).view(np.uint8)
        self.width = -(-(features - self.end) // 64) * 64
        tails = np.zeros((rows * self.width + 64,), np.uint8)
        tails[: rows * self.width].reshape(rows, self.width)[:, : features - self.end] = shifted[
            :, self.end :
        ]
        self.held = [
            np.ascontiguousarray(panels.transpose(0, 2, 1, 3)),
            _norms(errors[:, :leading]),
            _norms(moved[:, leading:]),
            lines,
            tails,
            _norms(errors),
            np.ascontiguousarray(work.table, np.float32),
        ]
        pointers = [it.ctypes.data for it in self.held]
        sizes = rows, features, leading
        self.table = _Table(*sizes, *pointers[:5], self.width, *pointers[5:])
        self.room, self.ids = np.empty((2, rows), np.float32), np.empty(K, np.int64)
        self.counts = np.zeros(3, np.int64)

    def asked(self, query: Array) -> tuple[_Asked, list[Array]]:
        """Rotate a query, and find its norms."""
        moved, parts = query @ self.axes, (slice(0, self.leading), slice(self.leading, None))
        parts = (*parts, slice(0, self.end), slice(self.end, None), slice(None))
        norms = [float(np.linalg.norm(moved[part])) * (1 + 1e-6) for part in parts]
        weights = moved * self.units
        unit = float(np.abs(weights).max()) / 16000
        base = 0.51 * unit * np.sqrt(len(query)) * self.largest + 1e-5 * norms[-1]
        is_flat = self.leading == len(query)
        held = [
            (weights if is_flat else query).astype(np.float32),
            np.ascontiguousarray(query),
            np.ascontiguousarray(self.axes * self.units, np.float32),
        ]
        plain, exact, axes = (it.ctypes.data for it in held)
        shift = float(query @ self.mean)
        sizes = (ctypes.c_float * 5)(*norms)
        return _Asked(None if is_flat else axes, plain, sizes, base, exact, shift), held

    def __call__(self, asked: _Asked) -> float:
        """Search, and return seconds; ``ids`` are the best."""
        where = [ctypes.c_void_p(it.ctypes.data) for it in (self.room, self.ids, self.counts)]
        seconds: float = self.library.search(
            ctypes.byref(self.table), ctypes.byref(asked), K, *where
        )
        return seconds


def _norms(rows: Array) -> Array:
    """Return norms of rows, rounded upwards."""
    return (np.sqrt((rows**2).sum(1)) * (1 + 1e-6)).astype(np.float32)


def _upwards(values: Array) -> Array:
    """Round to bfloat16, upwards."""
    return ((values.view(np.uint32) + 0xFFFF) >> 16).astype(np.uint16)


def loops(folder: str) -> Any:
    """Compile the loops for this machine; None where they do not compile."""
    try:
        found = ctypes.CDLL(str(compiled("energy_order.cpp", folder)))
    except (OSError, subprocess.CalledProcessError):
        return None
    found.search.restype = ctypes.c_double
    return found


def times(work: Work, rounds: int, library: Any) -> dict[str, Any]:
    """Time loops over bytes in turns of one query each."""
    count = len(work.table) // LANES * LANES
    table = work.table[:count].astype(np.float32)
    part = Work(work.score, table.astype(np.float64), work.queries)
    features = table.shape[1]
    scans = {f"leading {p}": Scan(library, part, p) for p in LEADING if p + LINE <= features}
    scans["bytes"] = Scan(library, part, features)
    asked = {name: [scan.asked(it) for it in part.queries] for name, scan in scans.items()}
    seconds: dict[str, list[float]] = {name: [] for name in scans}
    right = {name: 0 for name in seconds}
    for place, query in enumerate(part.queries):
        best = np.argsort(-(part.table @ query), kind="stable")[:K].tolist()
        for turn in range(rounds + 1):  # the first warms up
            for name, scan in scans.items():
                spent = scan(asked[name][place][0])
                right[name] += turn == 0 and set(scan.ids.tolist()) == set(best)
                if turn:
                    seconds[name].append(spent)
    medians = {name: statistics.median(it) for name, it in seconds.items()}
    ratios = {
        name: statistics.median(a / b for a, b in zip(seconds["bytes"], it, strict=True))
        for name, it in seconds.items()
    }
    fastest = max((name for name in scans if name != "bytes"), key=ratios.__getitem__)
    return {
        "seconds": medians,
        "times_faster_than_bytes": ratios,
        "fastest": int(fastest.split()[1]),
        "speedup": ratios[fastest],
        "right": right,
        "equal": all(it == len(part.queries) for it in right.values()),
    }


def works(options: Options) -> Iterator[tuple[dict[str, Any], Work]]:
    """Yield tables with queries of test sets, or one whose features decay."""
    if not options.run:
        generator = np.random.default_rng(0)
        table = generator.normal(size=(1_280, 128)) * 0.97 ** np.arange(128)
        yield {"table": "decaying", "side": "tail"}, Work("dot", table, table[: options.queries])
    for run in options.run or ():
        loaded = kgfast.load_run(run)
        model, dataset = loaded.model, loaded.dataset
        if dataset is None:
            raise SystemExit(f"--run {run}: its dataset is not at hand")
        hrt = dataset.test.hrt
        generator = torch.Generator().manual_seed(0)
        heads, relations, tails = hrt[
            torch.randperm(len(hrt), generator=generator)[: options.queries]
        ].T
        few = kgfast.rank(model, hrt[:MRR_TRIPLES], known=dataset.known())
        told = {"table": dataset.name, "run": run.name, "mrr": few.mrr}
        for side, anchors in (("tail", heads), ("head", tails)):
            with torch.no_grad():
                queries = model.queries(anchors, relations, side).double().numpy()
                rows = model.candidates(side).table.double().numpy()
            yield told | {"side": side}, Work(model.score, rows, queries)
        if options.entities and model.score == "dot":
            alike = normal_like(rows, options.entities)
            yield told | {"extrapolated": True, "side": side}, Work("dot", alike, queries[:FEW])


def rows_of(options: Options) -> Iterator[dict[str, Any]]:
    """Yield a row of each table and side."""
    with tempfile.TemporaryDirectory() as folder:
        library = loops(folder)
        for told, work in works(options):
            moved = work.moved()
            row = (
                {"extrapolated": False}
                | told
                | {
                    "score": work.score,
                    "entities": len(work.table),
                    "features": work.table.shape[1] // work.planes,
                    "queries": len(work.queries),
                    "k": K,
                    "energy": {"eighth": moved.energy(8), "quarter": moved.energy(4)},
                    "read": bytes_read(work),
                }
            )
            if work.score == "dot" and library is not None:
                row |= times(work, options.rounds, library)
            yield row


def notes(rows: Rows) -> Iterator[str]:
    """Say where nothing was timed."""
    if not any("seconds" in row for row in rows):
        yield "this machine has no AVX512-VNNI, or no table is of dot products: nothing was timed"


BENCHMARK = Benchmark(
    "energy_order",
    __doc__,
    {"best": rows_of},
    options={
        "queries": Option("queries of each table and side", 64, 8),
        "rounds": Option("turns of each", 5, 2),
        "entities": Option("rows of normal numbers like each table of dot; 0: none", 0),
        "run": Option("the folder of a run", keywords={"type": Path, "action": "append"}),
    },
    tables=ENERGY,
    notes=notes,
    threads=1,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
