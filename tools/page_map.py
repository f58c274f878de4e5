"""Draw the map of docs/: which page a reader needs.

    python tools/page_map.py        # writes docs/images/which_page.svg

The home page shows the drawing inline (``docs_hooks.py``), so that each box is a link.
"""

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
MAP = DOCS / "images" / "which_page.svg"
Pages = Mapping[str, str]  # label of each page, by its path below docs/, without suffix

# Columns from left to right: their title, and for each need the pages that serve it.
COLUMNS: Mapping[str, Mapping[str, Pages]] = {
    "I have": {
        "a model of another library": {
            "tutorials/pykeen": "PyKEEN",
            "how-to/libkge": "LibKGE",
            "how-to/official": "official RotatE code",
            "how-to/pyg": "PyG",
            "how-to/dglke": "DGL-KE",
            "how-to/ogb": "OGB",
            "how-to/recbole": "RecBole",
            "reference/options": "options of each library",
        },
        "embeddings of my own": {
            "tutorials/own_tables": "from arrays to a service",
            "how-to/tables": "tables larger than memory",
            "how-to/retrieval": "retrieval: mteb",
            "how-to/alignment": "entity alignment",
        },
        "a scoring function or a network": {
            "how-to/any_scorer": "any scorer",
            "how-to/encoders": "an encoder",
            "how-to/own_model": "train a model of mine",
        },
        "triples, and no model yet": {
            "tutorials/train_and_publish": "train and publish",
            "how-to/train": "train a model",
            "how-to/data": "data sets",
            "reference/config": "train: all keys",
            "reference/losses": "losses",
            "how-to/med_rscf": "MED and RSCF",
            "how-to/search": "search for a config",
            "how-to/callbacks": "callbacks: W&B, MLflow",
        },
    },
    "I want": {
        "numbers to publish": {
            "tutorials/first_ranking": "my first ranking",
            "how-to/ranks": "ranks and metrics",
            "explanation/sampled_vs_exact": "sampled or exact ranks",
            "how-to/relations": "ranks of relations",
            "how-to/classify": "classes, typed candidates",
            "reference/results": "results of the configs",
            "reference/speed": "speed and memory",
        },
        "answers and new facts": {
            "how-to/predictions": "predictions",
            "how-to/above": "all above a threshold",
            "how-to/prepared": "few queries at a time",
            "how-to/serve": "serve a model over HTTP",
            "reference/http": "HTTP requests",
        },
        "to know why": {"how-to/influence": "influential triples"},
        "another large sum": {
            "how-to/heads": "output layers",
            "how-to/siglip": "image-text pairs",
            "how-to/paths": "sums over paths",
            "explanation/reports": "five users' reports",
        },
    },
    "And": {
        "one machine is not enough": {
            "explanation/scale": "past one machine",
            "how-to/graphs": "graphs larger than memory",
            "reference/gpu": "GPUs",
        },
        "can I trust the numbers?": {
            "explanation/streaming": "why it is small",
            "explanation/exactness": "why ranks are exact",
            "explanation/tiers": "fast tiers",
            "reference/reliability": "reliability",
            "reference/stability": "promises",
        },
        "every name and format": {
            "reference/api": "the API",
            "reference/cli": "the command line",
            "reference/files": "file formats",
            "reference/glossary": "glossary",
        },
    },
}

WIDTH, COLUMN, GAP = 982, 300, 40
CHIP, LINE, PAD, LETTER = 30, 38, 16, 7.4  # heights of a chip and its line; width of a letter
STYLE = """
  .map { font: 14px system-ui, sans-serif; }
  .map .title { font-size: 20px; font-weight: 700; fill: #0f766e; }
  .map .need { font-weight: 600; fill: #1f2937; }
  .map .box { fill: #f0fdfa; stroke: #99f6e4; }
  .map .chip { fill: #ffffff; stroke: #0f766e; }
  .map .label { fill: #115e59; }
  .map a:hover .chip { fill: #ccfbf1; }
  .map .arrow { fill: #5eead4; }
"""
DARK = """
  .map .title, .map .label { fill: #5eead4; }
  .map .need { fill: #e5e7eb; }
  .map .box { fill: #134e4a55; stroke: #115e59; }
  .map .chip { fill: #1f2937; stroke: #2dd4bf; }
  .map a:hover .chip { fill: #115e59; }
  .map .arrow { fill: #0f766e; }
"""


def draw() -> str:
    """Return the map as SVG."""
    parts, height = [], 0
    for i, (title, needs) in enumerate(COLUMNS.items()):
        x, y = 1 + i * (COLUMN + GAP), 30
        parts.append(f'<text class="title" x="{x + PAD}" y="{y}">{escape(title)}</text>')
        if i:
            tip = x - 8
            parts.append(f'<path class="arrow" d="M{tip - 24} 15 L{tip} 24 L{tip - 24} 33 z"/>')
        y += 18
        for need, pages in needs.items():
            box, tall = _box(need, pages, x, y)
            parts.append(box)
            y += tall + PAD
        height = max(height, y)
    dark = f"@media (prefers-color-scheme: dark) {{{DARK}}}"
    return (
        f'<svg class="map" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" aria-label="Which page do I need"><style>{STYLE}{dark}</style>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _box(need: str, pages: Pages, x: int, y: int) -> tuple[str, int]:
    """Draw a need with its pages; also return the height of the box."""
    chips, line, right = [], 0, x + PAD
    for page, label in pages.items():
        width = round(len(label) * LETTER) + 2 * PAD
        if right + width > x + COLUMN - PAD + 1:
            line, right = line + 1, x + PAD
        top = y + 36 + line * LINE
        chips.append(_chip(page, label, right, top, width))
        right += width + 8
    tall = 36 + (line + 1) * LINE + 4
    return (
        f'<rect class="box" x="{x}" y="{y}" width="{COLUMN}" height="{tall}" rx="10"/>'
        f'<text class="need" x="{x + PAD}" y="{y + 24}">{escape(need)}</text>' + "".join(chips),
        tall,
    )


def _chip(page: str, label: str, x: int, y: int, width: int) -> str:
    return (
        f'<a href="{page}.html"><rect class="chip" x="{x}" y="{y}" width="{width}" '
        f'height="{CHIP}" rx="15"/><text class="label" text-anchor="middle" '
        f'x="{x + width / 2:g}" y="{y + 20}">{escape(label)}</text></a>'
    )


def pages_of_map() -> Iterator[str]:
    """Yield the path of each page on the map, without suffix."""
    for needs in COLUMNS.values():
        for pages in needs.values():
            yield from pages


if __name__ == "__main__":
    MAP.write_text(draw(), encoding="utf-8")
