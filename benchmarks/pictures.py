"""The pictures of the results: bars on a log scale, a value beside every bar, kgfast in colour."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from common import human_bytes, human_seconds
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from naive import LIBRARIES
from speed_tables import LABELS

INK, FAINT, GRID = "#1f2933", "#6b7785", "#e6eaee"
ACCENT = "#0b8f6f"
GREYS = {"official": "#cbd2d9", "libkge": "#d5dbe1", "pykeen": "#dfe4e9"}
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": FAINT,
    "xtick.color": FAINT,
    "ytick.color": INK,
    "svg.hashsalt": "kgfast",  # the same rows, the same file
    "hatch.linewidth": 0.6,
}
GPU_BYTES, GPU_COLOUR = 80e9, "#c2410c"
SECOND_TICKS = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 36000)
VALUE_ROOM = 0.17  # right of the longest bar, as a share of its length
SLOTS = 4  # bars of normal height in a group: groups of both panels stand side by side


def draw_memory(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Memory and time of `eval_mem`, one group of bars per dimension."""
    with plt.rc_context(STYLE):
        height = 2.15 + 1.1 * len(rows)
        figure, (memory, seconds) = plt.subplots(
            1, 2, figsize=(11.5, height), width_ratios=(1.2, 1)
        )
        _memory_bars(memory, rows)
        _time_bars(seconds, rows)
        row = max(rows, key=lambda row: int(row["dim"]))
        graph = row["graph"]
        footnote = (
            f"Grey memory: float32 temporaries of {row['formula']['batch']} queries, by formula "
            "from each library's source. Green: measured peak beyond the inputs. Log scales."
        )
        if _has_naive(row):
            footnote += (
                "\nHatched time: extrapolated from one measured batch of the official formula in "
                "plain PyTorch, without the official code's Python filter."
            )
        _frame(
            figure,
            height,
            _headline(row),
            f"Exact ranks, RotatE: {2 * graph['test_triples']:,} queries against "
            f"{graph['entities']:,} entities ({graph['name']} graph), both sides. "
            f"{_where(row['machine'])}.",
            footnote,
        )
        _save(figure, path)


def _headline(row: Mapping[str, Any]) -> str:
    ours = row["kgfast"]
    memory, tensor = human_bytes(ours["bytes"]), human_bytes(row["formula"]["tensor"])
    if not _has_naive(row):
        return f"Filtered ranks at dim {row['dim']} in {memory} instead of {tensor}"
    naive_time = human_seconds(row["naive"]["extrapolated_seconds"])
    return (
        f"Filtered ranks at dim {row['dim']} in {memory} and {human_seconds(ours['seconds'])}, "
        f"not {tensor} and ~{naive_time}"
    )


def _has_naive(row: Mapping[str, Any]) -> bool:
    return bool(row["naive"] and row["naive"]["batch"])


