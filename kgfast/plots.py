"""The picture of a run: loss and MRR per step."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kgfast.training.logs import Row, read_rows

_LINES = (("mrr", "MRR", "#0b6e4f"), ("hits@10", "hits@10", "#8ab6a4"))


def plot(run: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> list[Path]:
    """Draw the logs of a run folder.

    Parameters
    ----------
    run
        The folder.
    out
        Where to put the pictures, a ``.png`` and an ``.svg``; ``<run>/metrics`` by default.

    Returns
    -------
    list of Path
        The two files.

    Raises
    ------
    FileNotFoundError
        If the folder has no logs.
    ImportError
        If matplotlib is not installed.
    """
    rows = read_rows(run)
    if not rows:
        raise FileNotFoundError(f"{run}: no rows in metrics.jsonl; is it a run folder?")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("kgfast plot needs matplotlib: pip install matplotlib") from None
    stem = Path(run, "metrics") if out is None else Path(out)
    if stem.suffix in (".png", ".svg"):
        stem = stem.with_suffix("")
    stem.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "kgfast", "svg.fonttype": "none"}):  # the same bytes each time
        figure = Figure(figsize=(7, 5), layout="constrained")
        _draw(figure, rows, Path(run).resolve().name)
        paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
        figure.savefig(paths[0], dpi=160)
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def _draw(figure: Any, rows: Sequence[Row], title: str) -> None:
    loss_axes, metric_axes = figure.subplots(2, 1, sharex=True)
    training = [row for row in rows if row.get("loss") is not None and not row.get("split")]
    loss_axes.plot(
        [row["step"] for row in training], [row["loss"] for row in training], color="#444444"
    )
    loss_axes.set_ylabel("loss")
    loss_axes.set_title(title, loc="left")
    valid = [row for row in rows if row.get("split") == "valid"]
    dims = sorted({row["dim"] for row in valid if row.get("dim")})
    for key, label, color in _LINES:
        for place, dim in enumerate(dims or [None], 1):
            found = [row for row in valid if row.get(key) is not None and row.get("dim") == dim]
            if not found:
                continue
            steps, values = [row["step"] for row in found], [row[key] for row in found]
            metric_axes.plot(
                steps,
                values,
                color=color,
                alpha=place / max(1, len(dims)),  # the narrower, the paler
                marker="o",
                markersize=3,
                label=label if dim is None else f"{label}, {dim}",
            )
    if valid:
        metric_axes.legend(frameon=False)
    metric_axes.set_ylim(bottom=0)
    metric_axes.set_ylabel("valid, filtered")
    metric_axes.set_xlabel("step")
    for axes in (loss_axes, metric_axes):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
