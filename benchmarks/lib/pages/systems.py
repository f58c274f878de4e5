"""Blocks and the picture of three systems that users reported: TracIn, path-star and paths."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lib.columns import INFLUENCES, PATHS
from lib.pages import sources, with_sources
from lib.results import Row, Rows, of_section, read_rows
from lib.tables import Columns, cell_of, human_bytes, human_seconds, markdown, markdown_row

INFLUENCE, PATHS_FILE, STAR = (
    f"cpu-{name}.json" for name in ("influence-speed", "paths-speed", "path-star")
)
STAR_TRAINING = "cpu-path-star-training.json"
PICTURE = "cpu-reports.png"
Text = Callable[[float], str]

STAR_WORKS = {
    "greedy": "the best output",
    "sample": "a draw",
    "generate": "{positions} positions by the GPT, trunk included",
    "step, nodes": "a training step, softmax over the nodes in use",
    "step, sampled": "a training step, sampled softmax with {negatives:,} negatives",
    "step, full": "loss and gradients, softmax over the vocabulary",
}
STAR_COLUMNS: Columns = (
    ("what", lambda row: cell_of(row, STAR_WORKS[row["section"]])),
    ("by", lambda row: "kgfast" if row["contender"] == "kgfast" else "torch, logits held"),
    ("samples:", "{samples:,}"),
    ("outputs:", lambda row: f"{row.get('candidates', row['vocabulary']):,}"),
    ("seconds:", "{seconds:,.1f}"),
    ("CPU seconds:", "{cpu_seconds:,.1f}"),
    ("peak memory:", "{bytes:bytes}"),
    ("logits, by formula:", "{dense_bytes:bytes}"),
)


def influence(folder: Path) -> str:
    """Write a row of each contender and graph."""
    everything = read_rows(folder / INFLUENCE)
    rows = [row for row in everything if row["section"] != "part"]
    graphs = dict.fromkeys(row["dataset"] for row in everything)
    parts = [_part([row for row in everything if row["dataset"] == it]) for it in graphs]
    return "\n".join([*markdown(INFLUENCES, rows), "", "\n\n".join(parts), "", *sources([rows])])


def _part(rows: Rows) -> str:
    """Say what a part without many equal queries took, and how much of captum was measured."""
    ours, *others = of_section(rows, "part")
    best = min(others, key=lambda row: float(row["cpu_seconds"]))
    whole, last = of_section(rows, "whole")[0], rows[-1]
    guessed = last.get("extrapolated_from")
    end = f"; captum's time for all is extrapolated from {guessed:,} (~)." if guessed else "."
    return (
        f"{whole['dataset']}: gradients of each example, by formula, "
        f"{human_bytes(whole['naive_bytes'])}; the first {ours['examples']:,} examples take kgfast "
        f"{ours['cpu_seconds']:.2f} and captum (batch {best['batch']}) {best['cpu_seconds']:.2f} "
        f"seconds of cores, {best['cpu_seconds_ratio']:.1f}x; values differ by "
        f"{last['relative_difference']:.0e} of the largest{end}"
    )


def paths(folder: Path) -> str:
    """Write a row of each contender and number of paths."""
    rows = read_rows(folder / PATHS_FILE)
    threads, rounds = rows[0]["machine"]["threads"], rows[0]["seconds"]["rounds"]
    told = (
        f"{threads} thread{'s' * (threads != 1)}, {rounds} turn{'s' * (rounds != 1)} each, medians."
    )
    return "\n".join([*markdown(PATHS, rows), "", told, "", *sources([rows])])


def path_star(folder: Path) -> str:
    """Write what was measured, and the losses of a training."""
    measured, trained = (read_rows(folder / name) for name in (STAR, STAR_TRAINING))
    return f"{with_sources(measured, STAR_COLUMNS)}\n\n{_curve(trained)}"


def _curve(rows: Rows) -> str:
    """Write the losses of a training, and how many paths are right after it."""
    run = rows[0]
    config, places = run["config"], run["curve"]
    some = [*places[:: max(1, len(places) // 6)], places[-1]]
    some = [it for at, it in enumerate(some) if it not in some[:at]]
    shares = ", ".join(f"{it['right']:.1%} of {it['paths']:,} ({it['of']})" for it in run["shares"])
    lines = [
        f"Training: {config['graph_d']:,} arms of {config['graph_l']}, "
        f"{config['graph_vocab_size']:,} tokens, batches of {config['batch_size']:,}. Paths "
        f"that come out right: {shares}; by chance one in {config['graph_d']:,} begins with the "
        "right arm.",
        "",
        markdown_row("batches", *(f"{it['batch']:,}" for it in some)),
        f"|---|{'---:|' * len(some)}",
        markdown_row("mean loss of the last 100", *(f"{it['loss']:.3f}" for it in some)),
        markdown_row("seconds of cores", *(f"{it['cpu_seconds']:.0f}" for it in some)),
        "",
    ]
    return "\n".join([*lines, *sources([rows])])


def draw(folder: Path) -> None:
    """Draw the picture of the three systems."""
    from lib.pictures import draw_reports

    draw_reports(dict(_systems(folder)), folder / PICTURE)


def _systems(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield each system with its bars of memory and of time: the way without kgfast, and kgfast."""
    rows = read_rows(folder / INFLUENCE)
    rows = [row for row in rows if row["dataset"] == rows[0]["dataset"]]
    whole, (raced, captum) = rows[0], of_section(rows, "captum")
    guess = "~" if captum.get("extrapolated_from") else ""
    yield (
        "TracIn",
        (
            _pair("each gradient", whole["naive_bytes"], whole["peak_bytes"], human_bytes),
            _pair("captum", captum["cpu_seconds"], raced["cpu_seconds"], human_seconds, guess),
        ),
    )
    greedy = of_section(read_rows(folder / STAR), "greedy")
    greedy = [row for row in greedy if row["samples"] == 40_000]
    largest = next(row for row in greedy if row["dense_bytes"] > 1e12)
    fitting = [row for row in greedy if "candidates" in row]
    ours, dense = (_of(fitting, name)["cpu_seconds"] for name in ("kgfast", "dense"))
    yield (
        "path-\nstar",
        (
            _pair("logits", largest["dense_bytes"], largest["bytes"], human_bytes),
            _pair("logits", dense, ours, human_seconds),
        ),
    )
    timed = [row for row in read_rows(folder / PATHS_FILE) if row["seconds"]]
    count = min((row["paths"] for row in timed), key=lambda paths: abs(paths - 1e6))
    timed = [row for row in timed if row["paths"] == count]
    streamed, held = (_of(timed, name) for name in ("kgfast", "held"))
    seconds = [row["cpu_seconds"]["median"] for row in (held, streamed)]
    yield (
        "paths",
        (
            _pair("all held", held["bytes"], streamed["bytes"], human_bytes),
            _pair("all held", *seconds, human_seconds),
        ),
    )


def _of(rows: Rows, contender: str) -> Row:
    return next(row for row in rows if row["contender"] == contender)


def _pair(name: str, slow: float, ours: float, text: Text, guess: str = "") -> list[Any]:
    from lib.pictures import named_bar

    return [named_bar(name, slow, guess + text(slow)), named_bar("kgfast", ours, text(ours))]
