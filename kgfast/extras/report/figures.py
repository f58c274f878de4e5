"""Figures of a report: SVG with the colours of the page, which can be dark."""

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from kgfast.eval import Interval, Ranks
from kgfast.frames import needed
from kgfast.plots import draw

# Placeholder colours: each becomes a variable of the page's style.
INK, LINE, ACCENT, OTHER = "#010203", "#040506", "#070809", "#0a0b0c"
VARIABLES = {INK: "--ink", LINE: "--line", ACCENT: "--accent", OTHER: "--other"}
_SIDES = {"tail": ACCENT, "head": OTHER, "relation": INK}
_EDGES = (1, 2, 3, 4, 6, 11, 21, 51, *(m * 10**k + 1 for k in range(2, 10) for m in (1, 2, 5)))
_TICKS = 18  # labels of the histogram that fit side by side
_STYLE = {
    **{"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10},
    **dict.fromkeys(("text.color", "axes.labelcolor", "legend.labelcolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), LINE),
}
Parts = Mapping[Any, Mapping[str, Interval]]  # group -> side -> MRR


def curves(run: Path) -> str:
    """Draw loss and MRR per step."""

    def paint(figure: Any) -> None:
        draw(figure, [run], [ACCENT])
        figure.axes[0].set_title("", loc="left")

    return _svg("curves", (7.6, 4.4), "Loss and MRR on valid per step", paint)


def rank_histogram(ranks: Ranks) -> str:
    """Draw the share of ranks in bins that widen, for each side."""
    from matplotlib.ticker import EngFormatter, PercentFormatter

    most = int(ranks.num_candidates.max())
    edges = [*(edge for edge in _EDGES if edge <= most), most + 1]
    bins = [
        str(first) if past == first + 1 else f"{first:,}-{past - 1:,}"
        for first, past in itertools.pairwise(edges)
    ]
    shares, titles = {}, {}
    for place, side in enumerate(ranks.sides):
        counts, _ = np.histogram(ranks.realistic[:, place].cpu().numpy(), edges)
        shares[side] = counts / len(ranks)
        titles[side] = [
            f"{side}s ranked {it}: {share:.1%}"
            for it, share in zip(bins, shares[side], strict=True)
        ]

    def finish(axes: Any) -> None:
        places = range(len(bins))[:: -math.ceil(len(bins) / _TICKS)]
        short = EngFormatter(sep="")
        axes.set_xticks(places, [short(edges[place + 1] - 1) for place in places])
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set(xlabel="rank, up to", ylabel="share of ranks")

    return _bars("histogram", (7.6, 2.9), "Histogram of ranks", shares, titles, finish)


def mrr_of_groups(name: str, title: str, groups: Parts) -> str:
    """Draw the MRR of groups as bars with intervals, one bar per side."""
    sides = list(next(iter(groups.values())))
    found = {side: [of_sides[side] for of_sides in groups.values()] for side in sides}
    titles = {
        side: [f"{group}, {side}: MRR {it}" for group, it in zip(groups, found[side], strict=True)]
        for side in sides
    }

    def finish(axes: Any) -> None:
        for side, bars in zip(sides, axes.containers, strict=True):
            for bar, it in zip(bars, found[side], strict=True):
                axes.vlines(bar.get_x() + bar.get_width() / 2, it.low, it.high, INK, linewidth=1)
        lines = ("", "\n" if len(groups) > 4 else "")  # many labels stand in two lines by turns
        names = [f"{lines[place % 2]}{group}" for place, group in enumerate(groups)]
        axes.set_xticks(range(len(groups)), names, size=8 if len(groups) > 5 else 10)
        axes.set_ylabel("MRR")
        axes.set_ylim(bottom=0)

    heights = {side: [it.value for it in found[side]] for side in sides}
    return _bars(name, (3.7, 2.9), title, heights, titles, finish)


def _bars(
    name: str,
    size: tuple[float, float],
    title: str,
    heights: Mapping[Any, Any],
    titles: Mapping[Any, Sequence[str]],
    finish: Callable[[Any], None],
) -> str:
    """Draw a bar for each height of each side; titles are shown where the pointer rests."""

    def paint(figure: Any) -> None:
        axes = figure.subplots()
        for place, (side, values) in enumerate(heights.items()):
            centers = np.arange(len(values)) + 0.8 * ((place + 0.5) / len(heights) - 0.5)
            color, width = _SIDES.get(side, ACCENT), 0.75 / len(heights)
            for index, bar in enumerate(
                axes.bar(centers, values, width, color=color, label=f"{side}s")
            ):
                bar.set_gid(f"bar-{side}-{index}")
        if len(heights) > 1:
            axes.legend(frameon=False, ncols=len(heights), loc="lower right", bbox_to_anchor=(1, 1))
        finish(axes)

    svg = _svg(name, size, title, paint)
    for side, texts in titles.items():
        for index, text in enumerate(texts):
            group = f'<g id="{name}-bar-{side}-{index}">'
            svg = svg.replace(group, f"{group}<title>{escape(text)}</title>")
    return svg


def _svg(name: str, size: tuple[float, float], title: str, paint: Callable[[Any], None]) -> str:
    """Return a figure as a part of a page: own ids, colours of the page, no metadata."""
    from matplotlib.figure import Figure

    matplotlib = needed("matplotlib", "kgfast report")

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):  # equal bytes each time
        figure = Figure(figsize=size, layout="constrained")
        paint(figure)
        for axes in figure.axes:
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", alpha=0.6, linewidth=0.6)
            axes.set_axisbelow(True)
        text = StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    _, _, svg = text.getvalue().partition("<svg ")
    wide = "wide" if size[0] > 5 else ""
    svg = f'<svg role="img" aria-label="{escape(title)}" class="figure {wide}" {svg}'
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg).replace("xlink:href", "href")
    for color, variable in VARIABLES.items():
        svg = svg.replace(color, f"var({variable})")
    return svg
