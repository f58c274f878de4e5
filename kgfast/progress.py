"""Progress bars of rich, or lines of text where rich shows nothing."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Self

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
    """Yield a function that advances a bar and replaces the text behind the count."""
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
    """Yield a function that advances a bar of text, written over itself a few times a second."""
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
    """Bar of a run on stderr: step, loss, MRR and time left; elsewhere a line per evaluation.

    ``start`` steps were done before the run resumed.
    """

    def __init__(
        self, steps: int, start: int = 0, *, enabled: bool = True, console: "Console | None" = None
    ) -> None:
        self._steps, self._start, self._enabled = steps, start, enabled
        self._console = console
        self._bar: Progress | None = None
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
            self._bar = _rich_bar(self._console)
            self._bar.start()
            self._task = self._bar.add_task(
                "", total=self._steps, completed=self._start, loss="", mrr=""
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
            loss_text, mrr_text = self._shown()
            self._bar.update(self._task, completed=step, loss=loss_text, mrr=mrr_text)

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


def _rich_bar(console: "Console") -> "Progress":
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TextColumn("{task.fields[mrr]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=4,
    )
