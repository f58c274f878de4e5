"""The examples, which are packages beside kgfast, as modules."""

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

from support.paths import ROOT

# A path-star graph and a GPT that train in a moment.
PATH_STAR = (
    *("graph_d=12", "graph_l=4", "graph_vocab_size=400", "graph_replicas=2", "n_layer=1"),
    *("n_head=2", "n_embd=16", "batch_size=32", "num_negatives=40"),
)


def load(name: str) -> ModuleType:
    """Load a module of an example: ``path_star.train`` is examples/path_star/train.py."""
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
