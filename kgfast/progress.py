"""Progress bars of rich, or lines of text where rich shows nothing."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Self

from kgfast.text import escaped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

_OF_SUBMODELS = ("mrr", "hits@1", "hits@3", "hits@10")
_NAMES = {"mrr": "MRR"}


@contextmanager
def progress_bar(progress: bool, label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances the progress bar by a number of queries."""
    with _bar(progress, label, total) as advance:
        yield lambda count: advance(count, "")


@contextmanager
def sweep_bar(
    progress: bool, label: str, total: int, columns: int, row_bytes: int
) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that advances the bar of a pass over a file by rows and queries.

    Rows that an earlier, killed run has read count no queries: rates are those of this run.
    """
    began, done = time.monotonic(), [0, 0]  # start time, bytes, elements

    def rates(rows: int, queries: int) -> str:
        done[0] += rows * row_bytes if queries else 0
        done[1] += rows * columns * queries
        seconds = max(time.monotonic() - began, 1e-9)
        return f"{done[0] / seconds / 1e6:,.0f} MB/s, {done[1] / seconds / 1e9:,.2f}e9 elements/s"

    with _bar(progress, f"{label} rows", total) as advance:
        yield lambda rows, queries: advance(rows, rates(rows, queries))


@contextmanager
def _bar(progress: bool, label: str, total: int) -> Iterator[Callable[[int, str], None]]:
    if not progress:
        yield lambda count, text: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console()
    if console.is_jupyter and find_spec("ipywidgets") is None:  # rich would show nothing
        with _line(label, total) as advance:
            yield lambda count, text: advance(count)
        return
    columns = MofNCompleteColumn(), TextColumn("{task.fields[text]}"), TimeRemainingColumn()
    with Progress(*Progress.get_default_columns()[:-1], *columns, console=console) as bar:
        task = bar.add_task(label, total=total, text="")
        yield lambda count, text: bar.update(task, advance=count, text=text)


@contextmanager
def _line(label: str, total: int) -> Iterator[Callable[[int], None]]:
    done, began, shown = 0, time.monotonic(), float("-inf")

    def advance(count: int) -> None:
        nonlocal done, shown
        done += count
        now = time.monotonic()
        if now - shown >= 0.25 or done >= total:
            shown = now
            sys.stdout.write("\r" + _bar_of_text(label, done, total, now - began))
            sys.stdout.flush()

    advance(0)
    try:
        yield advance
    finally:
        sys.stdout.write("\n")


def _bar_of_text(label: str, done: int, total: int, seconds: float) -> str:
    share = done / total if total else 1.0
    filled = round(24 * share)
    left = f"{seconds * (1 - share) / share:,.0f} s left" if share else ""
    bar = "█" * filled + "·" * (24 - filled)
    return f"{label} {bar} {share:4.0%} {done:,}/{total:,} {left:<12}"


class RunBar:
    """Bar of a run on stderr: step, loss, MRR and time left; elsewhere a line per loss and MRR.

    ``start`` steps were done before the run resumed. ``limit`` returns the seconds that are left
    for steps.
    """

    def __init__(
        self,
        steps: int,
        start: int = 0,
        *,
        enabled: bool = True,
        console: "Console | None" = None,
        limit: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._steps, self._start, self._enabled = steps, start, enabled
        self._console, self._limit = console, limit
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._loss, self._mrr = float("nan"), float("nan")
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        if self._enabled and (console := self._opened()).is_terminal:
            self._bar = _rich_bar(console)
            self._bar.start()
            self._task = self._bar.add_task(
                "", total=self._steps, completed=self._start, loss="", mrr="", left=""
            )
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, step: int, loss: float | None = None) -> None:
        """Show that ``step`` steps are done, and the last loss if known."""
        if loss is not None:
            self._loss = loss
        if self._bar is not None and self._task is not None:
            loss_text, mrr_text, left = self._texts(step)
            self._bar.update(self._task, completed=step, loss=loss_text, mrr=mrr_text, left=left)
        elif loss is not None and self._enabled:
            loss_text, _, left = self._texts(step)
            self._say_step(step, loss_text, left)

    def evaluated(
        self,
        step: int,
        metrics: Mapping[str, float],
        submodels: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        """Show an evaluation on valid, with a line for each sub-model."""
        self._mrr = metrics["mrr"]
        if self._bar is not None:
            self.update(step)
        elif self._enabled:
            self._say_step(step, *self._texts(step))
        for dim, row in (submodels or {}).items():
            shown = (f"{_NAMES.get(key, key)} {row[key]:.4f}" for key in _OF_SUBMODELS)
            self.say("  ".join((f"  dim {dim:>4}", *shown)))

    def say(self, line: str) -> None:
        """Print a line."""
        if self._enabled:
            console = self._opened()
            console.print(escaped(line), highlight=False, soft_wrap=True, markup=False)

    def _opened(self) -> "Console":
        from rich.console import Console

        self._console = self._console or Console(file=sys.stderr)
        return self._console

    def _texts(self, step: int) -> tuple[str, str, str]:
        """Return loss, MRR and time left, each empty if unknown."""
        loss, mrr, done = self._loss, self._mrr, step - self._start
        left = math.inf
        if done > 0:
            elapsed = time.monotonic() - self._began
            left = min(elapsed / done * (self._steps - step), max(0.0, self._limit()))
        return (
            "" if math.isnan(loss) else f"loss {loss:.4f}",
            "" if math.isnan(mrr) else f"MRR {mrr:.4f}",
            "" if math.isinf(left) else f"{left / 60:.1f} min left",
        )

    def _say_step(self, step: int, *texts: str) -> None:
        self.say("  ".join(it for it in (f"step {step:,} of {self._steps:,}", *texts) if it))


def _rich_bar(console: "Console") -> "Progress":
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TextColumn("{task.fields[mrr]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=console,
        refresh_per_second=4,
    )