def draw_speed(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Rank counts of `eval_speed` by kgfast and its peers, and whole test sets beside PyKEEN."""
    with plt.rc_context(STYLE):
        height = 4.6
        figure, (counts, whole) = plt.subplots(1, 2, figsize=(11.5, height), width_ratios=(1.2, 1))
        _peer_bars(counts, rows)
        _whole_bars(whole, rows)
        _frame(
            figure,
            height,
            "The same ranks, sooner",
            f"RotatE, {rows[0]['entities']:,} entities. All contenders take turns on "
            f"{_where(rows[0]['machine'])}; medians.",
            "Left: how many entities score above each target, and how many the same (KeOps: above "
            "only). Right: filtered, both sides; L2 is PyKEEN's RotatE. Log scales.\n"
            "Hatched: extrapolated from a few triples.",
        )
        _save(figure, path)


def draw_topk(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """The best candidates of `topk_speed` by kgfast and its peers."""
    with plt.rc_context(STYLE):
        height = 4.6
        figure, (rotate, others) = plt.subplots(1, 2, figsize=(11.5, height), width_ratios=(1.2, 1))
        _peer_bars(rotate, rows, "The 10 best")
        _topk_bars(others, rows)
        _frame(
            figure,
            height,
            "The best candidates, sooner",
            f"{rows[0]['entities']:,} entities. All contenders take turns on "
            f"{_where(rows[0]['machine'])}; medians.",
            "Left: RotatE. Right: greedy decoding of output heads, beside matrix products and "
            "topk in chunks; one RotatE prediction,\nbeside PyKEEN's predict_target. Log scales.",
        )
        _save(figure, path)


def draw_losses(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Memory and time of `loss_mem` at the largest batch, one group of bars per work."""
    rows = [row for row in rows if row["section"] == "bce" and row["seconds"]]
    batch = max(row["batch"] for row in rows)
    works: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["batch"] == batch:
            works.setdefault(f"{row['score']}\n{row['entities']:,}", []).append(row)
    with plt.rc_context(STYLE):
        height = 2.15 + 1.1 * len(works)
        figure, (memory, seconds) = plt.subplots(
            1, 2, figsize=(11.5, height), width_ratios=(1.2, 1)
        )
        memory.set_title("Memory beyond operands", loc="left", fontweight="bold", pad=10)
        _grouped(memory, list(works), [_loss_bars(group, "bytes") for group in works.values()])
        memory.xaxis.set_major_formatter(lambda value, _: _tick(human_bytes(value)))
        seconds.set_title("Forward and backward", loc="left", fontweight="bold", pad=10)
        _grouped(seconds, list(works), [_loss_bars(group, "seconds") for group in works.values()])
        _second_ticks(seconds)
        _frame(
            figure,
            height,
            "A loss over all entities, without their scores",
            f"Binary cross entropy of {batch:,} rows, dim {rows[0]['dim']}, "
            f"{_where(rows[0]['machine'])}.",
            "Dense: labels and scores of all entities; rotate in torch goes in chunks of entities. "
            "Hatched: one chunk measured, the whole extrapolated. Log scales.",
        )
        _save(figure, path)


def _loss_bars(rows: Sequence[Mapping[str, Any]], what: str) -> list["Bar"]:
    bars = []
    for row in sorted(rows, key=lambda row: row["contender"] == "kgfast"):
        ours, hatched = row["contender"] == "kgfast", row["extrapolated"]
        if what == "bytes":
            value, text = max(row["bytes"], 1), human_bytes(row["bytes"])
        else:
            value = row["seconds"]["median"]
            text = ("~" if hatched else "") + human_seconds(value)
        name = {"kgfast": "kgfast", "compile": "torch.compile"}.get(
            row["contender"], "torch, in chunks" if hatched else "torch, dense"
        )
        colour = ACCENT if ours else GREYS["official"]
        bars.append(Bar(name, value, text, colour, hatched and what == "seconds"))
    return bars


def _topk_bars(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    groups = {}
    for section, peer in (("head", "torch"), ("outputs", "torch"), ("prediction", "PyKEEN")):
        timed = [row for row in rows if row["section"] == section and row["seconds"]]
        last = [row for row in timed if row["dim"] == timed[-1]["dim"]]
        if last:
            what = "one\nquery" if section == "prediction" else _outputs(last[0]["entities"])
            groups[what] = [
                _speed_bar(row, "kgfast" if row["contender"] == "kgfast" else peer)
                for row in reversed(last)
            ]
    axes.set_title("Output heads, one prediction", loc="left", fontweight="bold", pad=10)
    _grouped(axes, list(groups), list(groups.values()))
    _second_ticks(axes)


def _outputs(count: int) -> str:
    return f"{count / 1e6:.0f}M\noutputs" if count >= 1e6 else f"{count / 1e3:.0f}k\noutputs"


def _peer_bars(axes: Axes, rows: Sequence[Mapping[str, Any]], what: str = "Rank counts") -> None:
    raced = [row for row in rows if row["section"] == "rotate" and row["seconds"]]
    dim = max(row["dim"] for row in raced)
    groups = {
        f"{table}\ntable": [
            _speed_bar(row, LABELS.get(row["contender"], row["contender"]))
            for name in ("eager", "keops", "compile", "kgfast")
            for row in raced
            if (row["dim"], row["table"], row["contender"]) == (dim, table, name)
        ]
        for table in dict.fromkeys(row["table"] for row in raced)
    }
    batch = raced[0]["batch"]
    title = f"{what} of {batch} queries, dim {dim}"
    axes.set_title(title, loc="left", fontweight="bold", pad=10)
    _grouped(axes, list(groups), list(groups.values()))
    _second_ticks(axes)


def _whole_bars(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    whole = [row for row in rows if row["section"] == "whole" and row["seconds"]]
    groups = {
        f"dim {dim}": sorted(
            (_speed_bar(row, row["contender"]) for row in whole if row["dim"] == dim),
            key=lambda bar: -bar.value,
        )
        for dim in dict.fromkeys(row["dim"] for row in whole)
    }
    queries = whole[0]["queries"]
    title = f"Whole test set: {queries:,} queries"
    axes.set_title(title, loc="left", fontweight="bold", pad=10)
    _grouped(axes, list(groups), list(groups.values()), inset=0.37)
    _second_ticks(axes)


def _speed_bar(row: Mapping[str, Any], name: str) -> "Bar":
    median, extrapolated = row["seconds"]["median"], row["extrapolated"]
    text = ("~" if extrapolated else "") + human_seconds(median)
    colour = ACCENT if name.startswith("kgfast") else GREYS["official"]
    return Bar(name, median, text, colour, hatched=extrapolated)


def _memory_bars(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    groups = []
    for row in rows:
        sizes = [(LIBRARIES[name], row["formula"][name], GREYS[name]) for name in GREYS]
        sizes.append(("kgfast", row["kgfast"]["bytes"], ACCENT))
        groups.append([Bar(name, size, human_bytes(size), it) for name, size, it in sizes])
    axes.set_title("Memory beyond the inputs", loc="left", fontweight="bold", pad=16)
    _grouped(axes, [f"dim {row['dim']}" for row in rows], groups)
    axes.xaxis.set_major_formatter(lambda value, _: _tick(human_bytes(value)))
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


def _time_bars(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    groups = []
    for row in rows:
        group = []
        if _has_naive(row):
            estimate = row["naive"]["extrapolated_seconds"]
            text = f"~{human_seconds(estimate)}"
            group.append(Bar("naive", estimate, text, GREYS["official"], hatched=True))
        ours = row["kgfast"]["seconds"]
        group.append(Bar("kgfast", ours, human_seconds(ours), ACCENT))
        groups.append(group)
    axes.set_title("Time for the whole test set", loc="left", fontweight="bold", pad=16)
    _grouped(axes, [f"dim {row['dim']}" for row in rows], groups)
    _second_ticks(axes)


@dataclass(frozen=True)
class Bar:
    """One bar, and the text at its end."""

    name: str
    value: float
    text: str
    colour: str
    hatched: bool = False


def _grouped(
    axes: Axes, labels: Sequence[str], groups: Sequence[Sequence[Bar]], inset: float = 0.16
) -> None:
    """Horizontal bars on a log scale, the first on top.

    The left edge of a log scale is arbitrary: the shortest bar spans ``inset`` of the width, so
    that its name fits in.
    """
    values = [bar.value for group in groups for bar in group]
    low, high = min(values), max(values)
    share = inset * (1 + VALUE_ROOM)
    left = low / max(2.0, (high / low) ** (share / (1 - share)))
    axes.set_xscale("log")
    axes.set_xlim(left, high * (high / left) ** VALUE_ROOM)
    pitch = SLOTS + 0.8  # of groups
    for index, (label, group) in enumerate(zip(labels, groups, strict=True)):
        step = min(SLOTS / len(group), 1.5)
        middle = index * pitch
        for order, bar in enumerate(group):
            _draw_bar(axes, bar, middle + (order - (len(group) - 1) / 2) * step, step, left)
        _label(axes, label, (0, middle), -8, axes_fraction=True, fontweight="bold", ha="right")
    axes.set_ylim((len(groups) - 1) * pitch + SLOTS / 2 + 0.2, -SLOTS / 2 - 0.2)
    axes.set_yticks([])
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.minorticks_off()
    axes.tick_params(axis="x", length=0, labelsize=8.5)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _draw_bar(axes: Axes, bar: Bar, position: float, step: float, left: float) -> None:
    ours = bar.colour == ACCENT
    weight = "bold" if ours else "normal"
    axes.barh(
        position,
        bar.value - left,
        left=left,
        height=0.82 * step,
        color=bar.colour,
        hatch="////" if bar.hatched else None,
        edgecolor="white" if bar.hatched else bar.colour,
        linewidth=0,
    )
    box = {"facecolor": "white", "linewidth": 0, "pad": 1.2, "alpha": 0.9}
    colour, size = (ACCENT, 11) if ours else (INK, 9)
    value = (bar.value, position)
    _label(axes, bar.text, value, 5, fontweight=weight, color=colour, fontsize=size, bbox=box)
    box = {"facecolor": bar.colour, "linewidth": 0, "pad": 1.2}
    colour = "white" if ours else INK
    _label(
        axes, bar.name, (left, position), 6, fontweight=weight, color=colour, fontsize=8.5, bbox=box
    )


def _label(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    points: float,
    axes_fraction: bool = False,
    **style: Any,
) -> None:
    """Text some points to the right of a position, vertically centred."""
    axes.annotate(
        text,
        at,
        xycoords=("axes fraction", "data") if axes_fraction else "data",
        xytext=(points, 0),
        textcoords="offset points",
        va="center",
        **style,
    )


def _second_ticks(axes: Axes) -> None:
    low, high = axes.get_xlim()
    ticks = [tick for tick in SECOND_TICKS if low <= tick <= high]
    axes.set_xticks(ticks, [_seconds_tick(tick) for tick in ticks])
    axes.set_xlim(low, high)


def _seconds_tick(value: float) -> str:
    if value >= 60:
        return f"{value / 3600:g} h" if value >= 3600 else f"{value / 60:g} min"
    return f"{value:g} s" if value >= 1 else f"{value * 1e3:g} ms"


def _where(about: Mapping[str, Any]) -> str:
    if about["device"] == "cuda":
        return str(about["name"])
    return f"{about['name']}, {about['threads']} threads"


def _tick(text: str) -> str:
    """A tick's label without needless decimals: 10.0 GB is 10 GB."""
    number, unit = text.split()
    return f"{float(number):g} {unit}"


def _frame(figure: Figure, height: float, title: str, subtitle: str, footnote: str) -> None:
    """Title and footnote, in inches from the edges, so that they do not depend on the height."""
    figure.text(0.02, 1 - 0.18 / height, title, fontsize=15, fontweight="bold", va="top")
    figure.text(0.02, 1 - 0.52 / height, subtitle, fontsize=9.5, color=FAINT, va="top")
    figure.text(0.02, 0.12 / height, footnote, fontsize=8, color=FAINT, va="bottom")
    figure.subplots_adjust(
        left=0.082, right=0.985, top=1 - 1.22 / height, bottom=0.8 / height, wspace=0.17
    )


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, dpi=160, facecolor="white", metadata=metadata)
    plt.close(figure)
