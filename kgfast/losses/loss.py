"""Base of losses: hyperparameters, the functions that are made of them, reductions, and checks.

Every loss follows one rule. A mean divides by the number of terms, or by the sum of weights, which
are finite and at least 0. A mean over nothing is 0, with zeros for gradients: over no row, over no
pair that takes part, and over weights that are all 0.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from kgfast.kernels.checks import checks_values
from kgfast.kernels.sampled import Reduction as Reduction
from kgfast.models.base import check_option
from kgfast.ops.checks import check_device, check_shape, check_tensor

_OF_A_CALL = ("reduction", "sparse")  # fields that are no hyperparameters of a run


@dataclass(frozen=True, kw_only=True)
class Loss(ABC):
    """Base of losses: an object with hyperparameters, which is called with a model and a batch.

    A subclass is a frozen dataclass. Fields are the hyperparameters, checked when a loss is made.

    Attributes
    ----------
    over : {"entities", "negatives", "crops"}
        Candidates that a target is compared with: all entities, sampled negatives, or both for the
        sub-models of croppable embeddings.
    sparse : bool
        Make row gradients for the rows that a batch reads (:class:`kgfast.RowGradients`).
    """

    over: ClassVar[Literal["entities", "negatives", "crops"]]
    sparse: bool = False

    def __post_init__(self) -> None:
        check_option("reduction", getattr(self, "reduction", "mean"), ("mean", "sum", "none"))
        self.check()

    def check(self) -> None:  # noqa: B027
        """Check the hyperparameters."""

    @abstractmethod
    def __call__(self, model: Any, triples: Any, *batch: Any, **of_batch: Any) -> Tensor:
        """Return the loss of a batch."""

    @classmethod
    def hyperparameters(cls) -> tuple[str, ...]:
        """Return the names of the hyperparameters, without arguments of a call."""
        return tuple(field.name for field in fields(cls) if field.name not in _OF_A_CALL)

    @classmethod
    def function(cls, name: str) -> Callable[..., Tensor]:
        """Make the function ``name`` that takes a batch and the hyperparameters together."""
        _, *of_batch = inspect.signature(cls.__call__).parameters.values()
        of_loss = dict(inspect.signature(cls).parameters)
        accepted = {parameter.name for parameter in of_batch}

        def loss(model: Any, *batch: Any, **options: Any) -> Tensor:
            chosen = {}
            for key in [*options]:
                if key in of_loss:
                    chosen[key] = options.pop(key)
                elif key not in accepted:
                    raise TypeError(f"{name}() got an unexpected keyword argument {key!r}")
            return cls(**chosen)(model, *batch, **options)

        loss.__name__ = loss.__qualname__ = name
        loss.__module__, loss.__doc__ = cls.__module__, cls.__doc__
        loss.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*of_batch, *of_loss.values()], return_annotation=Tensor
        )
        return loss


def reduced(rows: Tensor, count: Tensor | float, reduction: Reduction) -> Tensor:
    """Return rows ``[..., B]``, the sum of rows, or that sum divided by ``count``, if not 0."""
    if reduction == "none":
        return rows
    total = rows.sum(-1)
    return total if reduction == "sum" else total / (count + (count == 0))


def check_mask(mask: Tensor, negative: Tensor, shape: Sequence[int]) -> None:
    """Check a mask ``[B, K]`` of negatives."""
    check_tensor("mask", mask, (torch.bool,))
    check_shape("mask", mask, shape)
    check_device("mask", mask, negative, "scores")


def check_weights(weights: Tensor, positive: Tensor) -> None:
    """Check that each positive ``[..., B]`` has a weight, finite and at least 0."""
    check_tensor("weights", weights)
    if weights.is_complex():
        raise TypeError(f"weights must be real; got {weights.dtype}")
    check_shape("weights", weights, positive.shape[-1:])
    check_device("weights", weights, positive, "scores")
    if not len(weights) or not checks_values() or torch.compiler.is_compiling():
        return
    low, high = torch.aminmax(weights.detach())
    if not (low >= 0 and high < torch.inf):  # a NaN is neither
        row = int((~((weights >= 0) & (weights < torch.inf))).nonzero()[0])
        raise ValueError(
            f"weights[{row}] must be finite and at least 0; got {float(weights[row]):g}"
        )
