"""Extras built on the rest of kgfast, from its public names.

    heads       output layers over very many outputs
    influence   training triples that influenced a prediction most
    paths       sums over the paths of a graph
    report      a run on one page of HTML
    search      search for values of a config
    serve       a model behind HTTP

No extra imports another, except report and serve, which import what they show. Only the command
line imports extras; ``kgfast.extras.report`` does so at its first use.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any


def __getattr__(name: str) -> Any:
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
