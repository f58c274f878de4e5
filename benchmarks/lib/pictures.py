"""The pictures of the results: the data that each shows, and its words."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes

from lib.bars import (
    ACCENT,
    GREYS,
    GRID,
    Bar,
    Panel,
    Words,
    draw_panels,
    grouped,
    panel,
    second_ticks,
    ticks_of,
)
from lib.naive import LIBRARIES
from lib.results import Row, Rows, engine_of, read_rows
from lib.tables import human_bytes, human_seconds

GPU_BYTES, GPU_COLOUR = 80e9, "#c2410c"


def draw_memory(rows: Rows, path: Path) -> None:
    """Draw memory and time of `eval_mem`, one group of bars per dimension."""
    row = max(rows, key=lambda row: int(row["dim"]))
    graph, loops = row["graph"], _loops_over_chunks(rows, path.with_name("cpu-eval-speed.json"))
    footnote = (
        f"Grey memory: float32 temporaries of {row['formula']['batch']} queries, by formula "
        "from each library's source. Green: measured peak beyond the inputs. Log scales."
    )
    if _has_naive(row):
        footnote += (
            f"\nHatched time: extrapolated from one measured batch: {row['naive']['batch']} queries"
            " of the official formula in plain PyTorch, without the official code's Python filter"
        )
        footnote += "; 128 by torch.compile over chunks of rows, unfiltered." if loops else "."
    words = Words(
        _headline(row),
        f"Exact ranks, RotatE: {2 * graph['test_triples']:,} queries against "
        f"{graph['entities']:,} entities ({graph['name']} graph), both sides. {_where(row)}.",
        footnote,
    )
    panels = lambda axes: _memory_bars(axes, rows), _time_bars(rows, loops)
    draw_panels(path, 2.15 + 1.1 * len(rows), words, panels)


def _loops_over_chunks(rows: Rows, measured: Path) -> dict[int, float]:
    """Return seconds of the whole test set by torch.compile, by dimension, as `eval_speed` has it.

    A batch is measured on the same machine and a graph of the same size; nothing without the file.
    """
    found = read_rows(measured) if measured.is_file() else []
    wanted = {(engine_of(row), row["graph"]["entities"], row["dim"]) for row in rows}
    queries = 2 * rows[0]["graph"]["test_triples"]
    return {
        row["dim"]: row["seconds"]["median"] * -(-queries // row["batch"])
        for row in found
        if (row["section"], row["contender"], row.get("table")) == ("rotate", "compile", "planted")
        and row["seconds"]
        and (engine_of(row), row["entities"], row["dim"]) in wanted
    }


def _headline(row: Row) -> str:
    ours = row["kgfast"]
    memory, naive = human_bytes(ours["bytes"]), human_bytes(row["formula"]["official"])
    if not _has_naive(row):
        return f"Filtered ranks at dim {row['dim']} in {memory}, by the official formula {naive}"
    naive_time = human_seconds(row["naive"]["extrapolated_seconds"])
    return (
        f"Filtered ranks at dim {row['dim']} in {memory} and {human_seconds(ours['seconds'])}, "
        f"by the official formula {naive} or ~{naive_time}"
    )


def _has_naive(row: Row) -> bool:
    return bool(row["naive"] and row["naive"]["batch"])


def _memory_bars(axes: Axes, rows: Rows) -> None:
    groups = {}
    for row in rows:
        sizes = [(LIBRARIES[name], row["formula"][name], GREYS[name]) for name in GREYS]
        sizes.append(("kgfast", row["kgfast"]["bytes"], ACCENT))
        groups[f"dim {row['dim']}"] = [
            Bar(name, size, human_bytes(size), colour) for name, size, colour in sizes
        ]
    grouped(axes, "Memory beyond the inputs", groups, pad=16)
    byte_ticks(axes)
    low, high = axes.get_xlim()
    if low < GPU_BYTES < high:
        axes.axvline(GPU_BYTES, color=GPU_COLOUR, linewidth=1, linestyle=(0, (4, 3)), zorder=0.5)
        axes.annotate(
            "an 80 GB GPU",
            (GPU_BYTES, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            color=GPU_COLOUR,
            fontsize=8.5,
        )


def _time_bars(rows: Rows, loops: Mapping[int, float]) -> Panel:
    groups: dict[str, list[Bar]] = {}
    for row in rows:
        group = groups.setdefault(f"dim {row['dim']}", [])
        if _has_naive(row):
            estimate = row["naive"]["extrapolated_seconds"]
            text = f"~{human_seconds(estimate)}"
            group.append(Bar("naive", estimate, text, GREYS["official"], hatched=True))
        if estimate := loops.get(row["dim"], 0.0):
            text = f"~{human_seconds(estimate)}"
            group.append(Bar("torch.compile", estimate, text, GREYS["pykeen"], hatched=True))
        ours = row["kgfast"]["seconds"]
        group.append(Bar("kgfast", ours, human_seconds(ours), ACCENT))
    return panel("Time for the whole test set", groups, second_ticks, pad=16)


def draw_sampled(rows: Rows, path: Path) -> None:
    """Draw the MRR of each model by each protocol of `examples.sampled_vs_exact`, and its time."""
    last = [row for row in rows if row["section"] == "checkpoint" and row["is_last"]]
    timed = [row for row in rows if row["section"] == "seconds"]
    names = [row["protocol"] for row in timed]
    models = dict.fromkeys(row["model"] for row in last)
    words = Words(
        f"{rows[0]['graph']}: the MRR of {len(models)} models by protocol",
        f"{rows[0]['test_triples']:,} test triples, both sides, {rows[0]['entities']:,} entities. "
        f"{_where(rows[0])}.",
        f"Left: the last checkpoints; bars span {max(row['draws'] for row in timed)} draws. Lines "
        "that cross are models whose order changes. Right: one ranking of the test set, median.",
    )

    def lines(axes: Axes) -> None:
        axes.set_title("MRR", loc="left", fontweight="bold", pad=10)
        ends: dict[str, tuple[float, str]] = {}
        for number, name in enumerate(models):
            own = {row["protocol"]: row["mrr"] for row in last if row["model"] == name}
            means = [own[it]["mean"] for it in names]
            spans = [[abs(own[it]["mean"] - own[it][end]) for it in names] for end in _ENDS]
            colour = f"C{number}"
            axes.errorbar(range(len(names)), means, spans, color=colour, linewidth=1.3, capsize=2)
            ends[name] = means[-1], colour
        low, high = axes.get_ylim()
        for name, place in _apart({name: at for name, (at, _) in ends.items()}, high - low).items():
            axes.annotate(name, (len(names) - 0.9, place), va="center", color=ends[name][1])
        axes.set_xticks(range(len(names)), [it.replace(" ", "\n", 1) for it in names])
        axes.set_xlim(-0.3, len(names) - 0.3)
        axes.grid(axis="y", color=GRID, linewidth=0.8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)

    bars = {
        row["protocol"].replace(" ", "\n", 1): [
            named_bar(
                "kgfast", row["cpu_seconds"]["median"], human_seconds(row["cpu_seconds"]["median"])
            )
        ]
        for row in timed
    }
    draw_panels(path, 4.6, words, (lines, panel("CPU seconds", bars, second_ticks)), left_width=1.6)


_ENDS = ("low", "high")


def _apart(places: Mapping[str, float], height: float) -> dict[str, float]:
    """Move labels up where they would cover the one below."""
    found: dict[str, float] = {}
    least = float("-inf")
    for name, place in sorted(places.items(), key=lambda it: it[1]):
        found[name] = max(place, least)
        least = found[name] + 0.05 * height
    return found


def named_bar(name: str, value: float, text: str) -> Bar:
    """Make a bar whose text begins with ``~`` where its value is a guess."""
    colour = ACCENT if name == "kgfast" else GREYS["official"]
    return Bar(name, value, text, colour, hatched=text.startswith("~"))


def _where(row: Row) -> str:
    about = row["machine"]
    if about["device"] == "cuda":
        return str(about["name"])
    return f"{about['name']}, {about['isa']}, {about['threads']} threads"


def byte_ticks(axes: Axes) -> None:
    """Label ticks without needless decimals: 10.0 GB is 10 GB."""

    def tick(value: float) -> str:
        number, unit = human_bytes(value).split()
        return f"{float(number):g} {unit}"

    ticks_of(axes, tick)
