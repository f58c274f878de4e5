"""Protocols of the Open Graph Benchmark: ogbl-wikikg2, ogbl-biokg and WikiKG90Mv2.

Functions take the dicts of ``dataset.get_edge_split()`` unchanged; memory-mapped arrays are read by
block. A positive's rank among the negatives is ``(number greater + number greater or equal) / 2 +
1``, as in ogb's evaluator since version 1.3.4. A repeated negative counts each time. One thing
differs: scores are kgfast's canonical float64 scores, so that no ties come from float32's rounding.
`ogb` itself is not needed.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from kgfast.adapters.ogb_splits import OgbSplit
from kgfast.eval import Ranks, check_rankable, rank, topk
from kgfast.graph import KnownTriples, as_integers
from kgfast.models import SIDES
from kgfast.progress import progress_bar
from kgfast.text import shown
from kgfast.whole_files import write_whole

_MODES = {"valid": None, "test-dev": 15_000, "test-challenge": 10_000}
_TOP = 10


@dataclass(frozen=True)
class OgbRanks:
    """Ranks that :func:`evaluate` found.

    Attributes
    ----------
    sampled : Ranks
        Ranks of each positive among the negatives, for heads and tails.
    full : Ranks or None
        Ranks of these triples among all entities, or all entities of the right type.
    """

    sampled: Ranks
    full: Ranks | None = None

    def lists(self) -> dict[str, Tensor]:
        """Return the lists of ``Evaluator.eval``, heads before tails: float32 ``[2 T]``.

        Keys are ``hits@1_list``, ``hits@3_list``, ``hits@10_list`` and ``mrr_list``.
        """
        ranks = self.sampled.realistic.T.flatten().float()
        hits = {f"hits@{k}_list": (ranks <= k).float() for k in (1, 3, 10)}
        return hits | {"mrr_list": 1 / ranks}

    def metrics(self) -> dict[str, float]:
        """Return the means on leaderboards: ``mrr``, ``hits@1``, ``hits@3`` and ``hits@10``."""
        every = self.sampled.metrics()
        return {name: every[name] for name in ("mrr", "hits@1", "hits@3", "hits@10")}


def evaluate(
    model: Any,
    split: Mapping[str, Any],
    *,
    num_nodes: Mapping[str, int] | None = None,
    full: bool = False,
    known: KnownTriples | None = None,
    nan: Literal["error", "worst"] = "error",
    progress: bool = False,
) -> OgbRanks:
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
    full : bool
        Also rank exactly among all entities, or among all entities of the type.
    known : KnownTriples, optional
        Filter of the full ranks; :func:`known_triples` makes one from all splits.
    nan : {"error", "worst"}
        See :func:`kgfast.rank`.
    progress : bool
        Show a progress bar.

    Returns
    -------
    OgbRanks

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
    >>> found = evaluate(model, split, full=True)
    >>> found.sampled.realistic.tolist(), found.full.realistic.tolist()
    ([[1.0, 1.5]], [[1.0, 1.5]])
    """
    check_rankable(model)
    data = OgbSplit(split, num_nodes, model.num_entities)
    if not len(data.hrt):
        raise ValueError("head is empty: there is nothing to rank")
    total = len(data.hrt) * (2 if full else 1)
    parts = []
    with progress_bar(progress, "ranking", total) as advance:
        for first, last in data.blocks():
            parts.append(_rank_block(model, data, first, last, nan))
            advance(last - first)
    counts = [torch.cat(column) for column in zip(*parts, strict=True)]
    sampled = Ranks(counts[0], counts[1], counts[2], SIDES, data.hrt)
    return OgbRanks(sampled, _rank_fully(model, data, known, nan) if full else None)


