"""What a value of a config may be: numbers that YAML reads as text, names in any case."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

_NUMBER = re.compile(r"[+-]?(\d[\d_]*\.?\d*|\.\d+)([eE][+-]?\d+)?")


def _number(value: Any) -> Any:
    """``1e-3``, which YAML 1.1 reads as text, as the number that it is."""
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def _whole(value: Any) -> Any:
    """``1e5`` as an int; a fraction stays what it is, and fails."""
    value = _number(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _off(value: Any) -> Any:
    return 0.0 if value is None else value


Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
NonNegative = Annotated[Number, Field(ge=0)]
Fraction = Annotated[Number, Field(ge=0, lt=1)]
Count = Annotated[int, BeforeValidator(_whole), Field(ge=1)]
TwoOrMore = Annotated[int, BeforeValidator(_whole), Field(ge=2)]
CountOrZero = Annotated[int, BeforeValidator(_whole), Field(ge=0)]
NonNegativeOrOff = Annotated[NonNegative, BeforeValidator(_off)]
Word = BeforeValidator(_lower)

ModelName = Annotated[
    Literal["rotate", "transe", "distmult", "complex", "conve", "cp", "rescal"], Word
]
Mode = Annotated[Literal["negative", "1vsall", "kvsall"], Word]
LossName = Annotated[Literal["nssa", "margin", "logistic", "bce", "cross_entropy"], Word]
OptimName = Annotated[Literal["row_adam", "adam", "row_adagrad", "adagrad", "sgd"], Word]
SchedName = Annotated[Literal["constant", "step", "linear", "cosine", "plateau"], Word]
Metric = Annotated[Literal["mrr", "mr", "hits@1", "hits@3", "hits@10", "amr", "amri"], Word]
Columns = Annotated[Literal["hrt", "htr", "rht", "rth", "thr", "trh"], Word]
