"""The job of top_facts(): all (h, r) of a slice in ascending batches, and the best facts.

The threshold is the ``k``-th best score so far and only rises. Where candidates are in memory, a
few queries set the threshold before the first batch. The search then finds the best tail of each
query, and more tails only while the last tail is above the threshold. For dot products, tails are
divided into classes by norm. A query skips every class with a bound ``|q| max |c|`` below the
threshold: for trained tables this skips nearly all classes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.job import Job, JobSection, SoFar, names_in_words
from kgfast.eval.queries import CPU, Queries
from kgfast.eval.sources import CandidateSource, InMemory
from kgfast.graph import KnownTriples
from kgfast.graph.named import Names
from kgfast.kernels.operands import Prepared
from kgfast.ops.differentiable import full_precision
from kgfast.storage import digest

_SEEDS = 512  # queries that set the first threshold: the most promising
_SAMPLE = 1 << 16  # size of the sample that these are chosen from
_ANSWERS = 1 << 20  # answers in memory at once: 16 MiB
_DEEPER = 8  # factor by which a query's answers grow while the last one is above the threshold
_ROUNDED = 1 + 1e-6  # more than the rounding error of a product of norms
_ROWS = 1 << 14  # rows of a table that are widened at once
# slack of the first threshold: covers nearly all differences of rounding between batches
_SLACK = 1e-6
_CLASSES, _SMALLEST = 16, 256  # number of classes by norm, and candidates of the smallest
_SORTED = 1 << 21  # candidates with sorted norms: 32 MiB; more candidates are one class
_WORTHWHILE = 0.5  # share of the pairs that classes have to skip


class BestFacts:
    """Best ``k`` triples so far, by score, then by the lowest (h, r, t)."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.scores = torch.empty(0, dtype=torch.float64, device=CPU)
        self.triples = torch.empty((0, 3), dtype=torch.int64, device=CPU)

    @property
    def is_full(self) -> bool:
        """True if ``k`` facts were found."""
        return len(self.scores) == self.k

    @property
    def worst(self) -> float:
        """Score of the last fact; -inf while there is room."""
        return float(self.scores[-1]) if self.is_full else -torch.inf

    def add(self, scores: Tensor, triples: Tensor) -> None:
        """Add new triples, float64 ``[M]`` and int64 ``[M, 3]``."""
        scores = torch.cat([self.scores, scores.cpu()])
        triples = torch.cat([self.triples, triples.cpu()])
        if len(scores) > self.k:  # facts below the k-th score need no order
            near = scores >= scores.topk(self.k).values[-1]
            scores, triples = scores[near], triples[near]
        for column in (2, 1, 0):
            order = triples[:, column].argsort(stable=True)
            scores, triples = scores[order], triples[order]
        order = scores.argsort(stable=True, descending=True)[: self.k]
        self.scores, self.triples = scores[order], triples[order]


@dataclass(frozen=True)
class Slice:
    """Heads, relations and tails of a search, ascending; all tails for None."""

    heads: Tensor
    relations: Tensor
    tails: Tensor | None

    def __len__(self) -> int:
        return len(self.heads) * len(self.relations)