def known_triples(*splits: Mapping[str, Any], num_nodes: Any = None) -> KnownTriples:
    """Return the triples of splits, for :func:`evaluate`'s full ranks.

    Parameters
    ----------
    *splits
        ``split["train"]``, ``split["valid"]`` and ``split["test"]``.
    num_nodes : mapping of str to int, optional
        See :func:`evaluate`.

    Examples
    --------
    >>> known_triples({"head": [0, 1], "relation": [0, 0], "tail": [1, 1]})
    KnownTriples(2 triples, 2 (h, r) pairs, 1 (r, t) pairs)
    """
    return KnownTriples(*[OgbSplit(split, num_nodes, None).hrt for split in splits])


def predict_top10(
    model: Any,
    hr: Any,
    *,
    known: KnownTriples | None = None,
    batch_size: int | None = None,
    max_memory: int | str | None = None,
    partial: Any = None,
    progress: bool = False,
) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Find the ten best tails of WikiKG90Mv2's queries among all entities.

    Parameters
    ----------
    model : Model
        Any model of :func:`kgfast.topk`.
    hr : array or Tensor
        ``[T, 2]``, the rows of ``val_hr.npy`` or of a test set.
    known : KnownTriples, optional
        Triples whose tails are left out. OGB's evaluation uses none.
    batch_size, max_memory, partial, progress
        See :func:`kgfast.topk`.

    Returns
    -------
    ndarray
        int32 ``[T, 10]``, best first, -1 if a model has fewer entities. The evaluator takes
        ``{"h,r->t": {"t_pred_top10": ...}}``.

    Examples
    --------
    >>> from kgfast import TransE
    >>> model = TransE(torch.arange(12.0)[:, None], torch.tensor([[1.0]]))
    >>> predict_top10(model, [[3, 0]])[0, :3].tolist()
    [4, 3, 5]
    """
    rows = as_integers("hr", np.asarray(hr) if isinstance(hr, np.memmap) else hr)
    if rows.ndim != 2 or rows.shape[1] != 2:
        raise ValueError(f"hr must have shape [T, 2] (h, r); got {list(rows.shape)}")
    found = topk(
        model,
        heads=rows[:, 0],
        relations=rows[:, 1],
        k=_TOP,
        known=known,
        pad=True,
        batch_size=batch_size,
        max_memory=max_memory,
        partial=partial,
        progress=progress,
    )
    return found.ids.cpu().numpy().astype(np.int32)


def top10_mrr(tails: Any, predictions: Any) -> float:
    """Return WikiKG90Mv2's measure: the mean of 1 / place of each tail, 0 if missing.

    Raises
    ------
    ValueError
        For shapes that do not fit, and for a row that repeats an id, which OGB's evaluator gives 0.

    Examples
    --------
    >>> top10_mrr([7], [[3, 7, -1, -1, -1, -1, -1, -1, -1, -1]])
    0.5
    """
    targets, rows = as_integers("tails", tails).cpu(), _checked_top10(predictions)
    if targets.shape != rows.shape[:1]:
        raise ValueError(f"tails must have shape [{len(rows)}]; got {list(targets.shape)}")
    if not len(rows):
        return float("nan")
    place, hit = (rows == targets[:, None]).long().argmax(1), (rows == targets[:, None]).any(1)
    return float(torch.where(hit, 1 / (place.double() + 1), 0.0).mean())


def save_submission(predictions: Any, folder: str | os.PathLike[str], mode: str) -> Path:
    """Write WikiKG90Mv2's file like ogb's ``save_test_submission``; whole or not at all.

    Parameters
    ----------
    predictions : array or Tensor
        ``[T, 10]`` of :func:`predict_top10`.
    folder : path
        The folder, which is made if missing.
    mode : {"valid", "test-dev", "test-challenge"}
        The test sets have 15,000 and 10,000 queries.

    Returns
    -------
    Path
        ``t_pred_wikikg90m-v2_<mode>.npz``.

    Raises
    ------
    ValueError
        For another mode or number of queries, and for a row that repeats an id.
    """
    if mode not in _MODES:
        raise ValueError(f"mode must be one of {', '.join(_MODES)}; got {shown(mode)}")
    rows, count = _checked_top10(predictions), _MODES[mode]
    if count is not None and len(rows) != count:
        raise ValueError(f"{mode} has {count:,} queries; got predictions of {len(rows):,}")
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder, f"t_pred_wikikg90m-v2_{mode}.npz")
    found = rows.numpy().astype(np.int32)
    return write_whole(path, lambda it: np.savez_compressed(it, t_pred_top10=found))


def _checked_top10(predictions: Any) -> Tensor:
    rows = as_integers("predictions", predictions).cpu()
    if rows.ndim != 2 or rows.shape[1] != _TOP:
        raise ValueError(f"predictions must have shape [T, {_TOP}]; got {list(rows.shape)}")
    ordered = rows.sort(1).values
    repeats = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(1).nonzero()
    if len(repeats):
        row = int(repeats[0])
        raise ValueError(f"predictions[{row}] repeat an id: {rows[row].tolist()}")
    return rows


def _rank_block(
    model: Any, data: OgbSplit, first: int, last: int, nan: Literal["error", "worst"]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return greater, equal and number of candidates ``[b, 2]`` of a range of triples."""
    hrt = data.hrt[first:last]
    given = [data.negatives(column, first, last) for column in range(2)]
    for name, ids in zip(("head_neg", "tail_neg"), given, strict=True):
        _check_negatives(name, ids, model.num_entities, first)
    layers = [list(_layers(ids)) for ids in given]
    targets = hrt[:, ::2]
    # A negative equal to the positive ties with the positive.
    itself = torch.stack([(ids == targets[:, i, None]).sum(1) for i, ids in enumerate(given)], 1)
    greater, equal = torch.zeros_like(targets), itself
    for column, (side, own) in enumerate(zip(SIDES, layers, strict=True)):
        for layer in own:
            rows = (layer >= 0).any(1).nonzero()[:, 0]
            lists = {side: layer[rows]}
            ranks = rank(model, hrt[rows], known=None, sides=(side,), candidate_ids=lists, nan=nan)
            greater[rows, column] += ranks.greater[:, 0]
            equal[rows, column] += ranks.equal[:, 0]
    sizes = torch.tensor([ids.shape[1] + 1 for ids in given], dtype=torch.int64, device="cpu")
    return greater, equal, sizes.expand(len(hrt), 2)


