"""The tkgl-* data sets of the Temporal Graph Benchmark, ranked as py-tgb's evaluator ranks them."""

import os
from pathlib import Path
from typing import Any

from kgfast.datasets import load
from kgfast.eval import Ranks, rank
from kgfast.graph import KnownTriples


def evaluate(model: Any, source: Any, split: str = "test", *, progress: bool = False) -> Ranks:
    """Rank heads and tails of a split; ``mrr`` and ``hits(10)`` are those of leaderboards.

    Candidates are all entities but the answers of the split at the same time, and ties count half
    (realistic ranks). A head is ranked as py-tgb ranks the tail of the inverse relation.

    Parameters
    ----------
    model : Model
        A temporal model with the ids of :func:`kgfast.datasets.load`, which are those of py-tgb.
    source : path or LinkPropPredDataset
        The folder of the data set, or py-tgb's object, which names its folder. A
        NotImplementedError names tkgl-wikidata, which py-tgb ranks among drawn candidates.
    split : {"valid", "test"}
    progress : bool
        Show a progress bar.

    Raises
    ------
    TypeError, FileNotFoundError, ValueError
        For another object, and as :func:`kgfast.datasets.load` and :func:`kgfast.rank`.
    """
    root = source if isinstance(source, str | os.PathLike) else getattr(source, "root", None)
    if root is None:
        raise TypeError(f"source must be a tgb LinkPropPredDataset; got {type(source).__name__}")
    if any(Path(root).glob("tkgl-wikidata*")):
        raise NotImplementedError(
            "source: py-tgb draws candidates of tkgl-wikidata; kgfast.rank(model, load(folder)) "
            "ranks among all entities"
        )
    triples = load(root).split(split)
    return rank(model, triples, known=KnownTriples(triples), progress=progress)
