"""The state of a run, its result, and what is wrong with tables that diverged."""

from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, NonNegativeInt, TypeAdapter, ValidationError
from torch import nn

from kgfast.datasets import Dataset
from kgfast.eval.metrics import table_of
from kgfast.graph.named import relation_names
from kgfast.text import shown

_NUMBERS = 1 << 22  # numbers that are checked at once, so that no mask is as large as a table
Kind = TypeVar("Kind")


class State(BaseModel):
    """Numbers of a run that are no tensors and do not follow from the config."""

    model_config = ConfigDict(extra="forbid", strict=True)

    step: NonNegativeInt = 0  # steps made
    best: float | None = None  # value of the best metric on valid
    best_step: NonNegativeInt = 0
    valid: dict[str, float] = {}  # all metrics of the best state; for MED, of the widest sub-model
    valid_of_submodels: dict[str, dict[str, float]] = {}  # metrics by width
    loss_sum: float = 0.0  # sum since the last row of the log
    loss_count: NonNegativeInt = 0
    seconds_training: float = 0.0
    seconds_evaluating: float = 0.0
    seconds_cpu: float = 0.0  # part of seconds_training, by all threads of process 0
    stopped_early: bool = False
    in_vain: NonNegativeInt = 0  # evaluations since the best one


@dataclass(frozen=True, repr=False)
class Result:
    """Result of a run.

    Attributes
    ----------
    steps, planned_steps, best_step : int
        Steps made, steps planned, and the step with the best metric on valid (0: no evaluation).
    valid, test : dict
        Filtered metrics of the best state, or without a run folder of the last state. Empty for an
        empty split. For croppable embeddings, metrics of the widest sub-model.
    valid_of_submodels, test_of_submodels : dict
        Metrics of each sub-model, by its width as a string; empty for other models.
    seconds_training, seconds_evaluating : float
        Wall-clock seconds, summed over all invocations of a resumed run.
    stopped_early : bool
    tested_step : int
        The step of the tested model.
    seconds_cpu : float
        CPU seconds of the training steps, of all threads of process 0; other programs on the
        machine change them less than ``seconds_training``.
    """

    steps: int
    planned_steps: int
    best_step: int
    valid: dict[str, float]
    test: dict[str, float]
    valid_of_submodels: dict[str, dict[str, float]]
    test_of_submodels: dict[str, dict[str, float]]
    seconds_training: float
    seconds_evaluating: float
    stopped_early: bool
    tested_step: int
    seconds_cpu: float

    def __repr__(self) -> str:
        steps = f"{self.steps:,} step{'' if self.steps == 1 else 's'}"
        if self.steps < self.planned_steps:
            steps += f" of {self.planned_steps:,} (stopped early)"
        best = f"best after {self.best_step:,}" if self.best_step else "none evaluated"
        head = (
            f"{steps} in {self.seconds_training:,.1f} s, {best}; "
            f"evaluations took {self.seconds_evaluating:,.1f} s"
        )
        both = {"valid": self.valid, "test": self.test}
        rows = {name: metrics for name, metrics in both.items() if metrics}
        if self.test:
            is_best = self.tested_step == self.best_step
            which = "best checkpoint on valid" if is_best else "last checkpoint"
            head += f"\ntest triples, filtered, by the {which} (step {self.tested_step:,})"
        if self.test_of_submodels:
            rows = {f"test, {dim}": metrics for dim, metrics in self.test_of_submodels.items()}
        return f"{head}\n{table_of(rows)}" if rows else head


def checked(kind: type[Kind], values: Any) -> Kind:
    """Make a state or a result of values that a file has; a ValueError names the first mistake.

    >>> checked(State, {**State().model_dump(), "step": "3"})
    Traceback (most recent call last):
    ValueError: state.step: Input should be a valid integer; got '3'
    """
    name = kind.__name__.lower()
    try:
        checked_values = TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, (name, *first["loc"])))
        raise ValueError(f"{where}: {first['msg']}; got {shown(first['input'])}") from None
    for key in kind.__annotations__.keys() - values.keys():
        raise ValueError(f"{name}.{key} is missing")
    return checked_values


def first_bad_row(model: nn.Module) -> tuple[str, int] | None:
    """Return the first parameter with a NaN or an infinity, and the first such row, or None."""
    for name, parameter in model.named_parameters():
        rows = parameter.detach().reshape(len(parameter) if parameter.ndim else 1, -1)
        size = max(1, _NUMBERS // max(1, rows.shape[1]))
        for number, block in enumerate(rows.split(size)):
            bad = (~block.isfinite().all(1)).nonzero()
            if len(bad):
                return name, number * size + int(bad[0])
    return None


def described(model: nn.Module, dataset: Dataset) -> str:
    """Describe the error in the tables in a clause."""
    what = "all tables are finite, but queries, scores or the loss of their numbers overflow"
    bad_row = first_bad_row(model)
    if bad_row is not None:
        table, row = bad_row[0].rpartition(".")[2], bad_row[1]
        relations, times = relation_names(dataset.relations)
        of_tables = {"entity": dataset.entities, "relation": relations, "time": times}
        names = of_tables.get(table.removeprefix("static_"))
        name = f" ({names.name(row)})" if names is not None and row < len(names) else ""
        what = f"row {row} of the {table} table{name} is the first that holds a NaN or an infinity"
    return f"{what}: try a lower optim.lr or optim.grad_clip"
