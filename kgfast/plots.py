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


def plot(runs: Run | Sequence[Run], out: str | os.PathLike[str] | None = None) -> Path:
    """Draw the logs of run folders in one picture.

    The picture shows loss and MRR on valid per step and, for finished runs, MRR on the test set as
    a star; for a single run also hits@10.

    Parameters
    ----------
    runs
        One run folder or several.
    out
        The picture, in the format of its suffix; ``<run>/metrics.svg`` by default for a single run.

    Raises
    ------
    FileNotFoundError
        If a folder has no logs.
    ValueError
        If there is no run, a log is damaged, or there are several runs and no ``out``.
    ImportError
        If matplotlib is not installed.
    """
    folders = [Path(run) for run in ([runs] if isinstance(runs, str | os.PathLike) else runs)]
    if not folders:
        raise ValueError("runs must name at least one folder")
    if out is None and len(folders) > 1:
        raise ValueError("say with --out where to put the picture of several runs")
    path = folders[0] / "metrics.svg" if out is None else Path(out)
    matplotlib = needed("matplotlib", "kgfast plot")
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure = Figure(figsize=(7, 5), layout="constrained")
        draw(figure, folders, [_COLORS[place % len(_COLORS)] for place in range(len(folders))])
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160)
    return path


def draw(figure: Any, runs: Sequence[Path], colors: Sequence[str]) -> None:
    """Draw runs in a figure, the loss above the metrics; raise a FileNotFoundError without logs."""
    loss_axes, metric_axes = figure.subplots(2, 1, sharex=True)
    is_alone = len(runs) == 1
    for folder, color, name in zip(runs, colors, _names(runs), strict=True):
        rows = read_rows(folder)
        if not rows:
            raise FileNotFoundError(f"{folder}: no rows in metrics.jsonl; is it a run folder?")
        begin = "" if is_alone else f"{name}, "
        losses = [row for row in rows if not row.get("split")]
        _draw_line(loss_axes, losses, "loss", color=color, linewidth=1, label=name)
        valid = [row for row in rows if row.get("split") == "valid"]
        dims = sorted({row["dim"] for row in valid if row.get("dim")}) or [None]
        for key, label, style in _METRICS[: None if is_alone else 1]:
            for place, dim in enumerate(dims, 1):
                own = [row for row in valid if row.get("dim") == dim]
                label_of_dim = f"{begin}{label}" + ("" if dim is None else f", {dim}")
                options = {"alpha": place / len(dims), "label": label_of_dim}  # narrow ones pale
                _draw_line(
                    metric_axes, own, key, color=color, linestyle=style, marker=".", **options
                )
        _draw_test(metric_axes, folder, color, begin)
    loss_axes.set_ylabel("loss")
    if is_alone:
        loss_axes.set_title(_names(runs)[0], loc="left")
    for axes in (metric_axes,) if is_alone else (loss_axes, metric_axes):
        if axes.lines:
            axes.legend(frameon=False, fontsize="small")
    metric_axes.set(ylabel="valid, filtered", xlabel="step")
    metric_axes.set_ylim(bottom=0)
    for axes in (loss_axes, metric_axes):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)


def _draw_line(axes: Any, rows: list[dict[str, Any]], key: str, **options: Any) -> None:
    rows = [row for row in rows if row.get(key) is not None]
    if rows:
        axes.plot([row["step"] for row in rows], [row[key] for row in rows], **options)


def _draw_test(axes: Any, folder: Path, color: str, begin: str) -> None:
    """Draw MRR on the test set as a star, if the run has ended."""
    try:
        result = RunFolder(folder).read_result()
    except FileNotFoundError:
        return
    mrr = (result.get("test") or {}).get("mrr")
    if mrr is not None:
        step = result.get("best_step") or result.get("steps", 0)
        label = f"{begin}{result.get('test_on', 'test')} MRR {mrr:.4f}"
        axes.plot([step], [mrr], "*", color=color, markersize=11, label=label)


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the names of folders; folders of equal names get their parents' names first."""
    paths = [path.resolve() for path in folders]
    names = [path.name for path in paths]
    return [
        name if names.count(name) == 1 else f"{path.parent.name}/{name}"
        for path, name in zip(paths, names, strict=True)
    ]