class FactSearch(Job):
    """Checked arguments of a search for facts, and the state that all batches share."""

    name = "top_facts"
    grows = True
    has_batch_size = True

    def __init__(
        self,
        model: Any,
        given: Slice,
        known: KnownTriples | None,
        k: int,
        batch_size: int,
        names: Names,
    ) -> None:
        self.model, self.known, self.names, self.batch_size = model, known, names, batch_size
        self.given, self.best = given, BestFacts(k)
        self.sides, self.sections = ("tail",), [JobSection("tail", {None: None}, given.tails)]
        self.least = -torch.inf  # lower bound of the k-th best score of new facts
        self.lost = -torch.inf  # score that earlier batches have k times
        self.dtype = torch.float32
        self.classes = [_Class(None)]
        self._is_seeded = False

    @property
    def num_queries(self) -> int:
        return len(self.given)

    @property
    def facts(self) -> dict[str, str]:
        given = self.given.heads, self.given.relations, self.given.tails
        names = names_in_words(self.names)
        return {"vocabularies": names, "slice": digest(*given), "k": str(self.best.k)}

    @property
    def result_bytes(self) -> int:
        return 6 * 16 * self.best.k

    @property
    def found(self) -> tuple[Tensor, Tensor]:
        """Triples and scores, best first."""
        return self.best.triples, self.best.scores.to(self.dtype)

    def queries(self, section: JobSection, home: torch.device, size: int) -> Iterator[Queries]:
        """Yield batches that ascend; within a batch, heads stand relation by relation."""
        heads, relations, tails = self.given.heads, self.given.relations, self.given.tails
        if not len(self.given) or (tails is not None and not len(tails)):
            return
        for some in heads.split(max(1, size // len(relations))):
            for own in relations.split(size):
                ids = some.repeat(len(own)), own.repeat_interleave(len(some))
                yield self._queries(*ids, home)

    def some(self, section: JobSection, rows: Tensor, home: torch.device) -> Queries:
        width = max(1, len(self.given.heads))
        ids = self.given.heads[rows % width], self.given.relations[rows // width]
        return self._queries(*ids, home)

    def _queries(self, heads: Tensor, relations: Tensor, home: torch.device) -> Queries:
        rows = torch.arange(len(heads), dtype=torch.int64, device=CPU)
        return Queries("tail", rows, heads.to(home), relations.to(home), _words)

    def start(self, section: JobSection, source: CandidateSource, queries: Queries) -> "FactsSoFar":
        if self.best.is_full:
            self.lost = self.best.worst
        return FactsSoFar(section, queries, source, self)

    def put(self, result: SoFar) -> None:
        """Do nothing: results are added to the best facts at once."""

    def is_done(self) -> bool:
        """Return False if the first threshold was too high.

        It comes from queries in other batches, which a model may round differently.
        """
        if self.least == -torch.inf or self.best.is_full:
            return True
        self.best, self.least, self.lost = BestFacts(self.best.k), -torch.inf, -torch.inf
        return False

    def is_below(self, scores: Tensor) -> Tensor:
        """Return a mask of scores that cannot be among the best; ties with earlier batches lose."""
        below = scores < max(self.least, self.best.worst)
        return below | (scores <= self.lost) if self.lost > -torch.inf else below

    def widened(self, queries: Queries) -> Queries:
        """Make vectors float64, so that the sweep rounds no score."""
        if queries.vectors is not None:
            vectors = full_precision(queries.vectors)
            self.dtype, queries.vectors = vectors.dtype, vectors.double()
        return queries

    def begin(self, source: CandidateSource) -> None:
        """Set a first threshold from the most promising queries; split candidates into classes."""
        if self._is_seeded or not (isinstance(source, InMemory) and source.num_candidates):
            return
        self._is_seeded = True
        if not len(self.given):
            return
        section = self.sections[0]
        sample = self.sample(section, source.home, _SAMPLE)
        classes = _classes(source.prepared)
        if not classes:
            few = self.sample(section, source.home, _SEEDS)
            return self._set_threshold(source, few)
        parts = sample.batches(self.batch_size, self.batch_size)
        norms = torch.cat([_norms(self._made(part, source)) for part in parts])
        chosen = classes[0].bounds(norms).topk(min(_SEEDS, len(norms))).indices.sort().values
        self._set_threshold(source, sample.where(chosen))
        left = [(~self.is_below(it.bounds(norms))).double().mean() for it in classes]
        if float(torch.stack(left).mean()) > _WORTHWHILE:
            classes = [_Class(None, classes[0].reach, max(it.bias for it in classes))]
        self.classes = classes
        return None

    def _made(self, queries: Queries, source: CandidateSource) -> Queries:
        queries.known = self.known_of(queries, source)
        source.prepare(queries)
        return self.widened(queries)

    def _set_threshold(self, source: InMemory, queries: Queries) -> None:
        found = BestFacts(self.best.k)
        pool = source.prepared
        depth = min(found.k, pool.num_candidates)
        size = max(1, _ANSWERS // depth)
        for part in queries.batches(size, size):
            made = self._made(part, source)
            answers = source.best(made, pool, depth)
            assert answers is not None
            scores, ids = answers
            _add(found, made, scores, ids, ids >= 0)
        self.least = found.worst - _SLACK * abs(found.worst) if found.is_full else -torch.inf


class FactsSoFar(SoFar):
    """Queries of a batch; answers above the threshold are added to the best facts."""

    def __init__(
        self, section: JobSection, queries: Queries, source: CandidateSource, search: FactSearch
    ) -> None:
        self.section, self.queries, self.source, self.search = section, queries, source, search

    @property
    def state(self) -> list[Tensor]:
        """Best facts, padded to ``k``, with their number and dtype."""
        search, best = self.search, self.search.best
        missing = best.k - len(best.scores)
        facts = len(best.scores), search.dtype == torch.float64
        return [
            torch.nn.functional.pad(best.scores, (0, missing)),
            torch.nn.functional.pad(best.triples, (0, 0, 0, missing)),
            torch.tensor(facts, dtype=torch.int64, device=CPU),
        ]

    def restore(self, state: list[Tensor]) -> None:
        count, is_double = state[2].tolist()
        self.search.best.scores, self.search.best.triples = state[0][:count], state[1][:count]
        self.search.dtype = torch.float64 if is_double else self.search.dtype

    def begin(self) -> None:
        """Make queries float64."""
        self.search.widened(self.queries)

    def take(self, block: Any) -> None:
        if isinstance(self.source, InMemory):
            for one in self.search.classes:
                self._deepen(self.source, one)
            return
        most = min(self.search.best.k, self.source.num_candidates)
        found = self.source.best(self.queries, block, most)
        if found is None:
            return
        scores, ids = (it.to(self.source.home) for it in found)
        if self.queries.vectors is None and scores.dtype == torch.float64:
            self.search.dtype = torch.float64
        self._add(self.queries, scores.double(), ids)

    def _deepen(self, source: InMemory, one: "_Class") -> None:
        search, pool, norms = self.search, source.prepared, _norms(self.queries)
        rows = (~search.is_below(one.bounds(norms))).nonzero()[:, 0]
        depth, most = 1, pool.num_candidates if one.ids is None else len(one.ids)
        most = min(search.best.k, most)
        while len(rows):
            deeper = []
            for some in rows.split(max(1, _ANSWERS // depth)):
                part = self.queries.where(some)
                part.known = search.known_of(part, source)
                part = replace(part, ids=one.ids)
                answers = source.best(part, pool, depth)
                assert answers is not None
                scores, ids = answers
                goes_on = ~search.is_below(scores[:, -1]) & (ids[:, -1] >= 0) & (depth < most)
                # Queries whose answers are all above come again with deeper answers.
                self._add(part, scores, torch.where(goes_on[:, None], -1, ids))
                deeper.append(some[goes_on])
            rows, depth = torch.cat(deeper), min(_DEEPER * depth, most)

    def _add(self, queries: Queries, scores: Tensor, ids: Tensor) -> None:
        """Add the answers ``[B, K]`` that are above the threshold."""
        counted = ~(self.search.is_below(scores) | scores.isnan()) & (ids >= 0)
        _add(self.search.best, queries, scores, ids, counted)


@dataclass(frozen=True)
class _Class:
    """Candidates with upper bounds of norm and bias."""

    ids: Tensor | None  # ascending; None: all candidates
    reach: float = torch.inf  # the largest norm
    bias: float = 0.0  # the highest bias

    def bounds(self, norms: Tensor) -> Tensor:
        """Return upper bounds of the scores of queries with these norms, ``[B]``."""
        return norms * (self.reach * _ROUNDED) + self.bias


def _words(queries: Queries, place: int) -> str:
    """Name a query that is not finite."""
    head, relation = int(queries.anchors[place]), int(queries.others[place])
    return (
        f"head {head} with relation {relation}: the query holds a NaN or an infinity, from the "
        "embeddings of the entity or relation or from the filters on them"
    )


def _add(best: BestFacts, asked: Queries, scores: Tensor, tails: Tensor, counted: Tensor) -> None:
    """Add the counted answers of ``[B, K]``."""
    query, place = counted.nonzero(as_tuple=True)
    if len(query):
        triples = [asked.anchors[query], asked.others[query], tails[query, place]]
        best.add(scores[query, place], torch.stack(triples, 1))


def _norms(queries: Queries) -> Tensor:
    assert queries.vectors is not None
    return queries.vectors.square().sum(1).sqrt()


def _classes(pool: Prepared) -> list[_Class]:
    """Return classes of candidates by descending norm; none for scores other than dot."""
    count = pool.num_candidates
    if pool.score.name != "dot" or not count or count > _SORTED:
        return []
    ids = pool.sorted_ids
    if ids is None:
        ids = torch.arange(count, dtype=torch.int64, device=pool.table.device)
    rows = (pool.table[part].double() for part in ids.split(_ROWS))
    norms = torch.cat([it.square().sum(1).sqrt() for it in rows])
    size = max(_SMALLEST, -(-count // _CLASSES))
    classes = []
    for order in norms.argsort(descending=True).split(size):
        own = ids[order].sort().values
        bias = 0.0 if pool.whole_bias is None else float(pool.whole_bias[own].double().max())
        classes.append(_Class(own, float(norms[order].max()), bias))
    return classes
