"""Training: a config, a trainer, a run folder.

Names are loaded when they are first asked for: importing kgfast needs none of what they need.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kgfast.training.config import Config
    from kgfast.training.export import export_run
    from kgfast.training.loading import LoadedRun, load_run
    from kgfast.training.official import load_official
    from kgfast.training.run_folder import RunFolder
    from kgfast.training.trainer import Result, Trainer

_HOMES = {
    "Config": "config",
    "Result": "trainer",
    "LoadedRun": "loading",
    "RunFolder": "run_folder",
    "Trainer": "trainer",
    "export_run": "export",
    "load_official": "official",
    "load_run": "loading",
}

__all__ = [
    "Config",
    "LoadedRun",
    "Result",
    "RunFolder",
    "Trainer",
    "export_run",
    "load_official",
    "load_run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
