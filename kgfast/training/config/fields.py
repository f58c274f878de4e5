"""Types of values of a config: numbers that YAML reads as text, names in any case."""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    PlainSerializer,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from kgfast.eval.metrics import metric_named
from kgfast.losses import LOSSES, EntitiesLoss

_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_NUMBER = re.compile(r"[+-]?(\d[\d_]*\.?\d*|\.\d+)([eE][+-]?\d+)?")


def is_own(name: str) -> bool:
    """Return whether a model or a loss is the user's own, named by its import path."""
    return ":" in name


def _number(value: Any) -> Any:
    """Turn text such as ``1e-3``, which YAML 1.1 takes for text, into a number."""
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def _whole(value: Any) -> Any:
    """Turn a whole float such as ``1e5`` into an int; a fraction stays, and fails the check."""
    value = _number(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _scientific(options: Any) -> Any:
    """Turn options such as ``1e-3`` into numbers."""
    if not isinstance(options, dict):
        return options
    return {key: _number(it) if "e" in str(it).lower() else it for key, it in options.items()}


def _path_or(value: Any, known: Callable[[Any], Any]) -> Any:
    """Return an import path unchanged, and any other name if kgfast has that name."""
    if not isinstance(value, str) or not (is_own(value) or "." in value):
        return known(value)
    if _PATH.fullmatch(value):
        return value
    raise PydanticCustomError("import_path", "must be an import path such as my.module:MyClass")


def _metric(value: str) -> str:
    try:
        return metric_named(value).name
    except ValueError as error:
        raise PydanticCustomError("metric", str(error).partition(";")[0]) from None


def _by_key(ranges: Any) -> Any:
    """Turn sections of ranges into ranges by dotted key."""
    if not isinstance(ranges, Mapping):
        return ranges
    flat: dict[str, Any] = {}
    for key, inside in ranges.items():
        is_section = isinstance(inside, Mapping) and bool(inside)
        if is_section and all(isinstance(it, Mapping) for it in inside.values()):
            flat |= {f"{key}.{name}": it for name, it in _by_key(inside).items()}
        else:
            flat[key] = inside
    return flat


Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
NonNegative = Annotated[Number, Field(ge=0)]
Fraction = Annotated[Number, Field(ge=0, lt=1)]
Whole = Annotated[int, BeforeValidator(_whole)]
Count = Annotated[Whole, Field(ge=1)]
CountOrZero = Annotated[Whole, Field(ge=0)]
Word = BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)
_Own = (WrapValidator(_path_or), PlainSerializer(lambda name: str(name)))  # or an import path
Metric = Annotated[str, Word, AfterValidator(_metric)]
Options = Annotated[dict[str, JsonValue], BeforeValidator(_scientific)]
ByKey = BeforeValidator(_by_key)
ModelName = Annotated[
    Literal["rotate", "transe", "distmult", "complex", "conve", "cp", "rescal"], Word, *_Own
]
_LOSSES = tuple(name for name, loss in LOSSES.items() if loss.over != "crops")
if TYPE_CHECKING:
    LossName = str
else:
    LossName = Annotated[Literal[_LOSSES], Word, *_Own]


def losses_of(mode: str) -> tuple[str, ...]:
    """Return the names of the losses that a mode trains with."""
    return tuple(name for name in _LOSSES if _goes_with(mode, name))


def _goes_with(mode: str, name: str) -> bool:
    loss = LOSSES[name]
    if not issubclass(loss, EntitiesLoss):
        return mode == "negative"
    return mode == "1vsall" or (mode == "kvsall" and loss.takes_several)
