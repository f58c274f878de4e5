"""The state of a run: one dict of checked numbers, and tensors; both as a checkpoint holds them."""

from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from kgfast.models import Model
from kgfast.text import reading, shown
from kgfast.training.checkpoint import Stored, check_tensors, of_part
from kgfast.training.config import Config
from kgfast.training.optimizer import Optimizer


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

    @classmethod
    def of(cls, values: Any) -> Self:
        """Check the values of a checkpoint, all of which must be there.

        >>> State.of({**State().model_dump(), "step": "3"})
        Traceback (most recent call last):
        ValueError: state.step: Input should be a valid integer; got '3'
        """
        try:
            state = cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, ("state", *first["loc"])))
            raise ValueError(f"{where}: {first['msg']}; got {shown(first['input'])}") from None
        for name in cls.model_fields.keys() - state.model_fields_set:
            raise ValueError(f"state.{name} is missing")
        return state


def resumed(
    stored: Stored, path: Path, config: Config, rows: str | None, model: Model, optimizer: Optimizer
) -> State:
    """Give a checkpoint to a model and an optimizer; return the state.

    ``rows`` is the digest of the names. If the checkpoint is of another config or does not fit, a
    ValueError is raised, and nothing changes.
    """
    tensors, meta = stored
    with reading(path, "not a state of this run"):
        before = Config.from_dict(meta["config"])
    changed = before.training_differences(config)
    if changed:
        raise ValueError(
            "the run was started with another config: "
            + ", ".join(f"{key} was {old!r}, is {new!r}" for key, (old, new) in changed.items())
        )
    with reading(path, "not a state of this run"):
        if meta.get("graph") != rows:
            raise ValueError("the rows belong to other names than those of the run")
        state = State.of(meta.get("state"))
        if type(meta.get("step")) is not int or meta["step"] != state.step:
            raise ValueError(f"step is {shown(meta.get('step'))}, of the state {state.step}")
        of_model = of_part("model", tensors)
        check_tensors("model", of_model, model.state_dict())
        optimizer.load(of_part("optim", tensors))
    model.load_state_dict(of_model)
    return state
