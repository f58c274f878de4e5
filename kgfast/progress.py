"""Progress bars of rich, and lines of text of a run."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from kgfast.text import escaped

_OF_SUBMODELS = {"mrr": "MRR", "hits@1": "hits@1", "hits@3": "hits@3", "hits@10": "hits@10"}


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
    """Lines of a run on stderr: step, loss, MRR and time left.

    ``start`` steps were done before the run resumed.
    """

    def __init__(self, steps: int, start: int = 0, *, enabled: bool = True) -> None:
        self._steps, self._start, self._enabled = steps, start, enabled
        self._loss, self._began = "", time.monotonic()

    def update(self, step: int, loss: float) -> None:
        """Say that ``step`` steps are done, and the last loss."""
        self._loss = f"loss {loss:.4f}"
        self._say_step(step, self._loss)

    def evaluated(
        self,
        step: int,
        metrics: Mapping[str, float],
        submodels: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        """Say the result of an evaluation on valid, with a line for each sub-model."""
        self._say_step(step, self._loss, f"MRR {metrics['mrr']:.4f}")
        for dim, row in (submodels or {}).items():
            values = (f"{name} {row[key]:.4f}" for key, name in _OF_SUBMODELS.items())
            self.say("  ".join((f"  dim {dim:>4}", *values)))

    def say(self, line: str) -> None:
        """Print a line."""
        if self._enabled:
            print(escaped(line), file=sys.stderr, flush=True)

    def _say_step(self, step: int, *texts: str) -> None:
        done, left = step - self._start, ""
        if done > 0:
            elapsed = time.monotonic() - self._began
            left = f"{elapsed / done * (self._steps - step) / 60:.1f} min left"
        words = (f"step {step:,} of {self._steps:,}", *texts, left)
        self.say("  ".join(word for word in words if word))
