"""What a person sees while a run goes on: a bar on a terminal, a line per evaluation elsewhere."""

import math
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


_OF_SUBMODELS = ("mrr", "hits@1", "hits@3", "hits@10")
_NAMES = {"mrr": "MRR"}


class Progress:
    """Shows step, loss, MRR and the time left; a trainer drives it.

    Everything goes to the error stream: what a command prints stays clean.

    Parameters
    ----------
    steps : int
        Of the whole run.
    start : int
        Steps that were done before it resumed.
    enabled : bool
        False shows nothing.
    console : rich.console.Console, optional

    Examples
    --------
    >>> with Progress(steps=2, enabled=False) as progress:
    ...     progress.update(1, loss=0.5)
    ...     progress.evaluated(1, {"mrr": 0.25})
    """

    def __init__(
        self, steps: int, start: int = 0, *, enabled: bool = True, console: "Console | None" = None
    ) -> None:
        self._steps, self._start, self._enabled = steps, start, enabled
        self._console = console
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._loss, self._mrr = float("nan"), float("nan")
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        if not self._enabled:
            return self
        from rich.console import Console

        self._console = self._console or Console(file=sys.stderr)
        self._began = time.monotonic()
        if self._console.is_terminal:
            self._bar = _bar(self._console)
            self._bar.start()
            self._task = self._bar.add_task(
                "", total=self._steps, completed=self._start, loss="", mrr=""
            )
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, step: int, loss: float | None = None) -> None:
        """``step`` steps are done; the loss, when it is known, is that of the last ones."""
        if loss is not None:
            self._loss = loss
        if self._bar is not None and self._task is not None:
            loss_text, mrr_text = self._shown()
            self._bar.update(self._task, completed=step, loss=loss_text, mrr=mrr_text)

    def evaluated(
        self,
        step: int,
        metrics: Mapping[str, float],
        submodels: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        """An evaluation on valid is done; of sub-models, each gets a line."""
        self._mrr = metrics["mrr"]
        if self._bar is not None:
            self.update(step)
        else:
            self._print(self._line(step))
        for dim, row in (submodels or {}).items():
            shown = (f"{_NAMES.get(key, key)} {row[key]:.4f}" for key in _OF_SUBMODELS)
            self._print("  ".join((f"  dim {dim:>4}", *shown)))

    def _print(self, line: str) -> None:
        if self._enabled and self._console is not None:
            self._console.print(line, highlight=False, soft_wrap=True)

    def _shown(self) -> tuple[str, str]:
        loss, mrr = self._loss, self._mrr
        return (
            "" if math.isnan(loss) else f"loss {loss:.4f}",
            "" if math.isnan(mrr) else f"MRR {mrr:.4f}",
        )

    def _line(self, step: int) -> str:
        done, elapsed = step - self._start, time.monotonic() - self._began
        left = elapsed / done * (self._steps - step) / 60 if done > 0 else None
        eta = "" if left is None else f"{left:.1f} min left"
        parts = (f"step {step:,} of {self._steps:,}", *self._shown(), eta)
        return "  ".join(part for part in parts if part)


def _bar(console: "Console") -> "Bar":
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar

    return Bar(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TextColumn("{task.fields[mrr]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=4,
    )
