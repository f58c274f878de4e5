"""Bars on a log scale, a value beside every bar, kgfast in colour: what pictures are made of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
    "svg.hashsalt": "kgfast",  # equal rows make equal files
    "hatch.linewidth": 0.6,
}
SECOND_TICKS = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 36000)
VALUE_ROOM = 0.17  # right of the longest bar, as a share of its length
SLOTS = 4  # bars of normal height in a group: groups of both panels stand side by side

Panel = Callable[[Axes], None]


@dataclass(frozen=True)
class Bar:
    """One bar, and the text at its end."""

    name: str
    value: float
    text: str
    colour: str
    hatched: bool = False


@dataclass(frozen=True)
class Words:
    """Text above and below the panels."""

    title: str
    subtitle: str
    footnote: str


def draw_panels(
    path: Path, height: float, words: Words, panels: tuple[Panel, Panel], left_width: float = 1.2
) -> None:
    """Draw two panels side by side; the height is in inches."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            1, 2, figsize=(11.5, height), width_ratios=(left_width, 1), squeeze=False
        )
        for draw, place in zip(panels, axes[0], strict=True):
            draw(place)
        _frame(figure, height, words)
        _save(figure, path)


def grouped(
    axes: Axes, title: str, groups: Mapping[str, Sequence[Bar]], inset: float = 0.16, pad: int = 10
) -> None:
    """Draw groups of bars on a log scale; the shortest spans ``inset`` of the width."""
    axes.set_title(title, loc="left", fontweight="bold", pad=pad)
    values = [bar.value for group in groups.values() for bar in group]
    low, high = min(values), max(values)
    share = inset * (1 + VALUE_ROOM)
    left = low / max(2.0, (high / low) ** (share / (1 - share)))
    axes.set_xscale("log")
    axes.set_xlim(left, high * (high / left) ** VALUE_ROOM)
    pitch = SLOTS + 0.8  # distance of groups
    for index, (label, group) in enumerate(groups.items()):
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


def panel(title: str, groups: Mapping[str, Sequence[Bar]], ticks: Panel, **options: Any) -> Panel:
    """Return what draws grouped bars and their ticks."""

    def draw(axes: Axes) -> None:
        grouped(axes, title, groups, **options)
        ticks(axes)

    return draw


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
    """Write text some points to the right of a position, vertically centred."""
    axes.annotate(
        text,
        at,
        xycoords=("axes fraction", "data") if axes_fraction else "data",
        xytext=(points, 0),
        textcoords="offset points",
        va="center",
        **style,
    )


def ticks_of(axes: Axes, text: Callable[[float], str]) -> None:
    """Label the ticks that matplotlib chooses."""
    axes.xaxis.set_major_formatter(lambda value, _: text(value))


def second_ticks(axes: Axes) -> None:
    """Set ticks at round times."""
    low, high = axes.get_xlim()
    ticks = [tick for tick in SECOND_TICKS if low <= tick <= high]
    axes.set_xticks(ticks, [_seconds_tick(tick) for tick in ticks])
    axes.set_xlim(low, high)


def _seconds_tick(value: float) -> str:
    if value >= 60:
        return f"{value / 3600:g} h" if value >= 3600 else f"{value / 60:g} min"
    return f"{value:g} s" if value >= 1 else f"{value * 1e3:g} ms"


def _frame(figure: Figure, height: float, words: Words) -> None:
    """Write title and footnote at distances in inches, whatever the height."""
    figure.text(0.02, 1 - 0.18 / height, words.title, fontsize=15, fontweight="bold", va="top")
    figure.text(0.02, 1 - 0.52 / height, words.subtitle, fontsize=9.5, color=FAINT, va="top")
    figure.text(0.02, 0.12 / height, words.footnote, fontsize=8, color=FAINT, va="bottom")
    figure.subplots_adjust(
        left=0.082, right=0.985, top=1 - 1.22 / height, bottom=0.8 / height, wspace=0.17
    )


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, dpi=160, facecolor="white", metadata=metadata)
    plt.close(figure)
