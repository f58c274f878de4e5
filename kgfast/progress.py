"""Progress bars of rich, and lines of text for a run without a terminal."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from kgfast.text import escaped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_OF_SUBMODELS = ("mrr", "hits@1", "hits@3", "hits@10")
_NAMES = {"mrr": "MRR"}


@contextmanager
def progress_bar(progress: bool, label: str, total: int) -> Iterator[Callable[[float], None]]:
    """Yield a function that advances the progress bar by a number of queries."""
    if not progress:
        yield lambda count: None
        return
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*Progress.get_default_columns()[:-1], *columns) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.update(task, advance=count)


class RunBar:
    """Bar of a run on stderr: step, loss, MRR and time left; elsewhere a line per loss and MRR.

    ``start`` steps were done before the run resumed.
    """

    def __init__(
        self,
        steps: int,
        start: int = 0,
        *,
        enabled: bool = True,
        console: "Console | None" = None,
    ) -> None:
        self._steps, self._start, self._enabled = steps, start, enabled
        self._given = console
        self._bar: Progress | None = None
        self._loss, self._mrr = "", ""
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        self._began = time.monotonic()
        if self._enabled and self._console.is_terminal:
            text = (TextColumn(f"{{task.fields[{name}]}}") for name in ("loss", "mrr", "left"))
            columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), *text
            self._bar = Progress(*columns, console=self._console, refresh_per_second=4)
            self._bar.start()
            fields: dict[str, Any] = {"loss": "", "mrr": "", "left": ""}
            self._bar.add_task("", total=self._steps, completed=self._start, **fields)
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, step: int, loss: float | None = None) -> None:
        """Show that ``step`` steps are done, and the last loss if known."""
        if loss is not None:
            self._loss = f"loss {loss:.4f}"
        self._show(step, says=loss is not None, mrr="")

    def evaluated(
        self,
        step: int,
        metrics: Mapping[str, float],
        submodels: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        """Show an evaluation on valid, with a line for each sub-model."""
        self._mrr = f"MRR {metrics['mrr']:.4f}"
        self._show(step, says=True, mrr=self._mrr)
        for dim, row in (submodels or {}).items():
            shown = (f"{_NAMES.get(key, key)} {row[key]:.4f}" for key in _OF_SUBMODELS)
            self.say("  ".join((f"  dim {dim:>4}", *shown)))

    def say(self, line: str) -> None:
        """Print a line."""
        if self._enabled:
            self._console.print(escaped(line), highlight=False, soft_wrap=True, markup=False)

    @cached_property
    def _console(self) -> "Console":
        from rich.console import Console

        return self._given or Console(file=sys.stderr)

    def _show(self, step: int, *, says: bool, mrr: str) -> None:
        """Move the bar, or print a line if there is none, and ``says``."""
        left, done = "", step - self._start
        if done > 0:
            elapsed = time.monotonic() - self._began
            left = f"{elapsed / done * (self._steps - step) / 60:.1f} min left"
        if self._bar is not None:
            fields: dict[str, Any] = {"loss": self._loss, "mrr": self._mrr, "left": left}
            self._bar.update(self._bar.task_ids[0], completed=step, **fields)
        elif says:
            texts = (f"step {step:,} of {self._steps:,}", self._loss, mrr, left)
            self.say("  ".join(text for text in texts if text))
