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
    from kgfast import datasets as datasets
    from kgfast import distributed as distributed
    from kgfast import losses as losses
    from kgfast import tables as tables
    from kgfast.adapters.official import load_official as load_official
    from kgfast.environment import info as info
    from kgfast.eval import AnswersAbove as AnswersAbove
    from kgfast.eval import Classification as Classification
    from kgfast.eval import Facts as Facts
    from kgfast.eval import Index as Index
    from kgfast.eval import Predictions as Predictions
    from kgfast.eval import Ranks as Ranks
    from kgfast.eval import above as above
    from kgfast.eval import classify as classify
    from kgfast.eval import compare as compare
    from kgfast.eval import rank as rank
    from kgfast.eval import rank_rows as rank_rows
    from kgfast.eval import top_facts as top_facts
    from kgfast.eval import topk as topk
    from kgfast.eval import topk_rows as topk_rows
    from kgfast.graph import KnownTriples as KnownTriples
    from kgfast.graph import Triples as Triples
    from kgfast.graph import TypeConstraints as TypeConstraints
    from kgfast.graph import Vocabulary as Vocabulary
    from kgfast.models import CP as CP
    from kgfast.models import MED as MED
    from kgfast.models import RESCAL as RESCAL
    from kgfast.models import RSCF as RSCF
    from kgfast.models import BlockScorer as BlockScorer
    from kgfast.models import Candidates as Candidates
    from kgfast.models import ComplEx as ComplEx
    from kgfast.models import ConvE as ConvE
    from kgfast.models import DistMult as DistMult
    from kgfast.models import Model as Model
    from kgfast.models import Reciprocal as Reciprocal
    from kgfast.models import RotatE as RotatE
    from kgfast.models import TNTComplEx as TNTComplEx
    from kgfast.models import TransE as TransE
    from kgfast.models import save as save
    from kgfast.ops import RowGradients as RowGradients
    from kgfast.ops import cores_for_kernels as cores_for_kernels
    from kgfast.ops import unchecked as unchecked
    from kgfast.ops import use_backend as use_backend
    from kgfast.training import RowAdagrad as RowAdagrad
    from kgfast.training import RowAdam as RowAdam
    from kgfast.training import load_run as load_run

__version__ = "0.9.0"

_HOMES = {
    "adapters.official": ("load_official",),
    "environment": ("info",),
    "eval": (
        *("AnswersAbove", "Classification", "Facts", "Index", "Predictions"),
        *("Ranks", "above", "classify", "compare", "rank", "rank_rows", "top_facts", "topk"),
        "topk_rows",
    ),
    "graph": ("KnownTriples", "Triples", "TypeConstraints", "Vocabulary"),
    "models": (
        *("CP", "MED", "RESCAL", "RSCF", "BlockScorer", "Candidates", "ComplEx", "ConvE"),
        *("DistMult", "Model", "Reciprocal", "RotatE", "TNTComplEx", "TransE", "save"),
    ),
    "ops": ("RowGradients", "cores_for_kernels", "unchecked", "use_backend"),
    "training": ("RowAdagrad", "RowAdam", "load_run"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = [*_HOME_OF, "datasets", "distributed", "losses", "tables"]
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
    home = next(
        (folder for folder in homes if os.path.isfile(f"{folder}/kernels/__init__.py")), None
    )
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
