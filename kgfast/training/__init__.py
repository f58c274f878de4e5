"""Training: a config, a trainer, a run folder.

Names are loaded when they are first asked for: importing kgfast needs none of what they need.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kgfast.training.config import Config
    from kgfast.training.official import load_official
    from kgfast.training.run_folder import RunFolder
    from kgfast.training.trainer import Result, Trainer

_HOMES = {
    "Config": "config",
    "Result": "trainer",
    "RunFolder": "run_folder",
    "Trainer": "trainer",
    "load_official": "official",
}

__all__ = ["Config", "Result", "RunFolder", "Trainer", "load_official"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
