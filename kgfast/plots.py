"""Pictures of runs: loss and MRR per step, and MRR on the test set."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kgfast.frames import needed
from kgfast.training.logs import read_rows
from kgfast.training.run_folder import RunFolder

_METRICS = (("mrr", "MRR", "-"), ("hits@10", "hits@10", ":"))
# Okabe & Ito's colours, which colour-blind people can tell apart; green first.
_COLORS = ("#009e73", "#0072b2", "#d55e00", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#f0e442")

Run = str | os.PathLike[str]


def plot(
    runs: Run | Sequence[Run], out: str | os.PathLike[str] | None = None, *, log: bool = False
) -> list[Path]:
    """Draw the logs of run folders in one picture.

    The picture shows loss and MRR on valid per step and, for finished runs, MRR on the test set as
    a star; for a single run also hits@10.

    Parameters
    ----------
    runs
        One run folder or several.
    out
        The path of the pictures, a ``.png`` and an ``.svg``; ``<run>/metrics`` by default for a
        single run.
    log : bool
        Use a logarithmic axis for the loss.

    Returns
    -------
    list of Path
        The two files.

    Raises
    ------
    FileNotFoundError
        If a folder has no logs.
    ValueError
        If there is no run, a log is damaged, or there are several runs and no ``out``.
    ImportError
        If matplotlib is not installed.
    """
    folders = (
        [Path(runs)] if isinstance(runs, str | os.PathLike) else [Path(folder) for folder in runs]
    )
    if not folders:
        raise ValueError("runs must name at least one folder")
    if out is None and len(folders) > 1:
        raise ValueError("say with --out where to put the picture of several runs")
    stem = folders[0] / "metrics" if out is None else Path(out)
    colors = [_COLORS[place % len(_COLORS)] for place in range(len(folders))]
    matplotlib = needed("matplotlib", "kgfast plot")
    from matplotlib.figure import Figure

    if stem.suffix in (".png", ".svg"):
        stem = stem.with_suffix("")
    same_bytes_each_time = {"svg.hashsalt": "kgfast", "svg.fonttype": "none"}
    with matplotlib.rc_context(same_bytes_each_time):
        figure = Figure(figsize=(7, 5), layout="constrained")
        draw(figure, folders, colors, log=log)
        stem.parent.mkdir(parents=True, exist_ok=True)
        paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
        figure.savefig(paths[0], dpi=160)
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def draw(figure: Any, runs: Sequence[Path], colors: Sequence[str], *, log: bool = False) -> None:
    """Draw runs in a figure, the loss above the metrics; raise a FileNotFoundError without logs."""
    loss_axes, metric_axes = figure.subplots(2, 1, sharex=True)
    is_alone = len(runs) == 1
    for folder, color, name in zip(runs, colors, _names(runs), strict=True):
        rows = read_rows(folder)
        if not rows:
            raise FileNotFoundError(f"{folder}: no rows in metrics.jsonl; is it a run folder?")
        training = [row for row in rows if not row.get("split") and row.get("loss") is not None]
        steps, losses = ([row[key] for row in training] for key in ("step", "loss"))
        loss_axes.plot(steps, losses, color=color, linewidth=1, label=name)
        valid = [row for row in rows if row.get("split") == "valid"]
        dims = sorted({row["dim"] for row in valid if row.get("dim")})
        begin = "" if is_alone else f"{name}, "
        for key, label, style in _METRICS[: None if is_alone else 1]:
            for place, dim in enumerate(dims or [None], 1):
                points = [it for it in valid if it.get(key) is not None and it.get("dim") == dim]
                if points:
                    metric_axes.plot(
                        [row["step"] for row in points],
                        [row[key] for row in points],
                        style,
                        color=color,
                        alpha=place / max(1, len(dims)),  # narrower sub-models are paler
                        marker="o",
                        markersize=3,
                        label=f"{begin}{label}" + ("" if dim is None else f", {dim}"),
                    )
        _draw_test(metric_axes, folder, color, begin)
    if log:
        loss_axes.set_yscale("log")
    loss_axes.set_ylabel("loss")
    if is_alone:
        loss_axes.set_title(_names(runs)[0], loc="left")
    else:
        loss_axes.legend(frameon=False, fontsize="small")
    if metric_axes.lines:
        metric_axes.legend(frameon=False, fontsize="small")
    metric_axes.set_ylim(bottom=0)
    metric_axes.set(ylabel="valid, filtered", xlabel="step")
    for axes in (loss_axes, metric_axes):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)


def _draw_test(axes: Any, folder: Path, color: str, begin: str) -> None:
    """Draw MRR on the test set as a star, if the run has ended."""
    try:
        result = RunFolder(folder).read_result()
    except FileNotFoundError:
        return
    tested = result.get("test") or {}
    if tested.get("mrr") is not None:
        axes.plot(
            [result.get("best_step") or result.get("steps", 0)],
            [tested["mrr"]],
            "*",
            color=color,
            markersize=11,
            markeredgecolor="white",
            label=f"{begin}{result.get('test_on', 'test')} MRR {tested['mrr']:.4f}",
        )


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the names of folders; folders of equal names get their parents' names first."""
    paths = [path.resolve() for path in folders]
    names = [path.name for path in paths]
    return [
        name if names.count(name) == 1 else f"{path.parent.name}/{name}"
        for path, name in zip(paths, names, strict=True)
    ]
