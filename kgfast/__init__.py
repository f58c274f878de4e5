"""Exact, streamed ranking of knowledge-graph embeddings at the limit of the hardware.

Names are loaded when they are first asked for, and torch with them: ``kgfast --help`` needs none.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from kgfast.openmp import let_torch_sleep

if TYPE_CHECKING:
    from kgfast import datasets, distributed, heads, losses, paths, tables
    from kgfast.environment import info
    from kgfast.eval.comparison import compare
    from kgfast.eval.facts import Facts
    from kgfast.eval.index import Index
    from kgfast.eval.prediction import topk
    from kgfast.eval.predictions import Predictions
    from kgfast.eval.ranking import rank
    from kgfast.eval.ranks import Ranks
    from kgfast.eval.top_facts import top_facts
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
    from kgfast.ops import unchecked, use_backend
    from kgfast.training.loading import load_run
    from kgfast.training.official import load_official

__version__ = "0.1.0"

__all__ = [
    "CP",
    "MED",
    "RESCAL",
    "RSCF",
    "BlockScorer",
    "Candidates",
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
    "TransE",
    "Triples",
    "TypeConstraints",
    "Vocabulary",
    "compare",
    "datasets",
    "distributed",
    "heads",
    "info",
    "load_official",
    "load_run",
    "losses",
    "paths",
    "rank",
    "tables",
    "top_facts",
    "topk",
    "unchecked",
    "use_backend",
]

_HOMES = {
    "environment": ("info",),
    "eval.comparison": ("compare",),
    "eval.facts": ("Facts",),
    "eval.index": ("Index",),
    "eval.prediction": ("topk",),
    "eval.predictions": ("Predictions",),
    "eval.ranking": ("rank",),
    "eval.ranks": ("Ranks",),
    "eval.top_facts": ("top_facts",),
    "graph": ("KnownTriples", "Triples", "TypeConstraints", "Vocabulary"),
    "models": (
        *("CP", "MED", "RESCAL", "RSCF", "BlockScorer", "Candidates", "ComplEx", "ConvE"),
        *("DistMult", "Model", "Reciprocal", "RotatE", "TransE"),
    ),
    "ops": ("unchecked", "use_backend"),
    "training.loading": ("load_run",),
    "training.official": ("load_official",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(import_module(f"kgfast.{_HOME_OF[name]}"), name)
        globals()[name] = value
        return value
    if not name.startswith("_") and find_spec(f"kgfast.{name}") is not None:
        return import_module(f"kgfast.{name}")
    raise AttributeError(f"module 'kgfast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if find_spec("kgfast.kernels") is None:
    raise ImportError(
        "kgfast is not installed: this is its source, whose kernels/ become kgfast.kernels when it "
        "is; run `make install` here, or `pip install -e .`"
    )
let_torch_sleep()
