"""The pictures of the results: bars on a log scale, kgfast in colour, a value beside every bar."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from lib.naive import LIBRARIES
from lib.results import Row, Rows, engine_of, read_rows
from lib.tables import human_bytes, human_seconds

INK, FAINT, GRID, GREY = "#1f2933", "#6b7785", "#e6eaee", "#d5dbe1"
ACCENT, LIMIT = "#0b8f6f", "#c2410c"
GPU_BYTES = 80e9
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "text.color": INK,
    "xtick.color": FAINT,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.edgecolor": GRID,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.color": GRID,
    "svg.hashsalt": "kgfast",  # equal rows make equal files
}


class Bar(NamedTuple):
    """One bar; ``~`` before the text of a guess."""

    name: str
    value: float
    text: str


def draw_panels(
    path: Path,
    height: float,
    words: tuple[str, str, str],
    panels: Sequence[Callable[[Axes], None]],
    left_width: float = 1.2,
) -> None:
    """Draw two panels side by side, with title, subtitle and footnote; the height is in inches."""
    title, subtitle, footnote = words
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(11.5, height), width_ratios=(left_width, 1))
        for draw, place in zip(panels, axes, strict=True):
            draw(place)
        figure.text(0.02, 1 - 0.18 / height, title, fontsize=15, fontweight="bold", va="top")
        figure.text(0.02, 1 - 0.52 / height, subtitle, fontsize=9.5, color=FAINT, va="top")
        figure.text(0.02, 0.12 / height, footnote, fontsize=8, color=FAINT, va="bottom")
        top, bottom = 1 - 1.22 / height, 0.8 / height
        figure.subplots_adjust(left=0.082, right=0.985, top=top, bottom=bottom, wspace=0.17)
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=160, facecolor="white", metadata=metadata)
        plt.close(figure)


def bars(
    axes: Axes, title: str, groups: Mapping[str, Sequence[Bar]], text: Callable[[float], str]
) -> None:
    """Draw groups of bars; ``text`` writes the ticks."""
    axes.set_title(title, pad=16)
    axes.set_xscale("log")
    labels: dict[float, str] = {}
    place = 0.0
    for label, group in groups.items():
        labels[place + (len(group) - 1) / 2] = label
        for bar in group:
            is_ours = bar.name == "kgfast"
            weight = "bold" if is_ours else "normal"
            colour = ACCENT if is_ours else GREY
            hatch = "////" if bar.text.startswith("~") else None
            drawn = axes.barh(
                place, bar.value, 0.82, color=colour, hatch=hatch, edgecolor="white", linewidth=0
            )
            colour = ACCENT if is_ours else INK
            axes.bar_label(drawn, [bar.text], padding=5, fontweight=weight, color=colour)
            axes.annotate(
                bar.name,
                (0, place),
                (6, 0),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                va="center",
                color="white" if is_ours else INK,
                fontweight=weight,
                fontsize=8.5,
            )
            place += 1
        place += 0.7
    values = [bar.value for group in groups.values() for bar in group]
    axes.set_xlim(min(values) / 8, 6 * max(values))
    axes.set_yticks(list(labels), list(labels.values()), fontweight="bold")
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda value, _: text(value))
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    axes.minorticks_off()
    axes.tick_params(length=0)


def draw_memory(rows: Rows, path: Path) -> None:
    """Draw memory and time of `eval_mem`, one group of bars per dimension."""
    row = max(rows, key=lambda row: int(row["dim"]))
    graph, loops = row["graph"], _loops_over_chunks(rows, path.with_name("cpu-eval-speed.json"))
    ours, naive = row["kgfast"], row["naive"]
    official = human_bytes(row["formula"]["official"])
    title = (
        f"Filtered ranks at dim {row['dim']} in {human_bytes(ours['bytes'])} and "
        f"{human_seconds(ours['seconds'])}, by the official formula {official} or "
        f"~{human_seconds(naive['extrapolated_seconds'])}"
    )
    subtitle = (
        f"Exact ranks, RotatE: {2 * graph['test_triples']:,} queries against "
        f"{graph['entities']:,} entities ({graph['name']} graph), both sides. {_where(row)}."
    )
    footnote = (
        f"Grey memory: float32 temporaries of {row['formula']['batch']} queries, by formula "
        "from each library's source. Green: measured peak beyond the inputs. Log scales.\n"
        f"Hatched time: extrapolated from one measured batch: {naive['batch']} queries of the "
        "official formula in plain PyTorch, without the official code's Python filter"
        + ("; 128 by torch.compile over chunks of rows, unfiltered." if loops else ".")
    )
    memory, times = {}, {}
    for row in rows:
        sizes = [(LIBRARIES[name], row["formula"][name]) for name in LIBRARIES]
        sizes.append(("kgfast", row["kgfast"]["bytes"]))
        memory[f"dim {row['dim']}"] = [Bar(name, size, human_bytes(size)) for name, size in sizes]
        guesses = {"naive": row["naive"]["extrapolated_seconds"]}
        guesses |= {"torch.compile": loops[row["dim"]]} if row["dim"] in loops else {}
        group = [Bar(name, value, f"~{human_seconds(value)}") for name, value in guesses.items()]
        ours = row["kgfast"]["seconds"]
        times[f"dim {row['dim']}"] = [*group, Bar("kgfast", ours, human_seconds(ours))]

    def draw_bytes(axes: Axes) -> None:
        bars(axes, "Memory beyond the inputs", memory, human_bytes)
        axes.axvline(GPU_BYTES, color=LIMIT, linewidth=1, linestyle=(0, (4, 3)), zorder=0.5)
        place = (GPU_BYTES, 1.01)
        transform = axes.get_xaxis_transform()
        axes.text(*place, "an 80 GB GPU", transform=transform, ha="center", color=LIMIT)

    def draw_times(axes: Axes) -> None:
        bars(axes, "Time for the whole test set", times, human_seconds)

    words = title, subtitle, footnote
    draw_panels(path, 2.15 + 1.1 * len(rows), words, (draw_bytes, draw_times))


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


def draw_sampled(rows: Rows, path: Path) -> None:
    """Draw the MRR of each model by each protocol of `examples.sampled_vs_exact`, and its time."""
    last = [row for row in rows if row["section"] == "checkpoint" and row["is_last"]]
    timed = [row for row in rows if row["section"] == "seconds"]
    names = [row["protocol"] for row in timed]
    models = dict.fromkeys(row["model"] for row in last)
    words = (
        f"{rows[0]['graph']}: the MRR of {len(models)} models by protocol",
        f"{rows[0]['test_triples']:,} test triples, both sides, {rows[0]['entities']:,} entities. "
        f"{_where(rows[0])}.",
        f"Left: the last checkpoints; bars span {max(row['draws'] for row in timed)} draws. Lines "
        "that cross are models whose order changes. Right: one ranking of the test set, median.",
    )

    def lines(axes: Axes) -> None:
        axes.set_title("MRR", pad=10)
        for name in models:
            mrr = {row["protocol"]: row["mrr"] for row in last if row["model"] == name}
            means = [mrr[it]["mean"] for it in names]
            spans = [[abs(mrr[it]["mean"] - mrr[it][end]) for it in names] for end in _ENDS]
            axes.errorbar(range(len(names)), means, spans, linewidth=1.3, capsize=2, label=name)
        axes.legend(frameon=False, fontsize=8, ncols=4, loc="lower center", bbox_to_anchor=(0.6, 1))
        axes.set_xticks(range(len(names)), [it.replace(" ", "\n", 1) for it in names])
        axes.grid(axis="y")

    def times(axes: Axes) -> None:
        seconds = {row["protocol"]: row["cpu_seconds"]["median"] for row in timed}
        groups = {
            name.replace(" ", "\n", 1): [Bar("kgfast", value, human_seconds(value))]
            for name, value in seconds.items()
        }
        bars(axes, "CPU seconds", groups, human_seconds)

    draw_panels(path, 4.6, words, (lines, times), left_width=1.6)


_ENDS = ("low", "high")


def _where(row: Row) -> str:
    about = row["machine"]
    if about["device"] == "cuda":
        return str(about["name"])
    return f"{about['name']}, {about['isa']}, {about['threads']} threads"
