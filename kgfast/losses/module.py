"""Modules of losses with fixed hyperparameters."""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from kgfast.losses.formula import LossFormula, check_reduction
from kgfast.models import RankableModel

_OF_A_BATCH = ("side", "weights", "mask", "dims")  # keywords of a call, not of a module


class LossModule(nn.Module):
    """Loss of a model with fixed hyperparameters: the keyword arguments of the loss function.

    Arguments of a batch (``side``, ``mask``, ``weights``, ``dims``) are given in the call.

    Parameters
    ----------
    **hyperparameters
        Keyword arguments of the function; missing ones take the defaults of the function.

    Attributes
    ----------
    function : callable
        The loss of a model.
    formula : type of LossFormula
        The hyperparameters, and the loss of scores.
    defaults : dict
        The hyperparameters of the module, with default values.

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
                    f"{type(self).__name__} has no {name}; its hyperparameters are "
                    f"{', '.join(self.defaults)}"
                )
        chosen = self.defaults | hyperparameters
        self.formula(**{name: chosen[name] for name in self.formula.hyperparameters()})
        check_reduction(chosen.get("reduction", "mean"))
        for name, value in chosen.items():
            setattr(self, name, value)

    def _hyperparameters(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.defaults}

    def forward(self, model: RankableModel, *batch: Any, **of_batch: Any) -> Tensor:
        """Return the loss of a batch; arguments are those of the function."""
        return self.function(model, *batch, **of_batch, **self._hyperparameters())

    def extra_repr(self) -> str:
        """Return the hyperparameters, for ``repr``."""
        return ", ".join(f"{name}={value!r}" for name, value in self._hyperparameters().items())
