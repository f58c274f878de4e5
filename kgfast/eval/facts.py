"""top_facts(): the best new facts among all triples, or in a slice of all triples.

The search makes all (h, r) in ascending batches. The threshold is the ``k``-th best score so far
and only rises. Where candidates are in memory, the search finds the best tail of each query, and
more tails only while the last tail is above the threshold.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.answers import Facts
from kgfast.eval.candidates import checked_ids_of
from kgfast.eval.driver import Call
from kgfast.eval.job import Job, JobSection, SoFar
from kgfast.eval.preparation import check_known, check_names, checked_batch_size
from kgfast.eval.queries import CPU, Queries, places
from kgfast.graph import IdsLike, KnownTriples, VocabularyLike, names_of
from kgfast.graph.named import Names
from kgfast.kernels.ieee import ieee_arithmetic
from kgfast.models import BlockScorer, RankableModel
from kgfast.ops.topk import check_k
from kgfast.ops.values import check_unique

_ANSWERS = 1 << 20  # answers in memory at once: 16 MiB
_DEEPER = 8  # factor by which a query's answers grow while the last one is above the threshold


def top_facts(
    model: RankableModel | BlockScorer,
    *,
    k: int = 100,
    known: KnownTriples | None = None,
    relations: IdsLike | None = None,
    heads: IdsLike | None = None,
    tails: IdsLike | None = None,
    vocabulary: VocabularyLike | None = None,
    batch_size: int | None = None,
    max_memory: int | str | None = None,
    progress: bool = False,
) -> Facts:
    """Find the ``k`` best new facts among all triples (h, r, t), exactly.

    The score of a triple is the score of the tail for (h, r). Triples are streamed: memory stays
    below 64 MiB beyond the model's tables and the result. Equal scores are ordered by the lowest
    (h, r, t), on every backend and device.

    Parameters
    ----------
    model : Model
        As :func:`kgfast.topk` takes it, also a :class:`kgfast.BlockScorer`.
    k : int
        Number of facts; the result has fewer if fewer new triples exist.
    known : KnownTriples, optional
        Triples that are left out, so that all facts are new.
    relations, heads, tails : int, sequence of int or Tensor, or names, optional
        Unique ids of a slice: the search is among triples of these only. Relations of a temporal
        model are pairs ``relation * num_times + time``.
    batch_size : int, optional
        Queries (h, r) per batch.
    max_memory : int or str, optional
        Memory for a :class:`kgfast.tables.Table` of entities, as :func:`kgfast.rank` takes it. Each
        pass over the file serves as many queries (h, r) as fit, so give a slice.
    vocabulary, progress : optional
        As :func:`kgfast.topk` takes them.

    Returns
    -------
    Facts
        Facts on the CPU.

    Raises
    ------
    ValueError, TypeError
        For arguments that do not fit the model; the message names the argument and the first row.

    Examples
    --------
    >>> from kgfast import TransE
    >>> model = TransE(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[1.0]]))
    >>> top_facts(model, k=2, known=KnownTriples([(0, 0, 1)]))
    2 facts
    (0, 0, 0)  -1
    (1, 0, 1)  -1
    """
    call = Call(model, "searching", max_memory=max_memory, progress=progress)
    names = names_of(vocabulary)
    check_names(names, model)
    check_known(known, model, names)
    check_k(k, None)
    of_entities = int(model.num_entities), names[0]
    of_relations = int(model.num_relations), names[1]
    axes = (
        _axis("heads", heads, *of_entities),
        _axis("relations", relations, *of_relations),
        None if tails is None else _axis("tails", tails, *of_entities),
    )
    search = FactSearch(model, axes, known, k, checked_batch_size(batch_size, model), names)
    call.run(search)
    with ieee_arithmetic():
        return Facts(search.triples, search.scores.to(search.dtype), vocabulary=names)


def _axis(name: str, values: Any, count: int, names: Any) -> Tensor:
    """Return the ascending ids of a slice; all ids for None."""
    if values is None:
        return torch.arange(count, dtype=torch.int64, device=CPU)
    ids = checked_ids_of(name, values, count, names).reshape(-1).cpu()
    check_unique(name, ids)
    return ids.sort().values


class FactsSoFar(SoFar):
    """Queries of a batch; answers above the threshold are added to the best facts."""

    keeps_double = True

    def open(self) -> None:
        """Let ties with earlier batches lose, once these are full; files cut batches."""
        if self.source.is_whole and len(self.job.scores) == self.job.k:
            self.job.lost = self.job.worst

    def take(self, block: Any) -> None:
        search, source = self.job, self.source
        most = min(search.k, source.num_candidates)
        if not source.is_whole:
            best = source.best(self.queries, block, most)
            if best is not None:
                scores, ids = (values.to(source.home) for values in best)
                if self.queries.vectors is None:
                    search.dtype = torch.promote_types(search.dtype, scores.dtype)
                search.add(self.queries, scores.double(), ids)
            return
        rows = torch.arange(len(self.queries), dtype=torch.int64, device=source.home)
        done, depth = 0, min(1, most)
        while len(rows) and depth > done:
            deeper = []
            for some in rows.split(max(1, _ANSWERS // depth)):
                queries = self.queries.where(some)
                queries.known = search.known_of(queries, source)
                best = source.best(queries, block, depth)
                assert best is not None
                scores, ids = best
                search.add(queries, scores[:, done:], ids[:, done:])
                goes_on = ~search.is_below(scores[:, -1]) & (ids[:, -1] >= 0)
                deeper.append(some[goes_on])
            rows, done, depth = torch.cat(deeper), depth, min(_DEEPER * depth, most)


class FactSearch(Job):
    """Search over ascending heads, relations and tails (all tails for None).

    ``triples`` and ``scores`` are the best ``k`` so far, by score, then by the lowest (h, r, t).
    """

    name = "top_facts"
    start = FactsSoFar

    def __init__(
        self,
        model: Any,
        axes: tuple[Tensor, Tensor, Tensor | None],
        known: KnownTriples | None,
        k: int,
        batch_size: int,
        names: Names,
    ) -> None:
        self.model, self.known, self.names, self.batch_size = model, known, names, batch_size
        self.heads, self.relations, self.tails = axes
        self.k = k
        self.scores = torch.empty(0, dtype=torch.float64, device=CPU)
        self.triples = torch.empty((0, 3), dtype=torch.int64, device=CPU)
        self.sections = [JobSection("tail", {None: None}, self.tails)]
        self.result_bytes = 6 * 16 * k
        self.lost = -torch.inf  # score that earlier batches have k times

    @property
    def num_queries(self) -> int:
        return len(self.heads) * len(self.relations)

    def queries(self, section: JobSection, home: torch.device, size: int) -> Iterator[Queries]:
        """Yield batches that ascend; within a batch, heads stand relation by relation."""
        if not self.num_queries or (self.tails is not None and not len(self.tails)):
            return
        for heads in self.heads.split(max(1, size // len(self.relations))):
            for relations in self.relations.split(size):
                ids = heads.repeat(len(relations)), relations.repeat_interleave(len(heads))
                yield _queries(*ids, home)

    def some(self, section: JobSection, rows: Tensor, home: torch.device) -> Queries:
        width = max(1, len(self.heads))
        return _queries(self.heads[rows % width], self.relations[rows // width], home)

    def put(self, result: SoFar) -> None:
        """Do nothing: results are added to the best facts at once."""

    @property
    def worst(self) -> float:
        """Score of the last fact; -inf while there is room."""
        return float(self.scores[-1]) if len(self.scores) == self.k else -torch.inf

    def is_below(self, scores: Tensor) -> Tensor:
        """Return a mask of scores that cannot be among the best; ties with earlier batches lose."""
        below = scores < self.worst
        return below | (scores <= self.lost) if self.lost > -torch.inf else below

    def add(self, queries: Queries, scores: Tensor, tails: Tensor) -> None:
        """Add answers ``[B, K]`` that are above the threshold; -1 is no answer."""
        row, place = (~self.is_below(scores) & (tails >= 0)).nonzero().unbind(1)
        if not len(row):
            return
        new = [queries.anchors[row], queries.others[row], tails[row, place]]
        triples = torch.cat([self.triples, torch.stack(new, 1).cpu()])
        scores = torch.cat([self.scores, scores[row, place].cpu()])
        if len(scores) > self.k:  # facts below the k-th score need no order
            near = _key(scores) >= _key(scores).topk(self.k).values[-1]
            scores, triples = scores[near], triples[near]
        for column in (2, 1, 0):
            order = triples[:, column].argsort(stable=True)
            scores, triples = scores[order], triples[order]
        order = _key(scores).argsort(stable=True, descending=True)
        order = order[scores[order].isnan().long().argsort(stable=True)][: self.k]
        self.scores, self.triples = scores[order], triples[order]


def _key(scores: Tensor) -> Tensor:
    """Return scores that sort, with those that are NaN below all numbers."""
    return scores.nan_to_num(-torch.inf, torch.inf, -torch.inf)


def _queries(heads: Tensor, relations: Tensor, home: torch.device) -> Queries:
    return Queries("tail", places(len(heads)), heads.to(home), relations.to(home), _words)


def _words(queries: Queries, place: int) -> str:
    """Return a query in words, for errors."""
    return f"head {int(queries.anchors[place])} with relation {int(queries.others[place])}"
