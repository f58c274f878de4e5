"""Draw the pictures of docs/explanation and docs/how-to that explain an idea.

python tools/drawings.py        # writes docs/images/band.svg, sweep.svg, shards.svg, tracin.svg
"""

from html import escape
from pathlib import Path

from page_map import DOCS

FOLDER = DOCS / "images"
STYLE = """
  .drawing { font: 14px system-ui, sans-serif; }
  .drawing text { fill: #1f2937; }
  .drawing .strong { font-weight: 700; }
  .drawing .note { fill: #4b5563; font-size: 13px; }
  .drawing .box { fill: #f0fdfa; stroke: #0f766e; }
  .drawing .soft { fill: #e5e7eb; stroke: #9ca3af; }
  .drawing .band { fill: #fde68a; stroke: #d97706; }
  .drawing .gone { fill: none; stroke: #b91c1c; stroke-dasharray: 6 4; }
  .drawing .line { stroke: #4b5563; stroke-width: 1.5; fill: none; }
  .drawing .tip { fill: #4b5563; }
  .drawing .dot { fill: #0f766e; }
  .drawing .open { fill: #d97706; }
  .drawing .target { fill: #b91c1c; }
"""
DARK = """
  .drawing text { fill: #e5e7eb; }
  .drawing .note { fill: #9ca3af; }
  .drawing .box { fill: #134e4a; stroke: #2dd4bf; }
  .drawing .soft { fill: #374151; stroke: #6b7280; }
  .drawing .band { fill: #78350f; stroke: #fbbf24; }
  .drawing .gone { stroke: #f87171; }
  .drawing .line { stroke: #9ca3af; }
  .drawing .tip { fill: #9ca3af; }
  .drawing .dot { fill: #2dd4bf; }
  .drawing .open { fill: #fbbf24; }
  .drawing .target { fill: #f87171; }
"""


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    """Return a line of text."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def note(y: float, words: str) -> str:
    """Return a remark below a drawing."""
    return text(20, y, words, "note", "start")


def box(x: float, y: float, width: float, height: float, *lines: str, kind: str = "box") -> str:
    """Return a box with centred lines of text, the first of them bold."""
    top = y + height / 2 - 10 * (len(lines) - 1) + 5
    found = (
        text(x + width / 2, top + 20 * i, line, "note" if i else "strong")
        for i, line in enumerate(lines)
    )
    shape = f'class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"'
    return f"<rect {shape}/>" + "".join(found)


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    """Return a straight arrow, to the right or down."""
    if to_y == y:
        return (
            f'<path class="line" d="M{x:g} {y:g} H{to_x - 8:g}"/>'
            f'<path class="tip" d="M{to_x - 10:g} {y - 5:g} l10 5 l-10 5 z"/>'
        )
    return (
        f'<path class="line" d="M{x:g} {y:g} L{to_x:g} {to_y - 8:g}"/>'
        f'<path class="tip" d="M{to_x - 5:g} {to_y - 10:g} l5 10 l5 -10 z"/>'
    )


def curve(x: float, y: float, to_x: float, to_y: float) -> str:
    """Return a curved arrow to the right."""
    middle = (x + to_x) / 2
    return (
        f'<path class="line" d="M{x:g} {y:g} C{middle:g} {y:g} {middle:g} {to_y:g} '
        f'{to_x - 8:g} {to_y:g}"/>'
        f'<path class="tip" d="M{to_x - 10:g} {to_y - 5:g} l10 5 l-10 5 z"/>'
    )


def dot(x: float, y: float, kind: str = "dot") -> str:
    """Return a candidate on the axis of distances."""
    return f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="5"/>'


def band() -> str:
    """Draw exact counting: a float32 sweep, its band, and the pairs that float64 decides."""
    near = (60, 95, 150, 168, 214, 268, 291, 322)
    far = (492, 520, 561, 590, 640, 702, 735, 790, 858)
    return _svg(
        "Exact counting: sweep, band and canonical scores",
        920,
        270,
        text(20, 28, "1. Sweep: float32 distances of all candidates", "strong", "start"),
        '<rect class="band" x="352" y="48" width="116" height="62" rx="6"/>',
        text(410, 42, "band: 2 x bound", "note"),
        '<path class="line" d="M20 80 H900"/>',
        *(dot(x, 80) for x in (*near, *far)),
        *(dot(x, 80, "open") for x in (372, 388, 441)),
        '<path class="target" d="M410 68 l7 12 l-7 12 l-7 -12 z"/>',
        text(410, 126, "target", "note"),
        text(190, 126, "proven nearer: counted as greater", "note"),
        text(690, 126, "proven farther: not counted", "note"),
        arrow(410, 132, 410, 164),
        text(20, 190, "2. Canonical scores: float64, in a fixed order", "strong", "start"),
        box(250, 200, 320, 56, "3 open pairs decided by definition", "2 greater, 0 equal"),
        box(620, 200, 280, 56, "rank = 1 + 8 + 2 = 11", "the same integer on every machine"),
        arrow(570, 228, 620, 228),
    )


def sweep() -> str:
    """Draw ranks, top-k and facts as one sweep."""
    parts = [
        box(20, 60, 150, 60, "queries", "[B, D]"),
        box(20, 170, 150, 60, "candidates", "[N, D], in panels", kind="soft"),
        box(250, 95, 190, 100, "one tile of scores", "in registers or cache", "never written"),
        curve(170, 90, 250, 125),
        curve(170, 200, 250, 165),
    ]
    uses = (
        ("rank", "add 1 where a score beats the target"),
        ("topk", "keep the k best of each query"),
        ("above", "keep scores that reach a threshold"),
        ("top_facts", "keep the k best of all queries"),
        ("losses", "add up the loss and its slopes"),
    )
    for i, (name, what) in enumerate(uses):
        y = 12 + 56 * i
        parts += [
            curve(440, 145, 520, y + 22),
            box(520, y, 130, 44, name),
            text(664, y + 27, what, "note", "start"),
        ]
    parts += [
        '<rect class="gone" x="20" y="258" width="420" height="34" rx="6"/>',
        text(230, 280, "[B, N] scores and [B, N, D] differences do not exist", "note"),
    ]
    return _svg("One sweep serves ranks, top-k, facts and losses", 920, 304, *parts)


def shards() -> str:
    """Draw how counts of shards add up."""
    parts = [box(20, 20, 200, 50, "queries and targets", "sent to every process")]
    for i, counts in enumerate(("greater 3, equal 0", "greater 0, equal 1", "greater 4, equal 0")):
        x = 270 + 220 * i
        parts += [
            box(x, 20, 190, 50, f"process {i}", f"rows of shard {i}", kind="soft"),
            arrow(x + 95, 70, x + 95, 110),
            box(x, 110, 190, 50, "counts of its rows", counts),
            arrow(x + 95, 160, 590 + 20 * (i - 1), 206),
        ]
    parts += [
        arrow(220, 45, 270, 45),
        box(430, 206, 320, 54, "add up: greater 7, equal 1", "the integers of one process"),
        note(238, "48 bytes a query, whatever the table's size"),
    ]
    return _svg("Shards: each process counts its rows, and counts add up", 920, 276, *parts)


def tracin() -> str:
    """Draw TracIn: gradients at checkpoints, and their inner products."""
    parts = [
        box(20, 30, 210, 56, "training triple z", "gradient of its loss"),
        box(20, 150, 210, 56, "test triple z'", "gradient of its loss"),
    ]
    for i, name in enumerate(("checkpoint 1", "checkpoint 2", "checkpoint 3")):
        x = 290 + 140 * i
        parts += [
            box(x, 30, 120, 176, name, "rate x", "g(z) . g(z')", kind="soft"),
            arrow(x - (60 if i == 0 else 20), 118, x, 118) if i else "",
        ]
    parts += [
        arrow(230, 58, 290, 58),
        arrow(230, 178, 290, 178),
        arrow(690, 118, 740, 118),
        box(740, 84, 160, 68, "influence", "sum over checkpoints"),
        note(240, "Above 0: z lowered the loss of z' (a proponent). Below 0: an opponent."),
        note(262, "For dot scores g is s q^T, so (s . s') (q . q' + 1) replaces the gradients."),
    ]
    return _svg("TracIn: products of gradients, summed over checkpoints", 920, 276, *parts)


DRAWINGS = {"band": band, "sweep": sweep, "shards": shards, "tracin": tracin}


def _svg(label: str, width: int, height: int, *parts: str) -> str:
    dark = f"@media (prefers-color-scheme: dark) {{{DARK}}}"
    return (
        f'<svg class="drawing" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(label)}"><style>{STYLE}{dark}</style>\n'
        + "\n".join(filter(None, parts))  # a blank line would end the block of HTML in a page
        + "\n</svg>\n"
    )


def main() -> None:
    """Write all drawings."""
    for name, draw in DRAWINGS.items():
        Path(FOLDER, f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
