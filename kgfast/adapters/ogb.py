"""Protocols of the Open Graph Benchmark: ogbl-wikikg2 and ogbl-biokg.

Functions take the dicts of ``dataset.get_edge_split()`` unchanged; memory-mapped arrays are read by
block. A positive's rank among the negatives is ``(number greater + number greater or equal) / 2 +
1``, as in ogb's evaluator since version 1.3.4. A repeated negative counts each time. One thing
differs: scores are kgfast's canonical float64 scores, so that no ties come from float32's rounding.
`ogb` itself is not needed.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kgfast.eval import Ranks, check_rankable, rank
from kgfast.graph import as_columns, as_integers
from kgfast.models import SIDES
from kgfast.progress import progress_bar
from kgfast.text import shown

_PAIRS = 1 << 20  # ids of a block of negatives, both sides: 8 MiB as int64


def evaluate(
    model: Any,
    split: Mapping[str, Any],
    *,
    num_nodes: Mapping[str, int] | None = None,
    nan: Literal["error", "worst"] = "error",
    progress: bool = False,
) -> Ranks:
    """Rank every head and tail among the given negatives.

    Parameters
    ----------
    model : Model
        Any model of :func:`kgfast.rank`. For ogbl-biokg, rows are the nodes of one type after the
        other, in the order of ``num_nodes``, as in OGB's baseline.
    split : mapping
        ``split["valid"]`` or ``split["test"]`` of ``dataset.get_edge_split()``: ``head``,
        ``relation``, ``tail`` ``[T]``, ``head_neg``, ``tail_neg`` ``[T, K]``; for ogbl-biokg also
        ``head_type`` and ``tail_type``, T names.
    num_nodes : mapping of str to int, optional
        For ogbl-biokg, ``dataset[0]["num_nodes_dict"]``: ids then count from 0 within a type.
    nan : {"error", "worst"}
        See :func:`kgfast.rank`.
    progress : bool
        Show a progress bar.

    Returns
    -------
    Ranks
        Ranks of each positive among the negatives, for heads and tails; their ``mrr`` and ``hits``
        are those of leaderboards. :func:`lists` makes the lists of ``Evaluator.eval``.

    Raises
    ------
    KeyError, ValueError, TypeError
        For an incomplete split, shapes that do not fit each other, ids that the model or the type
        lacks, and an empty split.

    Examples
    --------
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[0.0], [1.0], [3.0], [1.0]]), torch.tensor([[1.0]]))
    >>> split = {"head": [0], "relation": [0], "tail": [1],
    ...          "head_neg": [[1, 2]], "tail_neg": [[2, 3]]}
    >>> evaluate(model, split).realistic.tolist()
    [[1.0, 1.5]]
    """
    check_rankable(model)
    if not isinstance(split, Mapping):
        raise ValueError(f"split must be a mapping of get_edge_split(); got {shown(split)}")
    named = {name: _of(split, name) for name in ("head", "relation", "tail")}
    heads, relations, tails = (column.cpu() for column in as_columns(named))
    if not len(heads):
        raise ValueError("head is empty: there is nothing to rank")
    count = model.num_entities
    ranges = [_ranges_of(split, side, num_nodes, count, len(heads)) for side in SIDES]
    heads, tails = (
        _as_rows(side, ids, of_side)
        for side, ids, of_side in zip(SIDES, (heads, tails), ranges, strict=True)
    )
    hrt, blocks = torch.stack([heads, relations, tails], 1), []
    with progress_bar(progress, "ranking", len(hrt)) as advance:
        for rows in _blocks(split, len(hrt)):
            negatives = [
                _negatives(f"{side}_neg", split, of_side, rows)
                for side, of_side in zip(SIDES, ranges, strict=True)
            ]
            blocks.append(_rank_block(model, hrt[rows], negatives, nan))
            advance(len(hrt[rows]))
    greater, equal, sizes = (torch.cat(counts) for counts in zip(*blocks, strict=True))
    return Ranks(greater, equal, sizes, SIDES, hrt)


def lists(ranks: Ranks) -> dict[str, Tensor]:
    """Return the lists of ``Evaluator.eval``, heads before tails: float32 ``[2 T]``.

    Keys are ``hits@1_list``, ``hits@3_list``, ``hits@10_list`` and ``mrr_list``.
    """
    values = ranks.realistic.T.flatten().float()
    hits = {f"hits@{k}_list": (values <= k).float() for k in (1, 3, 10)}
    return hits | {"mrr_list": 1 / values}


class _Ranges(NamedTuple):
    """The rows of a model that ids may name, for each triple, int64 ``[T]``."""

    starts: Tensor
    sizes: Tensor
    types: Any  # name of each type; None: all entities


def _of(split: Mapping[str, Any], name: str) -> Any:
    if name not in split:
        raise KeyError(f"the split lacks {name!r}, and has {', '.join(map(str, split))}")
    return split[name]


def _ranges_of(
    split: Mapping[str, Any], side: str, num_nodes: Any, num_entities: int, count: int
) -> _Ranges:
    name = f"{side}_type"
    if num_nodes is None:
        if name in split:
            raise ValueError(
                f"the split has {name}, so that ids count from 0 within a type: pass "
                'num_nodes=dataset[0]["num_nodes_dict"]'
            )
        starts = torch.zeros(count, dtype=torch.int64, device="cpu")
        return _Ranges(starts, torch.full_like(starts, num_entities), None)
    if not isinstance(num_nodes, Mapping) or not all(
        isinstance(size, int | np.integer) and size >= 0 for size in num_nodes.values()
    ):
        raise ValueError(
            f"num_nodes must map names of types to numbers of nodes; got {shown(num_nodes)}"
        )
    total = sum(num_nodes.values())
    if total != num_entities:
        raise ValueError(
            f"num_nodes: {total:,} nodes of all types, but the model has {num_entities:,} entities"
        )
    types = _of(split, name)
    if not hasattr(types, "__len__") or len(types) != count:
        raise ValueError(f"{name} must name a type for each of {count} triples")
    places = {kind: place for place, kind in enumerate(num_nodes)}
    for row, kind in enumerate(types):
        if not isinstance(kind, str) or kind not in places:
            raise ValueError(f"{name}[{row}] must be one of {', '.join(places)}; got {shown(kind)}")
    of_type = torch.tensor([places[kind] for kind in types], dtype=torch.int64, device="cpu")
    sizes = torch.tensor(list(num_nodes.values()), dtype=torch.int64, device="cpu")
    return _Ranges((sizes.cumsum(0) - sizes)[of_type], sizes[of_type], types)


def _as_rows(name: str, ids: Tensor, ranges: _Ranges, first: int = 0) -> Tensor:
    """Return ids ``[b]`` or ``[b, K]`` of the triples from ``first`` on as rows of the model."""
    starts, sizes = (column[first : first + len(ids)] for column in ranges[:2])
    if ids.ndim == 2:
        starts, sizes = starts[:, None], sizes[:, None]
    outside = ((ids < 0) | (ids >= sizes)).nonzero()
    if len(outside):
        row, *column = outside[0].tolist()
        whose = "the model" if ranges.types is None else f"type {ranges.types[first + row]!r}"
        raise ValueError(
            f"{name}[{', '.join(map(str, (first + row, *column)))}] must be in 0 .. "
            f"{int(sizes[row]) - 1}, as {whose} has; got {int(ids[row, *column])}"
        )
    return ids + starts


def _blocks(split: Mapping[str, Any], count: int) -> Iterator[slice]:
    """Yield ranges of triples with negatives that are read together."""
    width = 0
    for side in SIDES:
        name = f"{side}_neg"
        try:
            shape = np.shape(_of(split, name))
        except ValueError:  # rows of unequal length
            shape = ()
        if len(shape) != 2 or shape[0] != count:
            raise ValueError(
                f"{name} must have a row for each of {count} triples; got shape {list(shape)}"
            )
        width += shape[1]
    step = max(1, _PAIRS // max(1, width))
    for first in range(0, count, step):
        yield slice(first, min(first + step, count))


def _negatives(name: str, split: Mapping[str, Any], ranges: _Ranges, rows: slice) -> Tensor:
    ids = split[name][rows]
    ids = as_integers(name, np.array(ids) if isinstance(ids, np.memmap) else ids).cpu()
    return _as_rows(name, ids, ranges, rows.start)


def _rank_block(
    model: Any, hrt: Tensor, negatives: list[Tensor], nan: Literal["error", "worst"]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return greater, equal and number of candidates ``[b, 2]`` of a block of triples."""
    targets = hrt[:, ::2]
    # A negative equal to the positive ties with the positive.
    equal = torch.stack([(ids == targets[:, i, None]).sum(1) for i, ids in enumerate(negatives)], 1)
    greater = torch.zeros_like(targets)
    for column, (side, ids) in enumerate(zip(SIDES, negatives, strict=True)):
        for layer in _layers(ids):
            rows = (layer >= 0).any(1).nonzero()[:, 0]
            candidates = {side: layer[rows]}
            ranks = rank(model, hrt[rows], sides=(side,), candidate_ids=candidates, nan=nan)
            greater[rows, column] += ranks.greater[:, 0]
            equal[rows, column] += ranks.equal[:, 0]
    sizes = torch.tensor([ids.shape[1] + 1 for ids in negatives], dtype=torch.int64, device="cpu")
    return greater, equal, sizes.expand(len(hrt), 2)


def _layers(ids: Tensor) -> Iterator[Tensor]:
    """Yield rows without repeated ids: the j-th layer has ids that occur more than j times."""
    ordered = ids.sort(1).values
    is_new = torch.ones_like(ordered, dtype=torch.bool)
    is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    if bool(is_new.all()):
        yield ordered
        return
    place = torch.arange(ordered.shape[1], dtype=torch.int64, device="cpu").expand_as(ordered)
    before = place - torch.where(is_new, place, 0).cummax(1).values
    for depth in range(int(before.max()) + 1):
        yield torch.where(before == depth, ordered, -1)
