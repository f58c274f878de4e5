"""Exact ranking of knowledge-graph embeddings, in megabytes and seconds.

A name is imported at its first use, and torch with the first name: ``kgfast --help`` loads neither.
"""

import os
import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING, Any
from warnings import warn

if TYPE_CHECKING:
    from kgfast import datasets, distributed, losses, tables
    from kgfast.adapters.official import load_official
    from kgfast.environment import info
    from kgfast.eval import (
        AnswersAbove,
        Classification,
        Facts,
        Index,
        Predictions,
        Ranks,
        above,
        classify,
        compare,
        rank,
        top_facts,
        topk,
    )
    from kgfast.graph import KnownTriples, Triples, TypeConstraints, Vocabulary
    from kgfast.models import (
        CP,
        MED,
        RESCAL,
        RSCF,
        BlockScorer,
        Candidates,
        ComplEx,
        ConvE,
        DistMult,
        Model,
        Reciprocal,
        RotatE,
        TransE,
    )
    from kgfast.ops import RowGradients, cores_for_kernels, unchecked, use_backend
    from kgfast.training import RowAdagrad, RowAdam, load_run, save

__version__ = "0.9.0"

__all__ = [
    "CP",
    "MED",
    "RESCAL",
    "RSCF",
    "AnswersAbove",
    "BlockScorer",
    "Candidates",
    "Classification",
    "ComplEx",
    "ConvE",
    "DistMult",
    "Facts",
    "Index",
    "KnownTriples",
    "Model",
    "Predictions",
    "Ranks",
    "Reciprocal",
    "RotatE",
    "RowAdagrad",
    "RowAdam",
    "RowGradients",
    "TransE",
    "Triples",
    "TypeConstraints",
    "Vocabulary",
    "above",
    "classify",
    "compare",
    "cores_for_kernels",
    "datasets",
    "distributed",
    "info",
    "load_official",
    "load_run",
    "losses",
    "rank",
    "save",
    "tables",
    "top_facts",
    "topk",
    "unchecked",
    "use_backend",
]

_HOMES = {
    "adapters.official": ("load_official",),
    "environment": ("info",),
    "eval": (
        *("AnswersAbove", "Classification", "Facts", "Index", "Predictions"),
        *("Ranks", "above", "classify", "compare", "rank", "top_facts", "topk"),
    ),
    "graph": ("KnownTriples", "Triples", "TypeConstraints", "Vocabulary"),
    "models": (
        *("CP", "MED", "RESCAL", "RSCF", "BlockScorer", "Candidates", "ComplEx", "ConvE"),
        *("DistMult", "Model", "Reciprocal", "RotatE", "TransE"),
    ),
    "ops": ("RowGradients", "cores_for_kernels", "unchecked", "use_backend"),
    "training": ("RowAdagrad", "RowAdam", "load_run", "save"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_POLICY = "OMP_WAIT_POLICY"
_sets_policy = False


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        globals()[name] = value = getattr(import_module(f"kgfast.{_HOME_OF[name]}"), name)
        if _sets_policy:
            os.environ.pop(_POLICY, None)  # not for other programs that this process starts
        return value
    if not name.startswith("_") and find_spec(f"kgfast.{name}") is not None:
        return import_module(f"kgfast.{name}")
    raise AttributeError(f"module 'kgfast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def _become_the_installed() -> None:
    """Replace this package by the installed package.

    ``python -m`` looks in the working directory first and finds the source of a clone. An install
    makes kgfast.kernels of kernels/, with the compiled extension.
    """
    homes = (os.path.join(entry, "kgfast") for entry in sys.path)
    home = next((it for it in homes if os.path.isfile(f"{it}/kernels/__init__.py")), None)
    source = os.path.dirname(__file__)
    if home is None:
        raise ImportError(
            f"kgfast is not installed: {source} is its source, without kernels; run `make install` "
            "there, or `pip install .`"
        )
    warn(f"{source} is the source of kgfast, without kernels: {home} is used", stacklevel=3)
    spec = spec_from_file_location(__name__, f"{home}/__init__.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[__name__] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


if find_spec("kgfast.kernels") is None:
    _become_the_installed()
elif "torch" not in sys.modules and _POLICY not in os.environ:
    # OpenMP reads the variable once, when torch is loaded. By default its threads spin for
    # milliseconds after an operator, on the cores that the next kernel needs.
    os.environ[_POLICY] = "PASSIVE"
    _sets_policy = True