def _check_negatives(name: str, ids: Tensor, count: int, first: int) -> None:
    outside = ((ids < 0) | (ids >= count)).nonzero()
    if len(outside):
        row, column = (int(axis) for axis in outside[0])
        raise ValueError(
            f"{name}[{first + row}, {column}] must be in 0 .. {count - 1}, as the model has; got "
            f"{int(ids[row, column])}"
        )


def _layers(ids: Tensor) -> Iterator[Tensor]:
    """Yield rows without repeated ids: the j-th layer has ids that occur more than j times."""
    ordered = torch.from_numpy(np.sort(ids.numpy(), axis=1))
    is_new = torch.ones_like(ordered, dtype=torch.bool)
    is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    if bool(is_new.all()):
        yield ordered
        return
    place = torch.arange(ordered.shape[1], dtype=torch.int64, device="cpu").expand_as(ordered)
    before = place - torch.where(is_new, place, 0).cummax(1).values
    for depth in range(int(before.max()) + 1):
        yield torch.where(before == depth, ordered, -1)


def _rank_fully(
    model: Any, data: OgbSplit, known: KnownTriples | None, nan: Literal["error", "worst"]
) -> Ranks:
    counts = torch.zeros((6, len(data.hrt), 2), dtype=torch.int64, device="cpu")
    for rows, entities in data.groups():
        ids = None if entities[0] is None else dict(zip(SIDES, entities, strict=True))
        part = rank(model, data.hrt[rows], known=known, candidate_ids=ids, nan=nan)
        for first, own in ((0, part), (3, part.raw)):
            counts[first, rows], counts[first + 1, rows] = own.greater, own.equal
            counts[first + 2, rows] = own.num_candidates
    raw = Ranks(counts[3], counts[4], counts[5], SIDES, data.hrt)
    return Ranks(counts[0], counts[1], counts[2], SIDES, data.hrt, raw=raw, known=known)
