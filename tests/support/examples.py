"""The examples, which are packages beside kgfast, as modules."""

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

from support.paths import ROOT


def load(name: str) -> ModuleType:
    """A module of an example: ``path_star.train`` is examples/path_star/train.py."""
    package = name.split(".")[0]
    if package not in sys.modules:
        folder = ROOT / "examples" / package
        spec = spec_from_file_location(
            package, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        sys.modules[package] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[package])
    return import_module(name)
