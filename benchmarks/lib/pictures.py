"""The pictures of the results: what each of them shows, and says about itself."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes

from lib.bars import (
    ACCENT,
    GREYS,
    GRID,
    Bar,
    Panel,
    Words,
    draw_panels,
    grouped,
    panel,
    second_ticks,
    ticks_of,
)
from lib.naive import LIBRARIES
from lib.results import Row, Rows
from lib.tables import LABELS, human_bytes, human_seconds

GPU_BYTES, GPU_COLOUR = 80e9, "#c2410c"


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
    panels = lambda axes: _memory_bars(axes, rows), _time_bars(rows)
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
    byte_ticks(axes)
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


def _time_bars(rows: Rows) -> Panel:
    groups: dict[str, list[Bar]] = {}
    for row in rows:
        group = groups.setdefault(f"dim {row['dim']}", [])
        if _has_naive(row):
            estimate = row["naive"]["extrapolated_seconds"]
            text = f"~{human_seconds(estimate)}"
            group.append(Bar("naive", estimate, text, GREYS["official"], hatched=True))
        ours = row["kgfast"]["seconds"]
        group.append(Bar("kgfast", ours, human_seconds(ours), ACCENT))
    return panel("Time for the whole test set", groups, second_ticks, pad=16)


def draw_speed(rows: Rows, path: Path) -> None:
    """Rank counts of `eval_speed` by kgfast and its peers, and whole test sets beside PyKEEN."""
    words = Words(
        "The same ranks, sooner",
        f"RotatE, {rows[0]['entities']:,} entities. {_turns(rows[0])}",
        "Left: how many entities score above each target, and how many the same (KeOps: above "
        "only). Right: filtered, both sides; L2 is PyKEEN's RotatE. Log scales.\n"
        "Hatched: extrapolated from a few triples.",
    )
    draw_panels(path, 4.6, words, (_peer_bars(rows, "Rank counts"), _whole(rows)))


def draw_topk(rows: Rows, path: Path) -> None:
    """The best candidates of `topk_speed` by kgfast and its peers."""
    words = Words(
        "The best candidates, sooner",
        f"{rows[0]['entities']:,} entities. {_turns(rows[0])}",
        "Left: RotatE. Right: greedy decoding of output heads, beside matrix products and "
        "topk in chunks; one RotatE prediction,\nbeside PyKEEN's predict_target. Log scales.",
    )
    draw_panels(path, 4.6, words, (_peer_bars(rows, "The 10 best"), _topk(rows)))


def _peer_bars(rows: Rows, what: str) -> Panel:
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
    return panel(f"{what} of {raced[0]['batch']} queries, dim {dim}", groups, second_ticks)


def _whole(rows: Rows) -> Panel:
    whole = [row for row in rows if row["section"] == "whole" and row["seconds"]]
    groups = {
        f"dim {dim}": sorted(
            (_speed_bar(row, row["contender"]) for row in whole if row["dim"] == dim),
            key=lambda bar: -bar.value,
        )
        for dim in dict.fromkeys(row["dim"] for row in whole)
    }
    title = f"Whole test set: {whole[0]['queries']:,} queries"
    return panel(title, groups, second_ticks, inset=0.37)


def _topk(rows: Rows) -> Panel:
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
    return panel("Output heads, one prediction", groups, second_ticks)


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

    memory = {name: [_loss_memory(row) for row in group] for name, group in works.items()}
    seconds = {
        name: [_speed_bar(row, _loss_peer(row)) for row in group] for name, group in works.items()
    }
    panels = (
        panel("Memory beyond operands", memory, byte_ticks),
        panel("Forward and backward", seconds, second_ticks),
    )
    draw_panels(path, 2.15 + 1.1 * len(works), words, panels)


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

    seconds = [(row, row["seconds"]["median"], human_seconds) for row in ran]
    memory = [(row, row["memory"]["bytes"], human_bytes) for row in ran]
    panels = (
        panel("Time of a step", {"": [_step_bar(*it) for it in seconds]}, second_ticks),
        panel(
            "Peak memory beyond the model",
            {"": [_step_bar(*it) for it in memory]},
            lambda axes: ticks_of(axes, human_bytes),
        ),
    )
    draw_panels(path, 3.9, words, panels, left_width=1)


def draw_distributed_training(rows: Rows, path: Path) -> None:
    """How far losses of several processes are from one's, and the CPU time of their steps."""
    speeds = [row for row in rows if row["section"] == "speed"]
    curves = [row for row in rows if row["section"] == "curve"]
    words = Words(
        "Several processes, one run",
        f"{speeds[0]['steps']} steps of the same config, processes of one thread over gloo, on "
        f"{_where(speeds[0])}.",
        "Left: what is not 0 are losses over all entities, whose sums the processes share. "
        "Right: median CPU time of a step in each process. Log scales.",
    )

    def times(axes: Axes) -> None:
        groups: dict[str, list[Bar]] = {}
        for row in speeds:
            seconds, way = row["cpu_seconds_per_step"], f"{row['processes']} x {row['tables']}"
            colour = ACCENT if row["processes"] > 1 else GREYS["official"]
            group = groups.setdefault(row["name"].replace(", ", ",\n").replace("/", "/\n"), [])
            group.append(Bar(way, seconds, human_seconds(seconds), colour))
        grouped(axes, "CPU time of a step, of each process", groups, inset=0.3)
        second_ticks(axes)

    draw_panels(path, 2.15 + 1.1 * 5, words, (lambda axes: _curves(axes, curves), times))


def _curves(axes: Axes, rows: Rows) -> None:
    """Relative differences of losses, step by step."""
    axes.set_title("Difference of each step's loss", loc="left", fontweight="bold", pad=10)
    same = [row for row in rows if row["processes"] > 1 and not any(row["relative_differences"])]
    others = [row for row in rows if any(row["relative_differences"])]
    for row in same:
        axes.plot(row["relative_differences"], color=ACCENT, linewidth=2)
    for row, style in zip(others, ("-", "--", ":", "-."), strict=False):
        label = f"{row['name']}, {row['processes']} x {row['tables']}"
        axes.plot(row["relative_differences"], style, color=GPU_COLOUR, linewidth=1, label=label)
    names = ", ".join(dict.fromkeys(row["name"] for row in same))
    axes.plot([], color=ACCENT, linewidth=2, label=f"0: {names}")
    axes.set_yscale("symlog", linthresh=1e-8)
    axes.set_ylim(-1e-9, 1e-5)
    axes.set_xlabel("step")
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.legend(loc="upper left", frameon=False, fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


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

    memory, seconds = ({name: both[at] for name, both in systems.items()} for at in (0, 1))
    panels = (
        panel("Peak memory", memory, byte_ticks, inset=0.3),
        panel("Seconds of cores", seconds, second_ticks, inset=0.37),
    )
    draw_panels(path, 4.6, words, panels, left_width=1)


def named_bar(name: str, value: float, text: str) -> Bar:
    """Make a bar whose text begins with ``~`` where its value is a guess."""
    return Bar(name, value, text, _colour(name), hatched=text.startswith("~"))


def _step_bar(row: Row, value: float, text: Callable[[float], str]) -> Bar:
    name = row["contender"]
    return Bar(name.replace("pykeen", "PyKEEN"), value, text(value), _colour(name))


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


def byte_ticks(axes: Axes) -> None:
    """Label ticks without needless decimals: 10.0 GB is 10 GB."""

    def tick(value: float) -> str:
        number, unit = human_bytes(value).split()
        return f"{float(number):g} {unit}"

    ticks_of(axes, tick)
