"""What a checkpoint keeps of a run beside its tensors, and what it must be to go on with.

Everything is checked before anything is changed: a state that does not fit is refused as a whole.
"""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError
from torch import Tensor


class State(BaseModel):
    """What of a run is neither a tensor nor follows from its step.

    Attributes
    ----------
    step : int
        Steps that were made.
    best, best_step, valid, valid_of_submodels
        The best metric on valid, when it was seen, and all metrics then; of croppable embeddings
        those of the widest, and of each by its width.
    loss_sum, loss_count
        Since the last row of the log.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    step: NonNegativeInt = 0
    best: float | None = None
    best_step: NonNegativeInt = 0
    valid: dict[str, float] = {}
    valid_of_submodels: dict[str, dict[str, float]] = {}
    loss_sum: float = 0.0
    loss_count: NonNegativeInt = 0
    seconds_training: float = 0.0
    seconds_evaluating: float = 0.0
    stopped_early: bool = False

    @classmethod
    def of(cls, values: Any, *, complete: bool = True) -> Self:
        """The state that a checkpoint holds.

        Parameters
        ----------
        values : mapping
            What ``model_dump`` made.
        complete : bool
            Whether all keys must be there; those of an earlier kgfast may lack the newer ones.

        Raises
        ------
        ValueError
            If a key is missing or unknown, or a value of another type.

        Examples
        --------
        >>> State.of({"step": "3"}, complete=False)
        Traceback (most recent call last):
        ValueError: state.step: Input should be a valid integer; got '3'
        """
        if not isinstance(values, Mapping):
            raise ValueError(f"state must be a mapping; got {values!r:.60}")
        names = set(cls.model_fields)
        check_names("state", values, names if complete else names & set(values))
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, ("state", *first["loc"])))
            raise ValueError(f"{where}: {first['msg']}; got {first['input']!r:.60}") from None


def check_like(name: str, held: Any, own: Mapping[str, Any] | None) -> None:
    """That what a checkpoint holds of an object has the keys and types of the object's own state.

    Parameters
    ----------
    name : str
        What to call it.
    held : object
        From the checkpoint.
    own : mapping, optional
        Of numbers, or None where a number may come yet; None where the run has no such object.

    Raises
    ------
    ValueError
        If it does not.
    """
    if own is None or held is None:
        if held is not own:
            raise ValueError(f"{name} must be {'missing' if own is None else 'there'}")
        return
    if not isinstance(held, Mapping):
        raise ValueError(f"{name} must be a mapping; got {held!r:.60}")
    check_names(name, held, set(own))
    for key, value in own.items():
        allowed = (int,) if type(value) is int else (int, float)
        number = held[key]
        if not (type(number) in allowed or (number is None and value is None)):
            raise ValueError(f"{name}.{key} must be a number; got {number!r:.60}")


def check_tensors(name: str, held: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """That tensors have exactly the names, shapes and dtypes of those that they will replace.

    Raises
    ------
    ValueError
        Naming the first that does not.
    """
    check_names(name, held, set(own))
    for key, tensor in held.items():
        if tensor.shape != own[key].shape or tensor.dtype != own[key].dtype:
            raise ValueError(
                f"{name}.{key} must be {own[key].dtype} {list(own[key].shape)}; got "
                f"{tensor.dtype} {list(tensor.shape)}"
            )


def check_names(name: str, held: Mapping[str, Any], expected: set[str]) -> None:
    """That a mapping has exactly the keys that are expected.

    Raises
    ------
    ValueError
        Naming the first that is missing or unknown.
    """
    for key in sorted(expected - set(held)):
        raise ValueError(f"{name}.{key} is missing")
    for key in sorted(set(held) - expected):
        raise ValueError(f"{name}.{key} is not known; known: {', '.join(sorted(expected)) or '-'}")
