"""The state of a run: one dict of checked numbers, and tensors; both as a checkpoint holds them."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from kgfast.text import shown


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
