"""The passes of top_facts(): all (h, r) of a slice in ascending batches, and the best facts.

The threshold is the ``k``-th best score so far and only rises. Where candidates are in memory, a
few queries set the threshold before the first batch. The search then finds the best tail of each
query, and more tails only while the last tail is above the threshold. For dot products, tails are
divided into classes by norm. A query skips every class with a bound ``|q| max |c|`` below the
threshold: for trained tables this skips nearly all classes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.accumulators import Accumulator
from kgfast.eval.one_pass import Advance, Cut, FileCall, add_queries, run_pass
from kgfast.eval.partial import Partial
from kgfast.eval.queries import CPU, Queries, known_answers, mean_answers
from kgfast.eval.sources import CandidateSource, InMemory, InRows
from kgfast.graph import KnownTriples
from kgfast.kernels.operands import Prepared
from kgfast.ops.differentiable import full_precision
from kgfast.storage import Fingerprint
from kgfast.tables.prefetch import RowBlock

_HASHED = 1 << 12  # queries of a fingerprint that are made at once, for any amount of memory
_FEW = 64  # queries of a fingerprint where candidates are in memory
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
class Grid:
    """Grid of all (h, r) of a slice, in ascending batches."""

    heads: Tensor
    relations: Tensor
    batch_size: int

    def __len__(self) -> int:
        return len(self.heads) * len(self.relations)

    def batches(self) -> Iterator[Queries]:
        """Yield batches that ascend; within a batch, heads stand relation by relation."""
        step = max(1, self.batch_size // max(1, len(self.relations)))
        for heads in self.heads.split(step) if len(self) else ():
            for relations in self.relations.split(self.batch_size):
                own = heads.repeat(len(relations)), relations.repeat_interleave(len(heads))
                yield _queries(*own)

    def sample(self, count: int) -> Queries:
        """Return some queries, spread evenly."""
        step = max(1, len(self) // count)
        places = torch.arange(0, len(self), step, dtype=torch.int64, device=CPU)[:count]
        width = max(1, len(self.heads))
        return _queries(self.heads[places % width], self.relations[places // width])


class FactSearch:
    """State that all batches of one call share; candidates of ``source`` are tails."""

    def __init__(
        self, source: CandidateSource, grid: Grid, known: KnownTriples | None, k: int
    ) -> None:
        self.source, self.grid, self.known, self.best = source, grid, known, BestFacts(k)
        self.least = -torch.inf  # lower bound of the k-th best score of new facts
        self.lost = -torch.inf  # score that earlier batches have k times
        self.dtype = torch.float32
        self.classes = [_Class(None)]

    @property
    def found(self) -> tuple[Tensor, Tensor]:
        """Triples and scores, best first."""
        return self.best.triples, self.best.scores.to(self.dtype)

    def run(
        self,
        done: Callable[[int], None] = lambda count: None,
        advance: Advance | None = None,
        kept: Partial | None = None,
    ) -> None:
        """Search all batches; call ``done`` with queries, ``advance`` with rows and queries."""
        source = self.source
        if not source.num_candidates:
            return
        if isinstance(source, InMemory) and len(self.grid):
            self._seed(source)
        self._go_through(done, advance, kept)
        if self.least > -torch.inf and not self.best.is_full:
            # The threshold comes from queries in other batches, which a model may round
            # differently.
            self.best, self.least, self.lost = BestFacts(self.best.k), -torch.inf, -torch.inf
            self._go_through(lambda count: None, advance, kept)

    def _go_through(
        self, done: Callable[[int], None], advance: Advance | None, kept: Partial | None
    ) -> None:
        whole = kept if self.source.is_whole else None  # in memory a pass is the whole grid
        first = 0 if whole is None else whole.load([FactsSoFar(self.grid.sample(1), self)])
        for number, batch in enumerate(self.grid.batches()):
            if number < first:
                done(len(batch))
                continue
            if self.best.is_full:
                self.lost = self.best.worst
            for queries in batch.batches(self.source.batch_size):
                part = FactsSoFar(self.asked(queries), self)
                run_pass([part], kept=None if whole else kept, advance=advance)
            done(len(batch))
            if whole is not None and whole.is_end(RowBlock(batch.rows, number, number + 1)):
                whole.save([part], number + 1)

    def asked(self, queries: Queries) -> Queries:
        """Return queries with known answers on the device of the source."""
        home = self.source.home
        anchors, others = queries.anchors.to(home), queries.others.to(home)
        known = None
        if self.known is not None:
            known = known_answers(self.known, (anchors, others), "tail", home)
        return replace(queries, anchors=anchors, others=others, known=known)

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

    def _seed(self, source: InMemory) -> None:
        """Set a first threshold from the most promising queries; split candidates into classes."""
        classes, sample = _classes(source.prepared), self.grid.sample(_SAMPLE)
        if not classes:
            return self._set_threshold(source, self.grid.sample(_SEEDS))
        parts = sample.batches(self.grid.batch_size)
        norms = torch.cat([_norms(self._made(part)) for part in parts])
        kept = classes[0].bounds(norms).topk(min(_SEEDS, len(norms))).indices.sort().values
        self._set_threshold(source, sample.where(kept))
        left = [(~self.is_below(it.bounds(norms))).double().mean() for it in classes]
        if float(torch.stack(left).mean()) > _WORTHWHILE:
            classes = [_Class(None, classes[0].reach, max(it.bias for it in classes))]
        self.classes = classes
        return None

    def _made(self, queries: Queries) -> Queries:
        asked = self.asked(queries)
        self.source.prepare(asked)
        return self.widened(asked)

    def _set_threshold(self, source: InMemory, queries: Queries) -> None:
        found = BestFacts(self.best.k)
        pool = source.prepared
        depth = min(found.k, pool.num_candidates)
        for part in queries.batches(max(1, _ANSWERS // depth)):
            asked = self._made(part)
            scores, ids = source.best(asked, pool, depth)
            _add(found, asked, scores, ids, ids >= 0)
        self.least = found.worst - _SLACK * abs(found.worst) if found.is_full else -torch.inf


class FactsSoFar(Accumulator):
    """Queries of a batch; answers above the threshold are added to the best facts."""

    def __init__(self, queries: Queries, search: FactSearch) -> None:
        self.queries, self.source, self.search = queries, search.source, search

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
                part = replace(search.asked(part), ids=one.ids)
                scores, ids = source.best(part, pool, depth)
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


def facts_in_memory(search: FactSearch) -> Iterator[Any]:
    """Yield everything that facts depend on besides the model's tensors, for a fingerprint."""
    grid, source = search.grid, search.source
    yield from ("facts", grid.heads, grid.relations, source.sorted_ids, search.best.k)
    yield None if search.known is None else search.known.checksum
    few = search.asked(grid.sample(_FEW))
    source.prepare(few)
    yield few.vectors


