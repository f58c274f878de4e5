"""What topk() is asked for: which side is predicted, of which queries, and how errors call them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kgfast.graph import Vocabulary, ids_or_names
from kgfast.graph.named import Names
from kgfast.models.base import Side


def asked_for(
    model: Any, heads: Any, relations: Any, tails: Any, names: Names
) -> tuple[Side, str, Tensor, Tensor]:
    """What is predicted, what the anchors are called, and anchors and others, ``[B]`` each."""
    side = _predicted(heads, relations, tails)
    name = "tails" if heads is None else "heads"
    entities = checked_ids_of(name, tails if heads is None else heads, model.num_entities, names[0])
    if side == "relation":
        others = checked_ids_of("tails", tails, model.num_entities, names[0])
    else:
        others = checked_ids_of("relations", relations, model.num_relations, names[1])
    return (
        side,
        name,
        *_broadcast(name, entities, others, "tails" if side == "relation" else "relations"),
    )


def _predicted(heads: Any, relations: Any, tails: Any) -> Side:
    """What is not given of the three."""
    if relations is None:
        if heads is None or tails is None:
            raise ValueError(
                "two of heads, relations and tails must be given; the third is predicted"
            )
        return "relation"
    if (heads is None) == (tails is None):
        raise ValueError("exactly one of heads and tails must be given; the other is predicted")
    return "head" if heads is None else "tail"


def checked_ids_of(name: str, values: Any, count: int, names: Vocabulary | None) -> Tensor:
    """Ids of one axis or none, int64, checked to lie below ``count``."""
    ids = ids_or_names(name, values, names)
    if ids.ndim > 1:
        raise ValueError(f"{name} must have one axis at most; got shape {list(ids.shape)}")
    if not ids.numel():
        return ids
    low, high = torch.aminmax(ids)
    if int(low) < 0 or int(high) >= count:
        row = int(((ids < 0) | (ids >= count)).reshape(-1).nonzero()[0])
        where = f"{name}[{row}]" if ids.ndim else name
        raise ValueError(f"{where} must be in 0 .. {count - 1}; got {int(ids.reshape(-1)[row])}")
    return ids


def _broadcast(name: str, anchors: Tensor, relations: Tensor, other: str) -> tuple[Tensor, Tensor]:
    """Both with one axis of the same length; one id goes with all of the other."""
    anchors, relations = anchors.reshape(-1), relations.to(anchors.device).reshape(-1)
    sizes = len(anchors), len(relations)
    if sizes[0] != sizes[1] and 1 not in sizes:
        raise ValueError(f"{name} and {other} must have one length; got {sizes[0]} and {sizes[1]}")
    length = sizes[1] if sizes[0] == 1 else sizes[0]
    return anchors.expand(length), relations.expand(length)


def query_in_words(side: Side, name: str, row: int, anchor: Tensor, other: Tensor) -> str:
    """A query, as messages call it."""
    what = "tail" if side == "relation" else "relation"
    return f"{name}[{row}] = {int(anchor)} with {what} {int(other)}"


def check_full(ids: Tensor, query: Callable[[int], str]) -> None:
    """That every query has its k answers, ``[B, k]``; ``query`` says a row's in words."""
    short = (ids[:, -1] < 0).nonzero()
    if len(short):
        row = int(short[0])
        raise ValueError(
            f"k must be at most the number of candidates left to each query: {query(row)} has "
            f"{int((ids[row] >= 0).sum())}, k is {ids.shape[1]} (pad=True fills the rest with id "
            f"-1)"
        )
