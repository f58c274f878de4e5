"""Picture of a search: MRR of trials at rungs, and against each key."""

import os
from pathlib import Path
from typing import Any

from kgfast.extras.search.searching import read_trials
from kgfast.extras.search.trials import Trial, Trials
from kgfast.plots import COLORS, save_pictures

_MOST = 11  # keys that are drawn
_ACROSS = 3  # panels in a row
_BEST, _OTHER = COLORS[0], "#9a9a9a"


def plot_trials(
    folder: str | os.PathLike[str], out: str | os.PathLike[str] | None = None
) -> list[Path]:
    """Draw the trials of a search.

    Parameters
    ----------
    folder
        Folder of the search.
    out
        Path of the pictures, a ``.png`` and an ``.svg``; ``<folder>/trials`` by default.

    Returns
    -------
    list of Path
        The two files.

    Raises
    ------
    FileNotFoundError
        If the folder holds no search.
    ValueError
        If no trial came to a rung.
    ImportError
        If matplotlib or optuna is not installed.
    """
    trials = read_trials(folder)
    if trials.best is None:
        raise ValueError(f"{folder}: no trial came to a rung yet: there is nothing to draw")
    keys = list(trials.best.values)[:_MOST]
    stem = Path(folder) / "trials" if out is None else Path(out)
    rows = -(-(1 + len(keys)) // _ACROSS)
    across = min(_ACROSS, 1 + len(keys))

    def paint(figure: Any) -> None:
        panels = list(figure.subplots(rows, across, sharey=True, squeeze=False).flat)
        _draw_rungs(panels[0], trials)
        for panel, key in zip(panels[1:], keys, strict=False):
            _draw_key(panel, trials, key)
        for place, panel in enumerate(panels):
            panel.spines[["top", "right"]].set_visible(False)
            panel.grid(axis="y", alpha=0.3)
            if place % across == 0:
                panel.set_ylabel("MRR, valid, filtered")
        for panel in panels[1 + len(keys) :]:
            panel.remove()

    return save_pictures(stem, (3.2 * across, 2.8 * rows), paint, "kgfast search --show")


def _draw_rungs(panel: Any, trials: Trials) -> None:
    best = trials.best
    for trial in reversed(trials.by_merit()):  # best trials are drawn last, above all others
        points = sorted(trial.rungs.items())
        panel.plot(*zip(*points, strict=True), **_style(trial, best)) if points else None
    panel.set_xscale("log")
    panel.set_ylim(bottom=0)
    panel.set_xlabel(trials.unit)


def _draw_key(panel: Any, trials: Trials, key: str) -> None:
    """Draw a point per trial; a hollow point if the trial was stopped."""
    seen = [trial for trial in reversed(trials.by_merit()) if trial.mrr is not None]
    values = [trial.values[key] for trial in seen]
    numbers = [it for it in values if isinstance(it, int | float) and not isinstance(it, bool)]
    is_number = len(numbers) == len(values)
    names = sorted({str(it) for it in values})
    for trial, value in zip(seen, values, strict=True):
        style = _style(trial, trials.best) | {"linestyle": ""}
        panel.plot([value if is_number else names.index(str(value))], [trial.mrr], **style)
    if not is_number:
        panel.set_xticks(range(len(names)), names)
        panel.set_xlim(-0.5, len(names) - 0.5)
    elif min(numbers) > 0 and max(numbers) >= 10 * min(numbers):
        panel.set_xscale("log")
    panel.set_xlabel(key)


def _style(trial: Trial, best: Trial | None) -> dict[str, Any]:
    color = _BEST if best is not None and trial.number == best.number else _OTHER
    inside = color if trial.outcome == "done" else "white"
    return {"color": color, "marker": "o", "markersize": 4, "markerfacecolor": inside}
