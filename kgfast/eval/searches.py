"""The jobs of topk() and above(): the best answers to queries, or all from a score on."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kgfast.eval.candidates import (
    CandidateIds,
    ListedIds,
    candidates_of_sides,
    checked_ids_of,
)
from kgfast.eval.excluded import Excluded, ExcludedIds
from kgfast.eval.job import Job, JobSection, SoFar
from kgfast.eval.preparation import check_known, check_names, checked_batch_size
from kgfast.eval.queries import CPU, Queries, moved, places
from kgfast.eval.sources import Crops, crops_of
from kgfast.graph import IdsLike, KnownTriples, TypeConstraints, VocabularyLike, names_of
from kgfast.graph.named import Names, relation_names
from kgfast.kernels.above import merged
from kgfast.kernels.ieee import ieee_arithmetic
from kgfast.kernels.operands import Above
from kgfast.kernels.reference.topk import best_first
from kgfast.models.base import Side
from kgfast.ops.checks import check_int, checked_thresholds
from kgfast.ops.topk import check_k
from kgfast.storage import digest


class Arguments(NamedTuple):
    """Arguments of :func:`kgfast.topk` that other searches take, too."""

    heads: IdsLike | None
    relations: IdsLike | None
    tails: IdsLike | None
    times: IdsLike | None
    vocabulary: VocabularyLike | None
    known: KnownTriples | None
    candidate_ids: CandidateIds | None
    exclude: ExcludedIds | None
    dims: int | None
    batch_size: int | None


class Search(Job):
    """Checked arguments of one prediction, and the results of its passes.

    ``anchors`` and ``others`` are int64 ``[B]``, and ``argument`` is the name of the argument that
    gave the anchors.
    """

    def __init__(self, model: Any, arguments: Arguments) -> None:
        self.model, self.known, self.names = model, arguments.known, (None, None)
        if arguments.vocabulary is not None:
            self.names = names_of(arguments.vocabulary)
            check_names(self.names, model)
        check_known(self.known, model, self.names)
        side, self.argument, self.anchors, self.others = _queries_of(model, arguments, self.names)
        count, dims = self.anchors.numel(), arguments.dims
        self.batch_size = checked_batch_size(arguments.batch_size, model, count)
        if arguments.exclude is not None:
            ids = Excluded.of(arguments.exclude, side, self.anchors, model, self.names)
            self.excluded = {side: ids}
        every = arguments.candidate_ids, (side,), count, model, self.names
        candidates = candidates_of_sides(*every)[side]
        crops: Crops = {None: None} if dims is None else crops_of(model, [dims])
        self.section = JobSection(side, crops, candidates)
        self.sections = [self.section]
        self.results: list[Any] = []

    @property
    def num_queries(self) -> int:
        return self.anchors.numel()

    @property
    def facts(self) -> dict[str, str]:
        queries = f"{self.num_queries:,} {digest(self.anchors, self.others)}"
        return super().facts | {"queries": queries}

    @abstractmethod
    def collected(self) -> Sequence[Tensor]:
        """Return the results of all queries."""

    def words(self, queries: Queries, place: int) -> str:
        """Return a query in words, for errors."""
        row = int(queries.rows[place])
        what = "tail" if self.section.side == "relation" else "relation"
        anchor, other = int(self.anchors[row]), int(self.others[row])
        return f"{self.argument}[{row}] = {anchor} with {what} {other}"

    def queries(self, section: JobSection, home: torch.device, size: int) -> Iterable[Queries]:
        """Make all queries; in order of relations if each relation has candidates."""
        rows = places(self.anchors.numel())
        if isinstance(section.candidate_ids, TypeConstraints):
            rows = self.others.cpu().argsort(stable=True)
        return (self.some(section, rows, home),)

    def some(self, section: JobSection, rows: Tensor, home: torch.device) -> Queries:
        anchors, others = self.anchors, self.others
        if rows.numel() < anchors.numel() or isinstance(section.candidate_ids, TypeConstraints):
            anchors, others = (ids[rows.to(ids.device)] for ids in (anchors, others))
        if home != anchors.device:
            anchors, others = moved(anchors, home), moved(others, home)
        return Queries(section.side, rows, anchors, others, self.words)

    def put(self, result: SoFar) -> None:
        self.results.append(result)


class BestSoFar(SoFar):
    """Best answers, ``[B, k]``: -inf and -1 where there is no candidate.

    Scores are float64 until the end and merged exactly; one block of all candidates needs no
    merging, so the sweep rounds the scores.
    """

    def open(self) -> None:
        self.keeps_double = not self.source.is_whole
        if self.keeps_double:
            shape, home = (self.queries.rows.numel(), self.job.k), self.source.home
            self.scores = torch.full(shape, -torch.inf, dtype=torch.float64, device=home)
            self.ids = torch.full(shape, -1, dtype=torch.int64, device=home)

    def take(self, block: Any) -> None:
        best = self.source.best(self.queries, block, self.job.k)
        if best is None:
            return
        scores, ids = best
        if self.source.is_whole:
            self.scores, self.ids = scores, ids
            return
        if self.queries.vectors is None:
            self.job.dtype = torch.promote_types(self.job.dtype, scores.dtype)
        scores, ids = scores.to(self.scores.device, torch.float64), ids.to(self.ids.device)
        self._keep(torch.cat([self.scores, scores], 1), torch.cat([self.ids, ids], 1))

    def _keep(self, scores: Tensor, ids: Tensor) -> None:
        """Merge in answers ``[B, M]``; equal answers must stand by ascending id."""
        order = best_first(scores, ids)[:, : self.job.k]
        self.scores.copy_(scores.gather(1, order))
        self.ids.copy_(ids.gather(1, order))
        self.scores.masked_fill_(self.ids < 0, -torch.inf)

    def join(self, shares: Any) -> None:
        both = self.scores, self.ids
        scores, ids = (torch.cat(shares.gather_share(values), 1) for values in both)
        by_id = ids.argsort(dim=1, stable=True)
        self._keep(scores.gather(1, by_id), ids.gather(1, by_id))


class BestSearch(Search):
    """Search for the best ``k`` answers to each query; ``pad`` fills missing ones."""

    name = "topk"
    start = BestSoFar
    _shares: Any = None

    def __init__(self, model: Any, arguments: Arguments, k: int, pad: bool) -> None:
        super().__init__(model, arguments)
        ids, side = self.section.candidate_ids, self.section.side
        count = model.num_relations if side == "relation" else model.num_entities
        count = len(ids) if isinstance(ids, Tensor) else int(count)
        has_bound = self.anchors.numel() and not pad
        has_bound = has_bound and not isinstance(ids, ListedIds | TypeConstraints)
        check_k(k, count if has_bound else None)
        self.k, self.pad, self.result_bytes = k, pad, 6 * 16 * k

    @property
    def facts(self) -> dict[str, str]:
        return super().facts | {"k and pad": f"{self.k}, {bool(self.pad)}"}

    def join(self, shares: Any) -> None:
        self._shares = shares

    def collected(self) -> tuple[Tensor, Tensor]:
        """Return scores and ids of all queries, ``[B, k]``."""
        results, self.results = self.results, []  # results know the search
        scores, ids = results[0].scores, results[0].ids
        if len(results) > 1:
            scores = torch.cat([result.scores for result in results])
            ids = torch.cat([result.ids for result in results])
        if self._shares is not None or isinstance(self.section.candidate_ids, TypeConstraints):
            rows = torch.cat([result.queries.rows for result in results])
            scores, ids = (self._in_order(values, rows) for values in (scores, ids))
        has_all = self.known is None and self.section.candidate_ids is None and not self.excluded
        if not self.pad and not (has_all and results[0].source.is_whole):
            self._check_full(ids)
        with ieee_arithmetic():
            return scores.to(self.dtype), ids

    def _in_order(self, values: Tensor, rows: Tensor) -> Tensor:
        room = values.new_zeros((self.num_queries, self.k))
        room[rows.to(values.device)] = values
        return room if self._shares is None else self._shares.filled_in(room)

    def _check_full(self, ids: Tensor) -> None:
        if ids.numel() and int(ids.min()) < 0:
            short = (ids[:, -1] < 0).nonzero()
            row = int(short[0])
            queries = self.some(self.section, short[0].cpu(), CPU)
            raise ValueError(
                "k must be at most the number of candidates of each query: "
                f"{self.words(queries, 0)} has {int((ids[row] >= 0).sum())}, k is {self.k} "
                "(pad=True fills the rest with id -1)"
            )


class AboveSoFar(SoFar):
    """Answers that reach float64 thresholds; only their number where they do not fit."""

    def open(self) -> None:
        self.thresholds = self.job.thresholds[self.queries.rows].to(self.source.device)
        self.pieces: list[Above] = []  # by ascending ids

    def take(self, block: Any) -> None:
        search = self.job
        left = search.most - search.count  # negative: results are only counted
        above = self.source.above(self.queries, block, self.thresholds, left)
        if isinstance(above, Above):
            search.count += len(above.ids)
            search.dtype = torch.promote_types(search.dtype, above.scores.dtype)
            self.pieces.append(Above(*(values.to(self.source.home) for values in above)))
        elif above is not None:
            search.count += above
        if search.count > search.most:
            self.pieces.clear()


class AboveSearch(Search):
    """Search for all answers above a threshold, ``count`` so far and ``most`` at most."""

    name = "above"
    start = AboveSoFar
    _joined: Above | None = None  # answers of all processes

    def __init__(
        self, model: Any, arguments: Arguments, threshold: Tensor | float, max_results: int
    ) -> None:
        super().__init__(model, arguments)
        check_int("max_results", max_results, 1)
        if isinstance(self.section.candidate_ids, ListedIds):
            raise ValueError(
                "candidate_ids: above() takes the same candidates for all queries, or "
                "TypeConstraints; topk(k=..., pad=True) takes a list for each query"
            )
        self.thresholds = checked_thresholds(threshold, self.num_queries)
        self.most, self.count = max_results, 0

    @property
    def facts(self) -> dict[str, str]:
        limits = {"threshold": digest(self.thresholds), "max_results": str(self.most)}
        return super().facts | limits

    def join(self, shares: Any) -> None:
        count = torch.full((1,), self.count, dtype=torch.int64, device=CPU)
        self.count = int(shares.sum_of_all(count))
        if self.count <= self.most:
            self._joined = shares.joined(self.collected())

    def collected(self) -> Above:
        """Return the answers to all queries; their pieces are released."""
        results, self.results = self.results, []
        if self.count > self.most:
            raise ValueError(
                f"max_results must be at least the number of results, {self.count:,}; got "
                f"{self.most:,} (a higher threshold finds fewer)"
            )
        if self._joined is not None:
            return self._joined
        is_one = len(results) == 1 and len(results[0].queries.rows) == self.num_queries
        if is_one and len(results[0].pieces) == 1:
            whole: Above = results[0].pieces.pop()
            return whole
        home, pieces = results[0].source.home, []
        for result in results:
            pieces += [(result.queries.rows.to(home), piece) for piece in result.pieces]
        return merged(pieces, self.num_queries, torch.empty(0, dtype=self.dtype, device=home))


def _timed(model: Any, relations: Any, times: Any, names: Any) -> Tensor:
    """Return pairs of a relation and a time."""
    count = getattr(model, "num_times", None)
    if times is None or count is None:
        which = "no times" if count is None else f"{count:,} times: give one, or one for each query"
        raise ValueError(f"times: the model has {which}")
    of_relations, of_times = relation_names(names)
    ids = checked_ids_of("relations", relations, model.num_relations // count, of_relations)
    at = checked_ids_of("times", times, count, of_times).to(ids.device)
    if ids.numel() != at.numel() and 1 not in (ids.numel(), at.numel()):
        lengths = f"got {ids.numel()} and {at.numel()}"
        raise ValueError(f"relations and times must have one length; {lengths}")
    pairs: Tensor = ids * count + at
    return pairs


def _queries_of(model: Any, arguments: Arguments, names: Names) -> tuple[Side, str, Tensor, Tensor]:
    """Return the predicted side, the name of anchors, and anchors and others, ``[B]`` each."""
    heads, relations, tails, times = arguments[:4]
    if (heads is None) + (relations is None) + (tails is None) != 1:
        raise ValueError("two of heads, relations and tails must be given; the third is predicted")
    side: Side = "head" if heads is None else "tail"
    name, values = ("tails", tails) if heads is None else ("heads", heads)
    anchors = checked_ids_of(name, values, model.num_entities, names[0])
    if relations is None:
        side, other = "relation", "tails"
        others = checked_ids_of(other, tails, model.num_entities, names[0])
    else:
        other = "relations"
        if times is None and getattr(model, "num_times", None) is None:
            others = checked_ids_of(other, relations, model.num_relations, names[1])
        else:
            others = _timed(model, relations, times, names[1])
    anchors = anchors if anchors.ndim else anchors.reshape(1)
    others = (others if others.ndim else others.reshape(1)).to(anchors.device)
    sizes = anchors.numel(), others.numel()
    if sizes[0] != sizes[1]:  # a single id goes with all others
        if 1 not in sizes:
            raise ValueError(
                f"{name} and {other} must have one length; got {sizes[0]} and {sizes[1]}"
            )
        anchors, others = torch.broadcast_tensors(anchors, others)
    return side, name, anchors, others
