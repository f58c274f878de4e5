"""rank(): filtered and raw ranks of test triples, and the result object that keeps them."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from kgfast import ops
from kgfast.graph import KnownTriples, Triples, as_triples_tensor
from kgfast.models.base import SIDES, Side, check_dim
from kgfast.ranks import Ranks

_QUERY_BYTES = 8 << 20  # of one batch of queries


@overload
def rank(
    model: Any,
    triples: Any,
    *,
    known: KnownTriples | None = ...,
    sides: Sequence[Side] = ...,
    candidate_ids: Any = ...,
    dims: int | None = ...,
    batch_size: int | None = ...,
    nan: Literal["error", "worst"] = ...,
    progress: bool = ...,
) -> Ranks: ...
@overload
def rank(
    model: Any,
    triples: Any,
    *,
    known: KnownTriples | None = ...,
    sides: Sequence[Side] = ...,
    candidate_ids: Any = ...,
    dims: Sequence[int],
    batch_size: int | None = ...,
    nan: Literal["error", "worst"] = ...,
    progress: bool = ...,
) -> dict[int, Ranks]: ...
def rank(
    model: Any,
    triples: Any,
    *,
    known: KnownTriples | None = None,
    sides: Sequence[Side] = SIDES,
    candidate_ids: Any = None,
    dims: int | Sequence[int] | None = None,
    batch_size: int | None = None,
    nan: Literal["error", "worst"] = "error",
    progress: bool = False,
) -> Ranks | dict[int, Ranks]:
    """Rank the true entity of every triple among all candidates, exactly.

    Scores are never stored: they are compared and counted where they arise, so memory stays below
    64 MiB beyond the model's tables. The integers are those of the float64 specification
    (:mod:`kgfast.kernels.reference.rank`) on every backend and device.

    Parameters
    ----------
    model : Model
        Any object with ``score``, ``num_entities``, ``num_relations``, ``dim``, ``queries`` and
        ``candidates`` as :class:`kgfast.Model` has them. Evaluated under ``no_grad`` in eval mode,
        which is restored.
    triples : Triples, Tensor or array
        int64 ``[T, 3]``, (h, r, t). May be empty and may repeat triples.
    known : KnownTriples, optional
        Triples to filter by (train, valid and test); None: filtered ranks equal raw ones.
    sides : sequence of {"head", "tail"}
        What to predict.
    candidate_ids : tensor or sequence of int, optional
        Unique entity ids: rank among these only, which saves the work of the others. A target
        outside is ranked against them.
    dims : int or sequence of int, optional
        Crop widths, for croppable embeddings (MED). A sequence gives a dict of results.
    batch_size : int, optional
        Triples a batch. The default keeps a batch of queries within 8 MiB; results do not depend
        on it.
    nan : {"error", "worst"}
        What a NaN or an infinity in the embeddings gets: an error that names the row, or the worst
        rank.
    progress : bool
        Show a progress bar.

    Returns
    -------
    Ranks, or dict of int to Ranks

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit the model; the message names the first offending row.

    Examples
    --------
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[1.0]]))
    >>> ranks = rank(model, [(0, 0, 1), (1, 0, 2)])
    >>> ranks.side("tail").realistic.tolist()
    [[1.0], [1.5]]
    """
    plan = _plan(model, triples, known, sides, candidate_ids, batch_size, nan)
    widths = _crop_widths(model, dims)
    with _evaluating(model), torch.no_grad(), _bar(progress, plan, len(widths)) as advance:
        results = {
            dim: _rank_crop(plan, dim, width, advance, triples) for dim, width in widths.items()
        }
    if isinstance(dims, Sequence):
        return {dim: results[dim] for dim in dims}
    return results[dims]


@dataclass(frozen=True)
class _Plan:
    """The checked arguments of one call."""

    model: Any
    hrt: Tensor
    known: KnownTriples | None
    sides: tuple[Side, ...]
    candidate_ids: Tensor | None
    batch_size: int
    nan_worst: bool


def _plan(
    model: Any,
    triples: Any,
    known: KnownTriples | None,
    sides: Sequence[Side],
    candidate_ids: Any,
    batch_size: int | None,
    nan: str,
) -> _Plan:
    missing = [
        name
        for name in ("score", "num_entities", "num_relations", "dim", "queries", "candidates")
        if not hasattr(model, name)
    ]
    if missing:
        raise TypeError(f"model must have {', '.join(missing)}; {type(model).__name__} does not")
    if known is not None and not isinstance(known, KnownTriples):
        raise TypeError(f"known must be KnownTriples or None; got {type(known).__name__}")
    if isinstance(sides, str) or not sides or len(set(sides)) != len(sides):
        raise ValueError(f"sides must be distinct names of {SIDES}, in a tuple; got {sides!r}")
    for side in sides:
        if side not in SIDES:
            raise ValueError(f"sides must be of 'head' and 'tail'; got {side!r}")
    if nan not in ("error", "worst"):
        raise ValueError(f"nan must be 'error' or 'worst'; got {nan!r}")
    if batch_size is not None and (isinstance(batch_size, bool) or batch_size < 1):
        raise ValueError(f"batch_size must be at least 1; got {batch_size}")
    hrt = as_triples_tensor(
        triples, num_entities=model.num_entities, num_relations=model.num_relations
    )
    return _Plan(
        model,
        hrt,
        known,
        tuple(sides),
        _subset(candidate_ids),
        batch_size or max(64, min(4096, _QUERY_BYTES // (8 * max(1, model.dim)))),
        nan == "worst",
    )


def _subset(candidate_ids: Any) -> Tensor | None:
    if candidate_ids is None:
        return None
    ids: Tensor = torch.as_tensor(candidate_ids)
    if ids.numel() and (ids.dtype.is_floating_point or ids.dtype == torch.bool):
        raise TypeError(f"candidate_ids must be integers; got {ids.dtype}")
    return ids.to(torch.int64)


def _crop_widths(model: Any, dims: int | Sequence[int] | None) -> dict[int | None, int | None]:
    """Crop of the model -> crop of the operator (None: full width)."""
    if dims is None:
        return {None: None}
    crops = list(dims) if isinstance(dims, Sequence) else [dims]
    if not crops:
        raise ValueError("dims must name at least one crop width")
    width_of = getattr(model, "crop_width", lambda dim: dim)
    return {dim: width_of(check_dim(dim, model.dim)) for dim in crops}


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Eval mode for every module of the model, each restored afterwards."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    training = [module.training for module in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module, mode in zip(modules, training, strict=True):
            module.training = mode


@contextmanager
def _bar(progress: bool, plan: _Plan, crops: int) -> Iterator[Any]:
    """A function that advances the progress bar by a number of queries."""
    if not progress:
        yield lambda count: None
        return
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:-1], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bar:
        task = bar.add_task("ranking", total=len(plan.hrt) * len(plan.sides) * crops)
        yield lambda count: bar.advance(task, count)


def _rank_crop(
    plan: _Plan, dim: int | None, width: int | None, advance: Any, triples: Any
) -> Ranks:
    """All sides of one crop."""
    shape = (4, len(plan.hrt), len(plan.sides))
    counts = torch.zeros(shape, dtype=torch.int64)  # greater, equal and both of the excluded
    excluded = torch.zeros(shape[1:], dtype=torch.int64)  # known answers among the candidates
    for column, side in enumerate(plan.sides):
        side_counts = _rank_side(plan, side, dim, width, excluded[:, column], advance)
        counts[:, :, column] = side_counts
    total = _num_candidates(plan)
    raw = Ranks(counts[0], counts[1], total, plan.sides, plan.hrt.cpu())
    filtered = Ranks(
        counts[0] - counts[2],
        counts[1] - counts[3],
        total - excluded,
        plan.sides,
        plan.hrt.cpu(),
        raw=raw,
        known=plan.known,
        vocabularies=(
            (triples.entities, triples.relations) if isinstance(triples, Triples) else (None, None)
        ),
    )
    return filtered


def _rank_side(
    plan: _Plan,
    side: Side,
    dim: int | None,
    width: int | None,
    excluded: Tensor,
    advance: Any,
) -> Tensor:
    """The four counts of every triple on one side, ``[4, T]``; fills ``excluded [T]``."""
    candidates = plan.model.candidates(side)
    device = candidates.table.device
    subset = None if plan.candidate_ids is None else plan.candidate_ids.to(device)
    counts = torch.empty(4, len(plan.hrt), dtype=torch.int64)
    for batch in _batches(plan, side):
        heads, relations, tails = plan.hrt[batch].to(device).T
        anchors, targets = (heads, tails) if side == "tail" else (tails, heads)
        queries = plan.model.queries(anchors, relations, side, dims=dim)
        if not plan.nan_worst:
            _check_queries(queries, plan.hrt, batch, side)
        indptr, indices = _known_answers(plan.known, anchors, relations, side)
        result = ops.rank_counts(
            queries,
            targets=targets,
            exclude_indptr=indptr,
            exclude_indices=indices,
            score=plan.model.score,
            dims=None if width is None else [width],
            candidate_ids=subset,
            nan_worst=plan.nan_worst,
            **candidates.operands(),
        )
        counts[:, batch] = torch.stack([count.reshape(-1) for count in result]).cpu()
        excluded[batch] = _count_excluded(indptr, indices, targets, subset).cpu()
        advance(len(targets))
    return counts


def _batches(plan: _Plan, side: Side) -> Iterable[Tensor]:
    """Rows of the triples, batch by batch; equal queries stand together, as they share a sweep."""
    anchors = plan.hrt[:, 0 if side == "tail" else 2]
    order = (plan.hrt[:, 1] * plan.model.num_entities + anchors).argsort(stable=True)
    return order.split(plan.batch_size) if len(order) else ()


def _check_queries(queries: Tensor, hrt: Tensor, batch: Tensor, side: Side) -> None:
    """Name the triple whose query is not finite; tables are checked where they are read."""
    finite = queries.isfinite().all(1)
    if not bool(finite.all()):
        row = int(batch[~finite.to(batch.device)].min())
        raise ValueError(
            f"triples[{row}] = {tuple(hrt[row].tolist())}: its {side} query holds a NaN or "
            f"an infinity, from the embeddings of its entity or relation "
            f'(nan="worst" ranks it last)'
        )


def _known_answers(
    known: KnownTriples | None, anchors: Tensor, relations: Tensor, side: Side
) -> tuple[Tensor, Tensor]:
    if known is not None:
        return known.exclude(anchors, relations, side)
    zeros = torch.zeros(len(anchors) + 1, dtype=torch.int64, device=anchors.device)
    return zeros, zeros[:0]


def _count_excluded(
    indptr: Tensor, indices: Tensor, targets: Tensor, subset: Tensor | None
) -> Tensor:
    """Known answers of each query that are candidates and not its target, ``[B]``."""
    rows = torch.repeat_interleave(indptr.diff())
    counted = indices != targets[rows]
    if subset is not None:
        counted &= torch.isin(indices, subset)
    return torch.zeros_like(targets).index_add_(0, rows, counted.long())


def _num_candidates(plan: _Plan) -> Tensor:
    """Raw number of candidates, the target included, ``[T, S]``."""
    shape = (len(plan.hrt), len(plan.sides))
    if plan.candidate_ids is None:
        return torch.full(shape, plan.model.num_entities, dtype=torch.int64)
    columns = [2 if side == "tail" else 0 for side in plan.sides]
    subset = plan.candidate_ids.to(plan.hrt.device)
    outside = ~torch.isin(plan.hrt[:, columns], subset)
    return len(subset) + outside.long().cpu()
