"""Modules of losses, which hold hyperparameters."""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from kgfast.losses.formula import LossFormula, check_reduction
from kgfast.models import RankableModel

_OF_A_BATCH = ("side", "weights", "mask", "dims")  # keywords of a call, not of a module


class LossModule(nn.Module):
    """Loss of a model with fixed hyperparameters: the keyword arguments of its function.

    What belongs to a batch (``side``, ``mask``, ``weights``, ``dims``) is given in the call.

    Parameters
    ----------
    **hyperparameters
        As of the function; those that are not given have its defaults.

    Attributes
    ----------
    function : callable
        The loss of a model.
    formula : type of LossFormula
        Its hyperparameters and what it does to scores.
    defaults : dict
        The hyperparameters of the module, and their defaults.

    Raises
    ------
    ValueError, TypeError
        For hyperparameters that are out of range or do not exist.
    """

    function: ClassVar[Callable[..., Tensor]]
    formula: ClassVar[type[LossFormula]]
    defaults: ClassVar[dict[str, Any]]

    def __init_subclass__(
        cls, *, function: Callable[..., Tensor], formula: type[LossFormula]
    ) -> None:
        super().__init_subclass__()
        parameters = [
            it
            for it in inspect.signature(function).parameters.values()
            if it.kind is it.KEYWORD_ONLY and it.name not in _OF_A_BATCH
        ]
        cls.function, cls.formula = staticmethod(function), formula
        cls.defaults = {it.name: it.default for it in parameters}
        cls.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]

    def __init__(self, **hyperparameters: Any) -> None:
        super().__init__()
        for name in hyperparameters:
            if name not in self.defaults:
                raise TypeError(
                    f"{type(self).__name__} has no {name}; it has {', '.join(self.defaults)}"
                )
        chosen = self.defaults | hyperparameters
        self.formula(**{name: chosen[name] for name in self.formula.hyperparameters()})
        check_reduction(chosen.get("reduction", "mean"))
        for name, value in chosen.items():
            setattr(self, name, value)

    def _hyperparameters(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.defaults}

    def forward(self, model: RankableModel, *batch: Any, **of_batch: Any) -> Tensor:
        """Return the loss of a batch, whose arguments are those of the function."""
        return self.function(model, *batch, **of_batch, **self._hyperparameters())

    def extra_repr(self) -> str:
        """Return the hyperparameters, for ``repr``."""
        return ", ".join(f"{name}={value!r}" for name, value in self._hyperparameters().items())
