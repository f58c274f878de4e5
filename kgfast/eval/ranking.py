"""rank(): filtered and raw ranks of test triples, and the result object that keeps them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, overload

import torch
from torch import Tensor

from kgfast.eval.batches import (
    check_known,
    check_names,
    check_rankable,
    checked_batch_size,
    evaluating,
    prepared_candidates,
)
from kgfast.eval.blocks import BlockPool, Queries, rows_of
from kgfast.eval.candidate_ids import (
    Given,
    ListedCandidates,
    candidates_of_sides,
    pool_sizes,
    runs_of,
)
from kgfast.eval.host import host_model
from kgfast.eval.ranks import GroupedRanks, Ranks
from kgfast.graph import (
    KnownTriples,
    TypeConstraints,
    as_triples_tensor,
    names_of,
    with_names,
)
from kgfast.graph.named import Names
from kgfast.kernels.checks import NonFiniteError
from kgfast.kernels.operands import Known, Lists, Operands
from kgfast.models.base import (
    SIDES,
    SIDES_AND_RELATIONS,
    Side,
    candidates_at,
    is_nested,
    operator_width,
    queries_at,
)
from kgfast.models.blocks import BlockScorer
from kgfast.models.relations import blocks_at
from kgfast.ops import run
from kgfast.ops.checks import check_queries
from kgfast.progress import progress_bar

_PINNING = ("cuda",)  # devices that read pinned memory while the host goes on
_KINDS = 6  # of counts
_GROUP = 1 << 17  # triples whose ids and counts lie on the device at a time: 8 MiB


@overload
def rank(
    model: Any,
    triples: Any,
    *,
    known: KnownTriples | Literal["dataset"] | None = ...,
    sides: Sequence[Side] = ...,
    candidate_ids: Any = ...,
    dims: int | None = ...,
    batch_size: int | None = ...,
    nan: Literal["error", "worst"] = ...,
    vocabulary: Any = ...,
    progress: bool = ...,
) -> Ranks: ...
@overload
def rank(
    model: Any,
    triples: Any,
    *,
    known: KnownTriples | Literal["dataset"] | None = ...,
    sides: Sequence[Side] = ...,
    candidate_ids: Any = ...,
    dims: Sequence[int],
    batch_size: int | None = ...,
    nan: Literal["error", "worst"] = ...,
    vocabulary: Any = ...,
    progress: bool = ...,
) -> GroupedRanks: ...
def rank(
    model: Any,
    triples: Any,
    *,
    known: KnownTriples | Literal["dataset"] | None = "dataset",
    sides: Sequence[Side] = SIDES,
    candidate_ids: Any = None,
    dims: int | Sequence[int] | None = None,
    batch_size: int | None = None,
    nan: Literal["error", "worst"] = "error",
    vocabulary: Any = None,
    progress: bool = False,
) -> Ranks | GroupedRanks:
    """Rank the true entity, or relation, of every triple among all candidates, exactly.

    Scores are never stored: they are compared and counted where they arise, so memory stays below
    64 MiB beyond the model's tables. The integers are those of the float64 specification
    (:mod:`kgfast.kernels.reference.rank`) on every backend and device.

    Parameters
    ----------
    model : Model
        Any object with ``score``, ``num_entities``, ``num_relations``, ``dim``, ``queries`` and
        ``candidates`` as :class:`kgfast.Model` has them, or a :class:`kgfast.BlockScorer`.
        Evaluated under ``no_grad`` in eval mode, which is restored.
    triples : Triples, Tensor, array, sequence or Dataset
        int64 ``[T, 3]``, (h, r, t), or rows of names; an object with such ``mapped_triples``; of a
        dataset its test split. May be empty and may repeat triples.
    known : KnownTriples, optional
        Triples to filter by (train, valid and test); None: filtered ranks equal raw ones. By
        default those of all splits where a dataset is ranked, and else None.
    sides : sequence of {"head", "relation", "tail"}
        What to predict. Relations are ranked among all relations, and filtered by (h, t); their
        metrics stand apart from those of entities.
    candidate_ids : tensor or sequence of int, TypeConstraints, or those of each triple, optional
        Unique entity ids, or names: rank among these only, which saves the work of the others. A
        target outside is ranked against them. A :class:`TypeConstraints` has those of each relation
        and side. A tensor or array ``[T, K]`` has those of each triple, -1 where it has fewer; an
        array may be memory-mapped. So does a pair (indptr ``[T + 1]``, ids) of tensors, CSR. A dict
        ``{"head": ..., "tail": ...}`` has any of these but constraints for each side. Relations are
        always ranked among all.
    dims : int or sequence of int, optional
        Crop widths, for croppable embeddings (MED). A sequence gives a result for each, from one
        sweep over the widest where crops are prefixes of the model's rows.
    batch_size : int, optional
        Triples a batch. The default keeps a batch of queries within 8 MiB; results do not depend
        on it, but for those of a function that scores by the batch.
    nan : {"error", "worst"}
        What a NaN or an infinity in the embeddings gets: an error that names the row, or the worst
        rank.
    vocabulary : pair of Vocabulary, Dataset or Triples, optional
        The names of the model's rows: for triples by name, and for groups that show them. Triples
        that have labels must have these.
    progress : bool
        Show a progress bar.

    Returns
    -------
    Ranks, or GroupedRanks
        For a sequence of ``dims``, a dict of int to Ranks that prints as one table.

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit the model; the message names the first offending row.
    NotImplementedError
        For relations, of a model that has no scores for them.

    Examples
    --------
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[1.0]]))
    >>> ranks = rank(model, [(0, 0, 1), (1, 0, 2)])
    >>> ranks.side("tail").realistic.tolist()
    [[1.0], [1.5]]
    """
    check_rankable(model)
    model = host_model(model)
    filtering = _known_of(known, triples)
    if _is_dataset(triples):
        vocabulary = triples if vocabulary is None else vocabulary
        triples = triples.test
    triples, names = with_names(triples, vocabulary)
    check_names(names_of(vocabulary), model)
    _check_choices(sides, nan)
    hrt = as_triples_tensor(
        triples, num_entities=model.num_entities, num_relations=model.num_relations
    )
    plan = _Plan(
        model,
        hrt.cpu(),
        filtering,
        tuple(sides),
        _given_of(candidate_ids, tuple(sides), len(hrt), model, names),
        checked_batch_size(batch_size, model),
        nan == "worst",
        names,
    )
    widths = _crop_widths(model, dims)
    total = len(plan.hrt) * len(plan.sides) * len(widths)
    with evaluating(model), torch.no_grad(), progress_bar(progress, "ranking", total) as advance:
        results: dict[int | None, Ranks] = {}
        for crops in _passes(model, widths):
            results |= _rank_crops(plan, crops, advance)
    if isinstance(dims, Sequence):
        return GroupedRanks("dim", {dim: results[dim] for dim in dims})
    return results[dims]


@dataclass(frozen=True)
class _Plan:
    """The checked arguments of one call."""

    model: Any
    hrt: Tensor  # on the host
    known: KnownTriples | None
    sides: tuple[Side, ...]
    candidates: dict[Side, Given]
    batch_size: int
    nan_worst: bool
    names: Names


def _given_of(
    candidate_ids: Any, sides: tuple[Side, ...], num_queries: int, model: Any, names: Names
) -> dict[Side, Given]:
    """The candidates of each side; relations have none of their own."""
    entities = tuple(side for side in sides if side != "relation")
    given = candidates_of_sides(candidate_ids, entities, num_queries, model, names)
    return given | ({"relation": None} if "relation" in sides else {})


def _is_dataset(triples: Any) -> bool:
    """Whether it is a dataset, whose test split is asked for."""
    return hasattr(triples, "test") and callable(getattr(triples, "known", None))


def _known_of(known: KnownTriples | Literal["dataset"] | None, triples: Any) -> KnownTriples | None:
    """The triples to filter by: as given, else those of a dataset."""
    if known != "dataset":
        check_known(known)
        return known
    of_dataset: KnownTriples | None = triples.known() if _is_dataset(triples) else None
    return of_dataset


def _check_choices(sides: Sequence[Side], nan: str) -> None:
    if isinstance(sides, str) or not sides or len(set(sides)) != len(sides):
        raise ValueError(
            f"sides must be distinct names of {SIDES_AND_RELATIONS}, in a tuple; got {sides!r}"
        )
    for side in sides:
        if side not in SIDES_AND_RELATIONS:
            raise ValueError(f"sides must be of 'head', 'relation' and 'tail'; got {side!r}")
    if nan not in ("error", "worst"):
        raise ValueError(f"nan must be 'error' or 'worst'; got {nan!r}")


def _crop_widths(model: Any, dims: int | Sequence[int] | None) -> "_Crops":
    """Crop of the model -> crop of the operator (None: full width)."""
    if dims is None:
        return {None: None}
    crops = list(dims) if isinstance(dims, Sequence) else [dims]
    if not crops:
        raise ValueError("dims must name at least one crop width")
    return {dim: operator_width(model, dim) for dim in crops}


_Crops = dict[int | None, int | None]  # of the model -> of the operator


def _passes(model: Any, widths: _Crops) -> list[_Crops]:
    """The crops that one sweep serves: all, or each alone where its operands are its own."""
    if is_nested(model) and None not in widths.values():
        return [widths]
    return [{dim: width} for dim, width in widths.items()]


def _rank_crops(plan: _Plan, crops: _Crops, advance: Any) -> dict[int | None, Ranks]:
    """All sides of the crops that share a sweep."""
    # Greater, equal, both of the excluded; known answers among the candidates, and all of these.
    counts = torch.empty(
        (_KINDS, len(crops), len(plan.hrt), len(plan.sides)), dtype=torch.int64, device="cpu"
    )
    for column, side in enumerate(plan.sides):
        one_side = _Side(plan, side, crops)
        for batches in _groups(plan, side):
            counts[:, :, torch.cat(batches), column] = one_side.count(batches, advance)
        del one_side  # and the factor of its candidates, before the next is made
    return {
        dim: _as_ranks(plan, of_crop) for dim, of_crop in zip(crops, counts.unbind(1), strict=True)
    }


def _as_ranks(plan: _Plan, counts: Tensor) -> Ranks:
    """The result of one crop, from its counts ``[6, T, S]``."""
    total = counts[5]
    raw = Ranks(counts[0], counts[1], total, plan.sides, plan.hrt)
    return Ranks(
        counts[0] - counts[2],
        counts[1] - counts[3],
        total - counts[4],
        plan.sides,
        plan.hrt,
        raw=raw,
        known=plan.known,
        vocabularies=plan.names,
    )


class _Side:
    """One side of the crops that share a sweep: what its batches share.

    The host waits once a batch, in the operator.
    """

    def __init__(self, plan: _Plan, side: Side, crops: _Crops) -> None:
        self.plan, self.side, self.num_crops = plan, side, len(crops)
        self.dims = [width for width in crops.values() if width is not None] or None
        # Queries and candidates of several crops are those of the whole model.
        self.dim = next(iter(crops)) if len(crops) == 1 else None
        self.given = plan.candidates[side]
        self.subset = self.given if isinstance(self.given, Tensor) else None
        relations = side == "relation"
        self.num_rows = plan.model.num_relations if relations else plan.model.num_entities
        self.pools = _block_pools(self, crops)
        if self.pools:
            self.device, self.sorted_ids = self.pools[0].scorer.device, self.pools[0].ids
            return
        candidates = candidates_at(plan.model, side, self.dim)
        self.device = candidates.table.device
        self.prepared = prepared_candidates(
            plan.model,
            candidates,
            self.subset,
            self.dims,
            allows_nan=plan.nan_worst,
        )
        self.sorted_ids = self.prepared.sorted_ids

    def count(self, batches: list[Tensor], advance: Any) -> Tensor:
        """The counts of every triple, ``[6, C, G]`` on the host."""
        hrt = self.plan.hrt[torch.cat(batches)].T.contiguous()  # [3, G]
        sizes = [len(batch) for batch in batches]
        shape = (_KINDS, self.num_crops, hrt.shape[1])
        counts = torch.empty(shape, dtype=torch.int64, device=self.device)
        columns = zip(
            batches,
            hrt.split(sizes, 1),
            _moved(hrt, self.device).split(sizes, 1),
            self._num_answers(hrt, sizes),
            counts.split(sizes, 2),
            strict=True,
        )
        for batch, on_host, here, num_answers, its_counts in columns:
            index = self._known_answers(on_host, here, num_answers)
            self._count_batch(batch, here, index, its_counts)
            advance(len(batch) * self.num_crops)
        return counts.cpu()

    def _count_batch(
        self, batch: Tensor, hrt: Tensor, index: tuple[Tensor, Tensor], counts: Tensor
    ) -> None:
        """Fill ``counts [6, C, B]``."""
        known = Known(*index)
        if isinstance(self.given, TypeConstraints):
            for part, relation in runs_of(hrt[1].cpu()):
                ids = _moved(self.given.candidates(relation, self.side), self.device)
                its_known = rows_of(known, part)
                self._count_part(batch[part], hrt[:, part], its_known, counts[:, :, part], ids)
        elif isinstance(self.given, ListedCandidates) and len(batch):
            first, last = int(batch[0]), int(batch[-1]) + 1
            lists = self.given.lists(first, last, self.num_rows, self.device)
            if not self.pools:
                self._count_part(batch, hrt, known, counts, lists=lists)
                return
            for row in range(len(batch)):  # a function is asked for one list at a time
                one, ids = slice(row, row + 1), lists.row(row)
                its_known = rows_of(known, one)
                self._count_part(batch[one], hrt[:, one], its_known, counts[:, :, one], ids)
        else:
            self._count_part(batch, hrt, known, counts)

    def _count_part(
        self,
        batch: Tensor,
        hrt: Tensor,
        known: Known,
        counts: Tensor,
        ids: Tensor | None = None,
        lists: Lists | None = None,
    ) -> None:
        """The same of queries that share their candidates, ascending ids if any, or have lists."""
        anchors, relations, targets = _roles(hrt, self.side)
        ordered = self.sorted_ids if ids is None else ids
        counts[4], counts[5] = pool_sizes(known, targets, self.num_rows, ordered, lists)
        if self.pools:
            asked = Queries(anchors, relations)
            for crop, pool in enumerate(self.pools):
                own = pool if ids is None else replace(pool, ids=ids)
                counts[:4, crop] = torch.stack(own.counts(asked, targets, known))
            return
        prepared = self.prepared if ids is None else self.prepared.only(ids)
        queries = queries_at(self.plan.model, anchors, relations, self.side, self.dim)
        check_queries(queries, prepared)
        checks = run.checks_for(self.device, allows_nan=self.plan.nan_worst)
        dims = None if self.dims is None else tuple(self.dims)
        try:
            result = run.rank_counts(
                Operands(queries, prepared, dims), targets, known, checks, lists
            )
        except NonFiniteError:
            _check_queries(queries, self.plan.hrt, batch, self.side)
            raise
        for row, values in zip(counts, result, strict=False):
            row.copy_(values.reshape(row.shape))

    def _num_answers(self, hrt: Tensor, sizes: Sequence[int]) -> list[int | None]:
        """The known answers of each batch; None where they are counted on the host anyway."""
        known = self.plan.known
        if known is None or known.device.type == "cpu":
            return [None] * len(sizes)
        anchors, relations, _ = _roles(_moved(hrt, known.device), self.side)
        counts = known.counts(anchors, relations, self.side)
        return torch.stack([part.sum() for part in counts.split(sizes)]).cpu().tolist()

    def _known_answers(
        self, on_host: Tensor, here: Tensor, num_answers: int | None
    ) -> tuple[Tensor, Tensor]:
        """The known answers of a batch, CSR, from wherever the index is held."""
        known = self.plan.known
        if known is None:
            zeros = torch.zeros(here.shape[1] + 1, dtype=torch.int64, device=self.device)
            return zeros, zeros[:0]
        hrt = on_host if known.device.type == "cpu" else here
        anchors, relations, _ = _roles(hrt, self.side)
        indptr, indices = known.exclude(anchors, relations, self.side, num_answers=num_answers)
        return _moved(indptr, self.device), _moved(indices, self.device)


def _block_pools(one_side: _Side, crops: _Crops) -> list[BlockPool]:
    """The candidates of each crop, of a side that is scored in blocks; else none."""
    plan = one_side.plan
    scorers = [blocks_at(plan.model, one_side.side, dim) for dim in crops]
    return [
        BlockPool.of(scorer, one_side.side, one_side.subset, nan_worst=plan.nan_worst)
        for scorer in scorers
        if isinstance(scorer, BlockScorer)
    ]


def _roles(hrt: Tensor, side: Side) -> tuple[Tensor, Tensor, Tensor]:
    """Anchors, relations and targets of triples ``[3, B]``; of side relation, head, tail and it."""
    heads, relations, tails = hrt
    if side == "relation":
        return heads, tails, relations
    return (heads, relations, tails) if side == "tail" else (tails, relations, heads)


def _moved(values: Tensor, device: torch.device) -> Tensor:
    """Values on a device; the host does not wait for the copy."""
    if device.type in _PINNING and values.device.type == "cpu":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


def _groups(plan: _Plan, side: Side) -> Iterator[list[Tensor]]:
    """Rows of the triples in batches; equal queries stand together, as they share a sweep.

    Queries with candidates of their own stand as they are given: their lists may lie in a file.
    """
    given, size = plan.candidates[side], plan.batch_size
    if isinstance(given, ListedCandidates):
        size = min(size, given.batch_size)
        every = torch.arange(len(plan.hrt), dtype=torch.int64, device="cpu")
        yield from ([rows] for rows in every.split(size) if len(rows))
        return
    anchors, others, _ = _roles(plan.hrt.T, side)
    order = (others * plan.model.num_entities + anchors).argsort(stable=True)
    batches = list(order.split(size)) if len(order) else []
    step = max(1, _GROUP // size)
    for first in range(0, len(batches), step):
        yield batches[first : first + step]


def _check_queries(queries: Tensor, hrt: Tensor, batch: Tensor, side: Side) -> None:
    """Name the triple whose query is not finite; tables are checked where they are read."""
    finite = queries.isfinite().all(1)
    if not bool(finite.all()):
        row = int(batch[~finite.to(batch.device)].min())
        raise ValueError(
            f"triples[{row}] = {tuple(hrt[row].tolist())}: its {side} query holds a NaN or "
            f"an infinity, from the embeddings of its entity or relation or from what filters them "
            f'(nan="worst" ranks it last)'
        )
