"""The tkgl-* data sets of the Temporal Graph Benchmark, ranked as py-tgb's evaluator ranks them.

Functions take py-tgb's ``LinkPropPredDataset`` unchanged. py-tgb itself is not imported.
"""

from typing import Any

import numpy as np
import torch

from kgfast.datasets import Dataset
from kgfast.eval import Ranks, rank
from kgfast.graph import KnownTriples, TimedRelations, Triples, Vocabulary

_COLUMNS = ("sources", "edge_type", "destinations", "timestamps")
_MASKS = {"train": "train_mask", "valid": "val_mask", "test": "test_mask"}


def dataset(source: Any) -> Dataset:
    """Return the quads of a data set, without its inverse relations, for training and ranking.

    Entities and relations have py-tgb's ids as names, times their timestamps, in order.

    Parameters
    ----------
    source : LinkPropPredDataset
        Another object is a TypeError, and a data set without relations a ValueError.
    """
    if not hasattr(source, "full_data") or not all(hasattr(source, it) for it in _MASKS.values()):
        raise TypeError(f"source must be a tgb LinkPropPredDataset; got {type(source).__name__}")
    if "edge_type" not in source.full_data:
        raise ValueError("source: full_data has no edge_type: only tkgl-* data sets have quads")
    heads, relations, tails, stamps = (np.asarray(source.full_data[name]) for name in _COLUMNS)
    count = len(np.unique(relations)) // 2  # py-tgb appends the inverse of r as r + count
    times, places = np.unique(stamps, return_inverse=True)
    quads = torch.from_numpy(np.stack([heads, relations, tails, places], 1).astype(np.int64))
    of_columns = (range(heads.max() + 1), range(count), times.tolist())
    entities, *pair = (Vocabulary(map(str, ids)) for ids in of_columns)
    names: Any = {"entities": entities, "relations": TimedRelations(*pair)}
    for split, mask in _MASKS.items():
        is_here = torch.from_numpy(np.asarray(getattr(source, mask)) & (relations < count))
        names[split] = Triples(quads[is_here], entities=entities, relations=names["relations"])
    return Dataset(name=str(getattr(source, "name", "tkgl")), **names)


def evaluate(model: Any, source: Any, split: str = "test", *, progress: bool = False) -> Ranks:
    """Rank heads and tails of a split; ``mrr`` and ``hits(10)`` are those of leaderboards.

    Candidates are all entities but the answers of the split at the same time, and ties count half
    (realistic ranks). A head is ranked as py-tgb ranks the tail of the inverse relation.

    Parameters
    ----------
    model : Model
        A temporal model of the ids of :func:`dataset`.
    source : LinkPropPredDataset
        A NotImplementedError names tkgl-wikidata, which py-tgb ranks among drawn candidates. Other
        errors are those of :func:`dataset` and :func:`kgfast.rank`.
    split : {"valid", "test"}
    progress : bool
        Show a progress bar.
    """
    strategy = getattr(getattr(source, "negative_sampler", None), "strategy", "time-filtered")
    if strategy != "time-filtered":
        raise NotImplementedError(
            f"source: its candidates are drawn ({strategy}); kgfast.rank(model, dataset(source)) "
            "ranks among all entities"
        )
    triples = dataset(source).split(split)
    return rank(model, triples, known=KnownTriples(triples), progress=progress)
