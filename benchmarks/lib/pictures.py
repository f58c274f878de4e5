"""The pictures of the results: what each of them shows, and says about itself."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from lib.bars import ACCENT, GREYS, Bar, Words, draw_panels, grouped, second_ticks, ticks_of
from lib.naive import LIBRARIES
from lib.results import Rows
from lib.tables import LABELS, human_bytes, human_seconds

GPU_BYTES, GPU_COLOUR = 80e9, "#c2410c"

Row = Mapping[str, Any]


def draw_memory(rows: Rows, path: Path) -> None:
    """Memory and time of `eval_mem`, one group of bars per dimension."""
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
    words = Words(
        _headline(row),
        f"Exact ranks, RotatE: {2 * graph['test_triples']:,} queries against "
        f"{graph['entities']:,} entities ({graph['name']} graph), both sides. {_where(row)}.",
        footnote,
    )
    panels = lambda axes: _memory_bars(axes, rows), lambda axes: _time_bars(axes, rows)
    draw_panels(path, 2.15 + 1.1 * len(rows), words, panels)


def _headline(row: Row) -> str:
    ours = row["kgfast"]
    memory, tensor = human_bytes(ours["bytes"]), human_bytes(row["formula"]["tensor"])
    if not _has_naive(row):
        return f"Filtered ranks at dim {row['dim']} in {memory} instead of {tensor}"
    naive_time = human_seconds(row["naive"]["extrapolated_seconds"])
    return (
        f"Filtered ranks at dim {row['dim']} in {memory} and {human_seconds(ours['seconds'])}, "
        f"not {tensor} and ~{naive_time}"
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
    ticks_of(axes, _bytes_tick)
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


def _time_bars(axes: Axes, rows: Rows) -> None:
    groups: dict[str, list[Bar]] = {}
    for row in rows:
        group = groups.setdefault(f"dim {row['dim']}", [])
        if _has_naive(row):
            estimate = row["naive"]["extrapolated_seconds"]
            text = f"~{human_seconds(estimate)}"
            group.append(Bar("naive", estimate, text, GREYS["official"], hatched=True))
        ours = row["kgfast"]["seconds"]
        group.append(Bar("kgfast", ours, human_seconds(ours), ACCENT))
    grouped(axes, "Time for the whole test set", groups, pad=16)
    second_ticks(axes)


def draw_speed(rows: Rows, path: Path) -> None:
    """Rank counts of `eval_speed` by kgfast and its peers, and whole test sets beside PyKEEN."""
    words = Words(
        "The same ranks, sooner",
        f"RotatE, {rows[0]['entities']:,} entities. {_turns(rows[0])}",
        "Left: how many entities score above each target, and how many the same (KeOps: above "
        "only). Right: filtered, both sides; L2 is PyKEEN's RotatE. Log scales.\n"
        "Hatched: extrapolated from a few triples.",
    )
    panels = lambda axes: _peer_bars(axes, rows, "Rank counts"), lambda axes: _whole(axes, rows)
    draw_panels(path, 4.6, words, panels)


def draw_topk(rows: Rows, path: Path) -> None:
    """The best candidates of `topk_speed` by kgfast and its peers."""
    words = Words(
        "The best candidates, sooner",
        f"{rows[0]['entities']:,} entities. {_turns(rows[0])}",
        "Left: RotatE. Right: greedy decoding of output heads, beside matrix products and "
        "topk in chunks; one RotatE prediction,\nbeside PyKEEN's predict_target. Log scales.",
    )
    panels = lambda axes: _peer_bars(axes, rows, "The 10 best"), lambda axes: _topk(axes, rows)
    draw_panels(path, 4.6, words, panels)


def _peer_bars(axes: Axes, rows: Rows, what: str) -> None:
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
    grouped(axes, f"{what} of {raced[0]['batch']} queries, dim {dim}", groups)
    second_ticks(axes)


def _whole(axes: Axes, rows: Rows) -> None:
    whole = [row for row in rows if row["section"] == "whole" and row["seconds"]]
    groups = {
        f"dim {dim}": sorted(
            (_speed_bar(row, row["contender"]) for row in whole if row["dim"] == dim),
            key=lambda bar: -bar.value,
        )
        for dim in dict.fromkeys(row["dim"] for row in whole)
    }
    grouped(axes, f"Whole test set: {whole[0]['queries']:,} queries", groups, inset=0.37)
    second_ticks(axes)


def _topk(axes: Axes, rows: Rows) -> None:
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
    grouped(axes, "Output heads, one prediction", groups)
    second_ticks(axes)


def _outputs(count: int) -> str:
    return f"{count / 1e6:.0f}M\noutputs" if count >= 1e6 else f"{count / 1e3:.0f}k\noutputs"


def draw_losses(rows: Rows, path: Path) -> None:
    """Memory and time of `loss_mem` at the largest batch, one group of bars per work."""
    rows = [row for row in rows if row["section"] == "bce" and row["seconds"]]
    batch = max(row["batch"] for row in rows)
    works: dict[str, list[Row]] = {}
    for row in rows:
        if row["batch"] == batch:
            works.setdefault(f"{row['score']}\n{row['entities']:,}", []).append(row)
    for group in works.values():
        group.sort(key=lambda row: row["contender"] == "kgfast")
    words = Words(
        "A loss over all entities, without their scores",
        f"Binary cross entropy of {batch:,} rows, dim {rows[0]['dim']}, {_where(rows[0])}.",
        "Dense: labels and scores of all entities; rotate in torch goes in chunks of entities. "
        "Hatched: one chunk measured, the whole extrapolated. Log scales.",
    )

    def memory(axes: Axes) -> None:
        groups = {name: [_loss_memory(row) for row in group] for name, group in works.items()}
        grouped(axes, "Memory beyond operands", groups)
        ticks_of(axes, _bytes_tick)

    def seconds(axes: Axes) -> None:
        groups = {
            name: [_speed_bar(row, _loss_peer(row)) for row in group]
            for name, group in works.items()
        }
        grouped(axes, "Forward and backward", groups)
        second_ticks(axes)

    draw_panels(path, 2.15 + 1.1 * len(works), words, (memory, seconds))


def _loss_memory(row: Row) -> Bar:
    size = row["bytes"]
    return Bar(_loss_peer(row), max(size, 1), human_bytes(size), _colour(row["contender"]))


def _loss_peer(row: Row) -> str:
    names = {"kgfast": "kgfast", "compile": "torch.compile"}
    return names.get(
        row["contender"], "torch, in chunks" if row["extrapolated"] else "torch, dense"
    )


def draw_training(rows: Rows, path: Path) -> None:
    """The contenders of `train_speed` that ran, the slowest on top."""
    ran = [row for row in rows if row["seconds"]]
    ran.sort(key=lambda row: -float(row["seconds"]["median"]))
    row = ran[0]
    words = Words(
        "The same steps, sooner",
        f"RotatE, dim {row['dim']}: {row['batch']} triples with {row['negatives']:,} negatives "
        f"each, {row['entities']:,} entities. All take turns on {_where(row)}; medians.",
        "Plain torch: the official code's formula on the same pool of negatives, dense Adam. "
        "PyKEEN: its own sLCWA loop.\nTuned: gradients of parts of the batch add up, the "
        "fastest of three sizes. Memory includes the optimizer's state. Log scales.",
    )

    def seconds(axes: Axes) -> None:
        values = [row["seconds"]["median"] for row in ran]
        grouped(axes, "Time of a step", {"": _step_bars(ran, values, human_seconds)})
        second_ticks(axes)

    def memory(axes: Axes) -> None:
        values = [row["memory"]["bytes"] for row in ran]
        grouped(axes, "Peak memory beyond the model", {"": _step_bars(ran, values, human_bytes)})
        ticks_of(axes, human_bytes)

    draw_panels(path, 3.9, words, (seconds, memory), left_width=1)


def draw_reports(systems: Mapping[str, tuple[Sequence[Bar], Sequence[Bar]]], path: Path) -> None:
    """Memory and time of what users reported: a group of bars per system."""
    words = Words(
        "What users ran out of memory for, as they meant it",
        "TracIn: ConvE, 100 tests x WN18RR's training set. Path-star: 40,000 samples, 10,000,000 "
        "outputs. Paths: 10^6 of three edges, forward and backward.",
        "Memory of each gradient and of logits: by formula; else measured, beyond tables and "
        "results. Seconds of cores of a shared machine; path-star's with 20,001\noutputs, of which "
        "logits fit. Hatched: extrapolated from a part of the work. Log scales.",
    )

    def memory(axes: Axes) -> None:
        groups = {name: of_both[0] for name, of_both in systems.items()}
        grouped(axes, "Peak memory", groups, inset=0.3)
        ticks_of(axes, _bytes_tick)

    def seconds(axes: Axes) -> None:
        groups = {name: of_both[1] for name, of_both in systems.items()}
        grouped(axes, "Seconds of cores", groups, inset=0.37)
        second_ticks(axes)

    draw_panels(path, 4.6, words, (memory, seconds), left_width=1)


def named_bar(name: str, value: float, text: str) -> Bar:
    """Make a bar whose text begins with ``~`` where its value is a guess."""
    return Bar(name, value, text, _colour(name), hatched=text.startswith("~"))


def _step_bars(rows: Rows, values: Sequence[float], text: Any) -> list[Bar]:
    return [
        Bar(
            row["contender"].replace("pykeen", "PyKEEN"),
            value,
            text(value),
            _colour(row["contender"]),
        )
        for row, value in zip(rows, values, strict=True)
    ]


def _speed_bar(row: Row, name: str) -> Bar:
    median, extrapolated = row["seconds"]["median"], row["extrapolated"]
    text = ("~" if extrapolated else "") + human_seconds(median)
    return Bar(name, median, text, _colour(name), hatched=extrapolated)


def _colour(name: str) -> str:
    return ACCENT if name.startswith("kgfast") else GREYS["official"]


def _turns(row: Row) -> str:
    return f"All contenders take turns on {_where(row)}; medians."


def _where(row: Row) -> str:
    about = row["machine"]
    if about["device"] == "cuda":
        return str(about["name"])
    return f"{about['name']}, {about['threads']} threads"


def _bytes_tick(value: float) -> str:
    """A tick's label without needless decimals: 10.0 GB is 10 GB."""
    number, unit = human_bytes(value).split()
    return f"{float(number):g} {unit}"
