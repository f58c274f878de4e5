"""Figures of a report: SVG with the colours of the page, which can be dark."""

import itertools
import re
from collections.abc import Callable, Mapping
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from kgfast.eval import Interval, Ranks
from kgfast.frames import needed
from kgfast.training import read_rows

# Placeholder colours: each becomes a variable of the page's style.
INK, LINE, ACCENT, OTHER = "#010203", "#040506", "#070809", "#0a0b0c"
VARIABLES = {INK: "--ink", LINE: "--line", ACCENT: "--accent", OTHER: "--other"}
_SIDES = {"tail": ACCENT, "head": OTHER, "relation": INK}
_EDGES = (1, 2, 3, 4, 6, 11, 31, *(m * 10**k + 1 for k in range(2, 10) for m in (1, 3)))
_CURVES = (("mrr", "MRR", "-"), ("hits@10", "hits@10", ":"))
_STYLE = {
    **{"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10},
    **dict.fromkeys(("text.color", "axes.labelcolor", "legend.labelcolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), LINE),
}
Groups = Mapping[Any, Mapping[str, Interval]]  # group -> side -> height of the bar


def curves(run: Path) -> str:
    """Draw loss, MRR and hits@10 on valid per step; a pale line for a narrow sub-model."""
    rows = read_rows(run)
    losses = [row for row in rows if not row.get("split") and row.get("loss") is not None]
    valid = [row for row in rows if row.get("split") == "valid"]
    dims = sorted({row["dim"] for row in valid if row.get("dim")}) or [None]

    def paint(figure: Any) -> None:
        above, below = figure.subplots(2, 1, sharex=True)
        above.plot([row["step"] for row in losses], [row["loss"] for row in losses], color=ACCENT)
        for key, name, style in _CURVES:
            for place, dim in enumerate(dims, 1):
                points = [
                    row for row in valid if row.get("dim") == dim and row.get(key) is not None
                ]
                below.plot(
                    [row["step"] for row in points],
                    [row[key] for row in points],
                    color=ACCENT,
                    linestyle=style,
                    alpha=place / len(dims),
                    label=name if dim is None else f"{name}, {dim}",
                )
        above.set_ylabel("loss")
        below.set(ylabel="valid, filtered", xlabel="step", ylim=(0, None))
        below.legend(frameon=False, fontsize="small")

    return _svg("curves", (7.6, 4.4), "Loss and MRR on valid per step", paint)


def shares_of_ranks(ranks: Ranks) -> Groups:
    """Return the share of ranks in bins that widen, in percent, for each side."""
    from matplotlib.ticker import EngFormatter

    short, most = EngFormatter(sep=""), int(ranks.num_candidates.max())
    edges = [*(edge for edge in _EDGES if edge <= most), most + 1]
    shares = {
        side: 100 * np.histogram(ranks.realistic[:, place].cpu().numpy(), edges)[0] / len(ranks)
        for place, side in enumerate(ranks.sides)
    }
    return {
        short(past - 1): {
            str(side): Interval(*[values[place]] * 3) for side, values in shares.items()
        }
        for place, (_, past) in enumerate(itertools.pairwise(edges))
    }


def bars(name: str, size: tuple[float, float], title: str, label: str, groups: Groups) -> str:
    """Draw bars with intervals, one per group and side."""
    sides = list(next(iter(groups.values())))

    def paint(figure: Any) -> None:
        axes, width = figure.subplots(), 0.8 / len(sides)
        for place, side in enumerate(sides):
            centers = np.arange(len(groups)) + width * (place - (len(sides) - 1) / 2)
            value, low, high = zip(*(of_sides[side] for of_sides in groups.values()), strict=True)
            color = _SIDES.get(side, ACCENT)
            axes.bar(centers, value, 0.94 * width, color=color, label=f"{side}s")
            axes.vlines(centers, low, high, INK, linewidth=1)
        if len(sides) > 1:
            axes.legend(frameon=False, ncols=len(sides), loc="lower right", bbox_to_anchor=(1, 1))
        is_narrow = size[0] < 5 and len(groups) > 4  # labels stand in two lines by turns
        lines = ("", "\n" if is_narrow else "")
        names = [f"{lines[place % 2]}{group}" for place, group in enumerate(groups)]
        axes.set_xticks(range(len(groups)), names, size=8 if is_narrow else 10)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)

    return _svg(name, size, title, paint)


def _svg(name: str, size: tuple[float, float], title: str, paint: Callable[[Any], None]) -> str:
    """Return a figure for a place in a page: own ids, colours of the page, no metadata."""
    from matplotlib.figure import Figure

    matplotlib = needed("matplotlib", "kgfast report", '"kgfast[report]"')

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
