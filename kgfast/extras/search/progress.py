"""Progress of a search: a bar, or a line per trial if the output is no terminal."""

import sys
from typing import TYPE_CHECKING, Self

from kgfast.extras.search.space import names_of
from kgfast.extras.search.trials import Trial, Trials
from kgfast.text import escaped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID


class Shown:
    """The progress of a search on the screen; the error stream is the default console."""

    def __init__(self, *, enabled: bool = True, console: "Console | None" = None) -> None:
        self._enabled, self._console = enabled, console
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if not self._enabled:
            return self
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
        from rich.progress import TimeElapsedColumn as Elapsed

        self._console = self._console or Console(file=sys.stderr)
        if self._console.is_terminal:
            texts = TextColumn("{task.fields[trial]}"), TextColumn("{task.fields[best]}")
            bar = Progress(
                BarColumn(), TaskProgressColumn(), *texts, Elapsed(), console=self._console
            )
            bar.start()
            self._bar, self._task = bar, bar.add_task("", total=1.0, trial="", best="")
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def at(self, share: float, number: int, step: int, steps: int) -> None:
        """Show the finished share of the search, and the step of a trial."""
        if self._bar is not None and self._task is not None:
            trial = f"trial {number}, step {step:,} of {steps:,}"
            self._bar.update(self._task, completed=share, trial=trial)

    def ended(self, trials: Trials, last: Trial) -> None:
        """Show a trial that has ended, or is open when the search ends."""
        best = trials.best
        if self._bar is not None and self._task is not None and best is not None:
            self._bar.update(self._task, best=f"best MRR {best.mrr:.4f} (trial {best.number})")
        values = "  ".join(" ".join(pair) for pair in names_of(last.values))
        mrr = "" if last.mrr is None else f"  MRR {last.mrr:.4f} at {last.reached} {trials.unit}"
        self.say(f"trial {last.number}  {last.outcome.value}{mrr}  {values}")

    def say(self, line: str) -> None:
        """Print a line."""
        if self._enabled and self._console is not None:
            self._console.print(escaped(line), highlight=False, soft_wrap=True, markup=False)
