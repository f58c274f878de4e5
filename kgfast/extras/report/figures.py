"""Figures of a report: SVG with the colours of the page, which can be dark."""

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any

from torch import Tensor

from kgfast.eval import Interval, Ranks
from kgfast.frames import needed
from kgfast.plots import draw, drawn_run

# Placeholder colours: each becomes a variable of the page's style.
INK, LINE, ACCENT, OTHER = "#010203", "#040506", "#070809", "#0a0b0c"
_VARIABLES = {INK: "--ink", LINE: "--line", ACCENT: "--accent", OTHER: "--other"}
_SIDES = {"tail": ACCENT, "head": OTHER, "relation": INK}
_EDGES = (1, 2, 3, 4, 6, 11, 21, 51)  # first ranks of the bins; then 101, 201, 501, 1001, ...
_TICKS = 18  # labels of the histogram that fit side by side
_STYLE = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": LINE,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": LINE,
    "legend.labelcolor": INK,
}
Parts = Mapping[Any, Mapping[str, Interval]]  # group -> side -> MRR
Titles = Mapping[str, str]  # group id -> text


def curves(run: Path) -> str:
    """Draw loss and MRR per step."""

    def paint(figure: Any) -> None:
        draw(figure, [drawn_run(run, ACCENT)], log=False)
        for axes in figure.axes:
            axes.set_title("", loc="left")
            _plain(axes)

    return _svg("curves", (7.6, 4.4), "Loss and MRR on valid per step", paint)


def rank_histogram(ranks: Ranks) -> str:
    """Draw the share of ranks in bins that widen, for each side."""
    edges = _bins(int(ranks.num_candidates.max()))
    labels = [_bin_name(first, past) for first, past in itertools.pairwise(edges)]
    shares = [_shares(ranks.realistic[:, place], edges) for place in range(len(ranks.sides))]

    def paint(figure: Any) -> dict[str, str]:
        axes = figure.subplots()
        titles = {}
        for place, side in enumerate(ranks.sides):
            for gid, share, label in zip(
                _bars(axes, place, ranks.sides, shares[place]), shares[place], labels, strict=True
            ):
                titles[gid] = f"{side}s ranked {label}: {share:.1%}"
        places = range(len(labels))[:: -math.ceil(len(labels) / _TICKS)]
        axes.set_xticks(places, [_short(edges[place + 1] - 1) for place in places])
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axes.set_xlabel("rank, up to")
        axes.set_ylabel("share of ranks")
        _plain(axes)
        return titles

    return _svg("histogram", (7.6, 2.9), "Histogram of ranks", paint)


def mrr_of_groups(name: str, title: str, groups: Parts) -> str:
    """Draw the MRR of groups as bars with intervals, one bar per side."""
    sides = list(next(iter(groups.values())))

    def paint(figure: Any) -> dict[str, str]:
        axes = figure.subplots()
        titles = {}
        for place, side in enumerate(sides):
            found = [of_sides[side] for of_sides in groups.values()]
            ids = _bars(axes, place, sides, [it.value for it in found])
            for index, (gid, group, it) in enumerate(zip(ids, groups, found, strict=True)):
                center = index + _offset(place, len(sides))
                axes.vlines(center, it.low, it.high, color=INK, linewidth=1)
                titles[gid] = f"{group}, {side}: MRR {it}"
        lines = ("", "\n" if len(groups) > 4 else "")  # many labels stand in two lines by turns
        names = [f"{lines[place % 2]}{group}" for place, group in enumerate(groups)]
        axes.set_xticks(range(len(groups)), names, size=8 if len(groups) > 5 else 10)
        axes.set_ylabel("MRR")
        axes.set_ylim(bottom=0)
        _plain(axes)
        return titles

    return _svg(name, (3.7, 2.9), title, paint)


def _bars(axes: Any, place: int, sides: Sequence[str], heights: Sequence[float]) -> list[str]:
    """Draw the bars of one side; return the group ids of the bars."""
    ids, side = [], sides[place]
    for index, height in enumerate(heights):
        ids.append(f"bar-{place}-{index}")
        axes.bar(
            [index + _offset(place, len(sides))],
            [height],
            0.75 / len(sides),
            color=_SIDES.get(side, ACCENT),
            label=f"{side}s" if index == 0 else None,
        )[0].set_gid(ids[-1])
    if place and place + 1 == len(sides):
        axes.legend(frameon=False, ncols=place + 1, loc="lower right", bbox_to_anchor=(1, 1))
    return ids


def _offset(place: int, sides: int) -> float:
    return 0.8 * ((place + 0.5) / sides - 0.5)


def _bins(most: int) -> list[int]:
    """Return the first ranks of bins up to ``most``, and ``most + 1``."""
    edges, step = list(_EDGES), 100
    while edges[-1] <= most:
        edges += [step + 1, 2 * step + 1, 5 * step + 1]
        step *= 10
    inside = [edge for edge in edges if edge <= most]
    return [*inside, most + 1]


def _bin_name(first: int, past: int) -> str:
    return str(first) if past == first + 1 else f"{first:,}-{past - 1:,}"


def _short(number: int) -> str:
    """Return a number of up to three digits and k or M."""
    for factor, unit in ((1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * factor:
            return f"{number / factor:.3g}{unit}"
    return str(number)


def _shares(ranks: Tensor, edges: Sequence[int]) -> list[float]:
    inside = [
        ((ranks >= first) & (ranks < past)).double().mean()
        for first, past in itertools.pairwise(edges)
    ]
    return [float(share) for share in inside]


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.6, linewidth=0.6)
    axes.set_axisbelow(True)


def _svg(
    name: str, size: tuple[float, float], title: str, paint: Callable[[Any], Titles | None]
) -> str:
    """Return the SVG of a figure; ``paint`` may return tooltips by group id."""
    matplotlib = needed("matplotlib", "kgfast report")
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):  # equal bytes each time
        figure = Figure(figsize=size, layout="constrained")
        titles = paint(figure)
        text = StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return _inline(text.getvalue(), name, title, titles or {}, "wide" if size[0] > 5 else "")


def _inline(svg: str, name: str, title: str, titles: Titles, of_class: str) -> str:
    """Turn an SVG file into a part of a page: own ids, colours of the page, no metadata."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    opening = svg[: svg.index(">")]
    view = re.search(r'viewBox="[^"]*"', opening)
    assert view is not None
    start = f'<svg {view[0]} role="img" aria-label="{escape(title)}" class="figure {of_class}"'
    svg = start + svg[len(opening) :]
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"xlink:href", "href", svg)
    for gid, said in titles.items():
        group = f'<g id="{name}-{gid}">'
        svg = svg.replace(group, f"{group}<title>{escape(said)}</title>")
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, f"var({variable})")
    return svg
