"""The progress bars of rank() and topk(): rich's, or a line of text where that shows nothing."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec


@contextmanager
def progress_bar(progress: bool, label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function that advances the progress bar by a number of queries."""
    if not progress:
        yield lambda count: None
        return
    from rich.console import Console

    console = Console()
    if console.is_jupyter and find_spec("ipywidgets") is None:  # rich would show nothing
        with _line(label, total) as advance:
            yield advance
        return
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:-1], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)


@contextmanager
def sweep_bar(
    progress: bool, label: str, total: int, columns: int, row_bytes: int
) -> Iterator[Callable[[int, int], None]]:
    """A function that advances the bar of a pass over a file, by rows that met so many queries.

    What was read before, by a run that was killed, met none; rates are those of this run.
    """
    began, done = time.monotonic(), [0, 0]  # bytes, elements

    def rates(rows: int, queries: int) -> str:
        done[0] += rows * row_bytes if queries else 0
        done[1] += rows * columns * queries
        seconds = max(time.monotonic() - began, 1e-9)
        return f"{done[0] / seconds / 1e6:,.0f} MB/s, {done[1] / seconds / 1e9:,.2f}e9 elements/s"

    if not progress:
        yield lambda rows, queries: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console()
    if console.is_jupyter and find_spec("ipywidgets") is None:  # rich would show nothing
        with _line(f"{label} rows", total) as advance:
            yield lambda rows, queries: advance(rows)
        return
    speed = TextColumn("{task.fields[rates]}")
    shown = (*Progress.get_default_columns()[:-1], MofNCompleteColumn(), speed)
    with Progress(*shown, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(f"{label} rows", total=total, rates="")
        yield lambda rows, queries: bar.update(task, advance=rows, rates=rates(rows, queries))


@contextmanager
def _line(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar of text that is written over itself, a few times a second."""
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
