"""Users' own models and losses, which a config names by import path: ``module:Name``.

Importing a module runs its code. So only :func:`follow` imports, for a caller who trusts the
config; all other functions use the classes that :func:`follow` imported.
"""

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from kgfast.graph import did_you_mean
from kgfast.losses import LOSSES, Loss, NegativesLoss
from kgfast.models import Model
from kgfast.training.config import Config, is_own

_FOLLOWED: dict[str, Any] = {}
_OF_A_STEP = (
    "side",
    "mask",
    "weights",
    "sparse",
    "reduction",
)  # arguments of a loss, which are no options


def follow(config: Config, *, trust: bool) -> None:
    """Import the model and the loss that a config names by import path.

    Raises
    ------
    ValueError
        If there is an import path and ``trust`` is False; if there is no such module or name, the
        name is not a class of the right kind, or the options do not fit.
    """
    model, loss = config.model, config.loss
    named = [(key, it.name) for key, it in (("model", model), ("loss", loss)) if is_own(it.name)]
    for key, name in named:
        if not trust:
            raise ValueError(_refused(key, name))
    for key, name in named:
        if key == "model":
            cls = _imported(key, name, Model, "kgfast.Model")
            make = partial(inspect.signature(cls.init).bind, 1, 1, 1, seed=0)
            if cls.init.__qualname__ == Model.init.__qualname__:  # hands options on to the class
                make = partial(inspect.signature(cls).bind, 1, 1)
            _fit(key, name, make, model.options, ("seed",))
        else:
            cls = _imported(key, name, NegativesLoss, "kgfast.losses.NegativesLoss")
            _fit(key, name, cls, loss.options, _OF_A_STEP)
        _FOLLOWED[name] = cls


def own_class(key: str, name: str) -> Any:
    """Return an imported class; raise a ValueError for any other."""
    if name not in _FOLLOWED:
        raise ValueError(_refused(key, name))
    return _FOLLOWED[name]


def loss_of(name: str) -> type[Loss]:
    """Return the class of a loss of a config."""
    cls: type[Loss] = own_class("loss", name) if is_own(name) else LOSSES[name]
    return cls


def _refused(key: str, name: str) -> str:
    return (
        f"{key}.name: {name} is a user's own code, which only training runs by default; if you "
        "trust the author, say so with --trust (in Python trust=True)"
    )


def _imported(key: str, path: str, base: type, base_name: str) -> type[Any]:
    """Import a class; modules in the current folder are found, too."""
    module_name, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise  # another module, which this module imports, is missing
        raise ValueError(
            f"{key}.name: {path}: there is no module {error.name}, neither in {os.getcwd()} nor "
            "where Python looks (PYTHONPATH)"
        ) from None
    cls: Any = getattr(module, name, None)
    if cls is None:
        held = [own for own, it in vars(module).items() if isinstance(it, type)]
        raise ValueError(
            f"{key}.name: module {module_name} has no {name}{did_you_mean(name, held)}"
        )
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise ValueError(f"{key}.name: {path} must be a class that extends {base_name}")
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        raise ValueError(f"{key}.name: {path} must implement {', '.join(missing)}")
    return cls


def _fit(
    key: str,
    name: str,
    make: Callable[..., Any],
    options: Mapping[str, Any],
    given: Sequence[str],
) -> None:
    """Check options, none of which may be an argument that training gives."""
    for option in given:
        if option in options:
            raise ValueError(
                f"{key}.options: {option} is an argument that training gives; {name} must give "
                "its option another name"
            )
    try:
        make(**options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{key}.options: {name} does not take these options: {error}") from None
