"""The worst and the best predictions of a ranking, with labels."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kgfast.eval import Ranks, topk
from kgfast.graph import KnownTriples, Vocabulary

_ANSWERS = 3  # answers shown that the model prefers


@dataclass(frozen=True)
class Example:
    """Triple, and the rank of one side."""

    head: str
    relation: str
    tail: str
    side: str  # the predicted side
    rank: float
    candidates: int
    frequency: int  # number of known triples with the target
    instead: list[str]  # answers that the model prefers; only for the worst predictions


def examples(
    model: Any,
    ranks: Ranks,
    known: KnownTriples,
    names: tuple[Vocabulary | None, Vocabulary | None],
    count: int,
    dims: int | None = None,
) -> tuple[list[Example], list[Example]]:
    """Return the ``count`` worst predictions and the ``count`` best.

    Among equal ranks, the worst begin with the most frequent targets and the best with the rarest,
    since these surprise most.
    """
    columns = [2 if side == "tail" else 0 for side in ranks.sides]
    targets = ranks.triples[:, columns]
    frequency = _frequency(known, targets)
    cells = ranks.realistic.flatten(), frequency.flatten()
    worst = _first(-cells[0], -cells[1], count)
    best = _first(*cells, count)
    worst = worst[cells[0][worst] > 1]  # if all are first, none is bad
    return (
        [_example(model, ranks, frequency, names, cell, (known, dims)) for cell in worst.tolist()],
        [_example(model, ranks, frequency, names, cell, None) for cell in best.tolist()],
    )


def _first(key: Tensor, then: Tensor, count: int) -> Tensor:
    """Return the places of the ``count`` lowest keys; ties by the second keys, then in order."""
    order = then.argsort(stable=True)
    return order[key[order].argsort(stable=True)][:count]


def _frequency(known: KnownTriples, targets: Tensor) -> Tensor:
    counts = known.entity_frequency().to(targets.device)
    found = torch.zeros_like(targets)
    seen = targets < len(counts)
    found[seen] = counts[targets[seen]]
    return found


def _example(
    model: Any,
    ranks: Ranks,
    frequency: Tensor,
    names: tuple[Vocabulary | None, Vocabulary | None],
    cell: int,
    asked: tuple[KnownTriples, int | None] | None,
) -> Example:
    row, column = divmod(cell, len(ranks.sides))
    side = ranks.sides[column]
    head, relation, tail = ranks.triples[row].tolist()
    instead = []
    if asked is not None:
        known, dims = asked
        anchor: Any = {"heads": head} if side == "tail" else {"tails": tail}
        top = topk(
            model, **anchor, relations=relation, k=_ANSWERS, known=known, dims=dims, pad=True
        )
        instead = [_name(names[0], entity) for entity in top.ids[0].tolist() if entity >= 0]
    return Example(
        _name(names[0], head),
        _name(names[1], relation),
        _name(names[0], tail),
        side,
        float(ranks.realistic[row, column]),
        int(ranks.num_candidates[row, column]),
        int(frequency[row, column]),
        instead,
    )


def _name(names: Vocabulary | None, number: int) -> str:
    return str(number) if names is None else names.text(number)