def search_file(
    call: FileCall, grid: Grid, known: KnownTriples | None, k: int, ids: Tensor | None
) -> FactSearch:
    """Search a table in files; ``ids`` are the tails, or None for all."""

    def search_of(cut: Cut) -> FactSearch:
        source = InRows(call.model, "tail", {None: None}, cut.reader, ids)
        return FactSearch(source, replace(grid, batch_size=cut.per_pass), known, k)

    def fingerprint(cut: Cut) -> Fingerprint:
        source = InRows(call.model, "tail", {None: None}, cut.reader, ids)
        checksum = None if known is None else known.checksum
        asked = grid.heads, grid.relations, ids, k, checksum
        found = call.fingerprint("facts", cut.reader, *asked, *source.constants())
        for batch in replace(grid, batch_size=_HASHED).batches():
            add_queries(found, source, batch.anchors, batch.others)
        return found

    first = next(grid.batches(), None)
    asked = (grid.heads[:0], grid.heads[:0]) if first is None else (first.anchors, first.others)
    answers = mean_answers(known, asked, "tail")
    query_bytes = 4 * 8 * call.table.shape[1] + 6 * 16 * k + 32 * (answers + 1)
    with call.opened(query_bytes, fingerprint) as (cut, kept):
        search = search_of(cut)
        num_passes = sum(1 for _ in search.grid.batches())
        with call.bar(num_passes * len(call.table)) as advance:
            search.run(advance=advance, kept=kept)
    return search


def _queries(heads: Tensor, relations: Tensor) -> Queries:
    rows = torch.arange(len(heads), dtype=torch.int64, device=CPU)
    return Queries("tail", rows, heads, relations, _words)


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
