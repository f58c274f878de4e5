"""top_facts(): the best new facts among all triples, or a slice of them.

Queries (h, r) go through the sweep in batches that ascend, under a threshold that rises: the
``k``-th best score so far, which a few queries have set before the first batch. Each query is asked
for its best tail, and for more only while the last one is above the threshold. For dot products
tails stand in classes by their norms, and a query whose bound ``|q| max |c|`` is below the
threshold is not asked for a class: of trained tables that leaves out nearly all of them.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kgfast.eval import streamed_facts
from kgfast.eval.asked import checked_ids_of
from kgfast.eval.batches import (
    check_known,
    check_names,
    check_rankable,
    checked_batch_size,
    evaluating,
)
from kgfast.eval.blocks import BlockPool, Queries
from kgfast.eval.facts import Best, Facts, Grid
from kgfast.eval.host import host_model
from kgfast.eval.prediction import candidate_pool
from kgfast.eval.rows import check_limits, entity_table
from kgfast.graph import KnownTriples, names_of
from kgfast.graph.memory import memory_limit
from kgfast.kernels.checks import NonFiniteError
from kgfast.kernels.operands import Known, Operands, Prepared
from kgfast.models.evaluated import evaluated_queries
from kgfast.ops import run
from kgfast.ops.checks import check_queries, check_unique
from kgfast.ops.differentiable import full_precision
from kgfast.ops.topk import check_k
from kgfast.progress import progress_bar

_SEEDS = 512  # queries that set the first threshold: the most promising
_SAMPLE = 1 << 16  # of so many
_ANSWERS = 1 << 20  # that are held at once: 16 MiB
_DEEPER = 8  # times as many answers, of a query whose last one is above the threshold
_ROUNDED = 1 + 1e-6  # more than what a product of norms may lose
_ROWS = 1 << 14  # of a table that are widened at once
_SLACK = 1e-6  # of the first threshold: what rounding in another batch may take, nearly always
_CLASSES, _SMALLEST = 16, 256  # of candidates by their norms; candidates of one
_SORTED = 1 << 21  # candidates whose norms are sorted: 32 MiB; more are one class
_WORTHWHILE = 0.5  # share of the pairs that classes have to leave


def top_facts(
    model: Any,
    *,
    k: int = 100,
    known: KnownTriples | None = None,
    relations: Any = None,
    heads: Any = None,
    tails: Any = None,
    vocabulary: Any = None,
    batch_size: int | None = None,
    max_memory: int | str | None = None,
    progress: bool = False,
) -> Facts:
    """Find the ``k`` best new facts among all triples (h, r, t), exactly.

    The score of a triple is that of its tail for (h, r). Triples are streamed: memory stays below
    64 MiB beyond the model's tables and the result. Equal scores are ordered by the lowest
    (h, r, t), on every backend and device.

    Parameters
    ----------
    model : Model
        As :func:`kgfast.topk` takes it, a :class:`kgfast.BlockScorer` too: of it, what scores NaN
        with ``nan="worst"`` is no fact.
    k : int
        How many; there are fewer in the result if fewer are left.
    known : KnownTriples, optional
        Triples that are left out, so that what is found is new.
    relations, heads, tails : int, sequence of int or Tensor, or names, optional
        Unique ids: only triples of these.
    vocabulary : pair of Vocabulary or lists of names, Dataset or Triples, optional
        The names of the model's rows: for slices by name, and for facts that show them.
    batch_size : int, optional
        Queries (h, r) a batch. The default keeps a batch within 8 MiB; results do not depend on it.
    max_memory : int or str, optional
        Of models whose entities are a :class:`kgfast.tables.Table`, as :func:`kgfast.rank` takes
        it: the file is read once for as many queries (h, r) as find room, so ask for a slice.
    progress : bool
        Show a progress bar.

    Returns
    -------
    Facts
        On the CPU.

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
    check_rankable(model)
    model = host_model(model)
    check_known(known)
    check_k(k, None)
    names = names_of(vocabulary)
    check_names(names, model)
    entities, own = (int(model.num_entities), names[0]), (int(model.num_relations), names[1])
    axes = [
        _axis("heads", heads, *entities),
        _axis("relations", relations, *own),
        None if tails is None else _axis("tails", tails, *entities),
    ]
    size = checked_batch_size(batch_size, model)
    assert axes[0] is not None
    assert axes[1] is not None
    grid, table = Grid(axes[0], axes[1], size), entity_table(model)
    check_limits(table, max_memory, None)
    if table is not None:
        asked = streamed_facts.Asked(model, table, grid, k, known, axes[2])
        with evaluating(model), torch.no_grad():
            found = asked.best(memory_limit(max_memory), progress=progress)
        return Facts(*found, vocabulary=names)
    with evaluating(model), torch.no_grad():
        pool = candidate_pool(model, "tail", axes[2], None, None)
        search = _Search(model, pool, known, Best(k))
        with progress_bar(progress, "searching", len(grid)) as advance:
            if isinstance(pool, Prepared) and pool.num_candidates and len(grid):
                search.seed(pool, grid)
            for queries in grid.batches():
                search.take(queries)
                advance(len(queries.anchors))
            if search.lacks_some:
                search.start_again()
                for queries in grid.batches():
                    search.take(queries)
    is_double = search.dtype == torch.float64
    scores = search.best.scores if is_double else search.best.scores.float()
    return Facts(search.best.triples, scores, vocabulary=names)


def _axis(name: str, values: Any, count: int, names: Any) -> Tensor:
    """The ids of a slice, ascending; all of them where none are given."""
    if values is None:
        return torch.arange(count, dtype=torch.int64, device="cpu")
    ids = checked_ids_of(name, values, count, names).reshape(-1).cpu()
    check_unique(name, ids)
    return ids.sort().values


class _Search:
    """What the batches of one call share."""

    def __init__(
        self, model: Any, pool: Prepared | BlockPool, known: KnownTriples | None, best: Best
    ) -> None:
        self.model, self.pool, self.known, self.best = model, pool, known, best
        self.least = -torch.inf  # a score that k new facts are known to have, or more
        self._lost = -torch.inf  # a score that earlier batches have k times
        self.dtype = torch.float32
        self._classes = [_Class(pool)] if isinstance(pool, Prepared) else []

    def seed(self, pool: Prepared, grid: Grid) -> None:
        """Find a first threshold: the k-th best score of a few queries, the most promising ones.

        Then split the candidates into classes, if that is worthwhile.
        """
        classes, sample = _classes(pool), grid.sample(_SAMPLE)
        if not classes:
            return self._threshold(pool, grid.sample(_SEEDS))
        rows = range(0, len(sample.anchors), grid.batch_size)
        parts = (sample.part(slice(first, first + grid.batch_size)) for first in rows)
        norms = torch.cat([_norms(self._queries(part)) for part in parts])
        kept = classes[0].bounds(norms).topk(min(_SEEDS, len(norms))).indices.sort().values.cpu()
        self._threshold(pool, Queries(sample.anchors[kept], sample.others[kept]))
        left = [(~self._is_below(it.bounds(norms))).double().mean() for it in classes]
        if float(torch.stack(left).mean()) > _WORTHWHILE:
            classes = [_Class(pool, classes[0].reach, max(it.bias for it in classes))]
        self._classes = classes
        return None

    @property
    def lacks_some(self) -> bool:
        """Whether fewer facts were above the first threshold than it is made of.

        It is of queries in other batches, which a model may round otherwise.
        """
        return self.least > -torch.inf and not self.best.is_full

    def start_again(self) -> None:
        """Forget what was found, and the first threshold."""
        self.best, self.least, self._lost = Best(self.best.k), -torch.inf, -torch.inf

    def _threshold(self, pool: Prepared, asked: Queries) -> None:
        """That of the best answers of some queries."""
        found = Best(self.best.k)
        depth = min(self.best.k, pool.num_candidates)
        step = max(1, _ANSWERS // depth)
        for rows in range(0, len(asked.anchors), step):
            part = asked.part(slice(rows, rows + step))
            scores, ids = self._topk(pool, self._queries(part), part, depth)
            self._add(found, part, scores, ids, ids >= 0)
        self.least = found.worst - _SLACK * abs(found.worst) if found.is_full else -torch.inf

    def take(self, asked: Queries) -> None:
        """Take in what a batch has above the threshold; later than all that were taken before."""
        if self.best.is_full:
            self._lost = self.best.worst
        if isinstance(self.pool, BlockPool):
            return self._take_blocks(self.pool, asked)
        if not self.pool.num_candidates:
            return None
        queries = self._queries(asked)
        norms = _norms(queries)
        for one in self._classes:
            rows = (~self._is_below(one.bounds(norms))).nonzero()[:, 0]
            self._take_class(one.pool, asked, queries, rows)
        return None

    def _take_class(self, pool: Prepared, asked: Queries, queries: Tensor, rows: Tensor) -> None:
        """The same of some of the queries, and some of the candidates."""
        depth, most = 1, min(self.best.k, pool.num_candidates)
        while len(rows):
            deeper = []
            for some in rows.split(max(1, _ANSWERS // depth)):
                here = some.cpu()
                part = Queries(asked.anchors[here], asked.others[here])
                scores, ids = self._topk(pool, queries[some], part, depth)
                goes_on = ~self._is_below(scores[:, -1]) & (ids[:, -1] >= 0) & (depth < most)
                # Those come with their deeper answers.
                counted = ~self._is_below(scores) & (ids >= 0) & ~goes_on[:, None]
                self._add(self.best, part, scores, ids, counted)
                deeper.append(some[goes_on])
            rows, depth = torch.cat(deeper), min(_DEEPER * depth, most)

    def _is_below(self, scores: Tensor) -> Tensor:
        """What is not among the best any more: ties with earlier batches are lost."""
        below = scores < max(self.least, self.best.worst)
        return below | (scores <= self._lost) if self._lost > -torch.inf else below

    def _add(
        self, best: Best, asked: Queries, scores: Tensor, tails: Tensor, counted: Tensor
    ) -> None:
        """Take in some of the answers ``[B, K]``."""
        query, place = counted.nonzero(as_tuple=True)
        if len(query):
            here, tails = query.cpu(), tails[query, place].cpu()
            triples = torch.stack([asked.anchors[here], asked.others[here], tails], 1)
            best.add(scores[query, place], triples)

    def _queries(self, asked: Queries) -> Tensor:
        """In float64, for which the sweep returns scores that are not rounded."""
        assert isinstance(self.pool, Prepared)
        device = self.pool.table.device
        anchors, relations = asked.anchors.to(device), asked.others.to(device)
        queries = full_precision(evaluated_queries(self.model, anchors, relations, "tail", None))
        check_queries(queries, self.pool)
        self.dtype = queries.dtype
        return queries.double()

    def _topk(
        self, pool: Prepared, queries: Tensor, asked: Queries, depth: int
    ) -> tuple[Tensor, Tensor]:
        operands, device = Operands(queries, pool), queries.device
        try:
            return run.topk(operands, depth, self._known(asked, device), run.checks_for(device))
        except NonFiniteError:
            bad = (~queries.isfinite().all(1)).nonzero()
            if len(bad):
                row = int(bad[0])
                raise ValueError(
                    f"head {int(asked.anchors[row])} with relation {int(asked.others[row])}: the "
                    f"query holds a NaN or an infinity, from the embeddings of its entity or "
                    f"relation or from what filters them"
                ) from None
            raise

    def _known(self, asked: Queries, device: torch.device) -> Known | None:
        if self.known is None:
            return None
        answers = self.known.exclude(asked.anchors, asked.others, "tail")
        return Known(*(part.to(device) for part in answers))

    def _take_blocks(self, pool: BlockPool, asked: Queries) -> None:
        """The same of a function's scores: block after block, once each."""
        device = pool.scorer.device
        for first in range(0, len(asked.anchors), pool.scorer.batch_size):
            part = asked.part(slice(first, first + pool.scorer.batch_size))
            here = Queries(part.anchors.to(device), part.others.to(device))
            known = self._known(part, device)
            excluded = None if known is None else pool.excluded(known)
            for number in pool.blocks():
                block = pool.block(number)
                scores = pool.scores(here, block)
                self.dtype = torch.float64 if scores.dtype == torch.float64 else self.dtype
                scores = scores.double()
                counted = ~(self._is_below(scores) | scores.isnan())
                if excluded is not None:
                    counted[excluded.within(block)] = False
                self._add(self.best, part, scores, block.ids.expand(scores.shape), counted)


@dataclass(frozen=True)
class _Class:
    """Candidates, and what no score with them is above."""

    pool: Prepared
    reach: float = torch.inf  # the largest norm
    bias: float = 0.0  # the highest

    def bounds(self, norms: Tensor) -> Tensor:
        """Of queries of some norms, ``[B]``; NaN is above everything."""
        return norms * (self.reach * _ROUNDED) + self.bias


def _norms(queries: Tensor) -> Tensor:
    """Of queries, float64 ``[B]``."""
    return queries.square().sum(1).sqrt()


def _classes(pool: Prepared) -> list[_Class]:
    """Candidates of dot products by their norms, the largest first; none for other scores."""
    count = pool.num_candidates
    if pool.score.name != "dot" or not count or count > _SORTED:
        return []
    ids = pool.sorted_ids
    if ids is None:
        ids = torch.arange(count, dtype=torch.int64, device=pool.table.device)
    norms = torch.cat([_norms(pool.table[part].double()) for part in ids.split(_ROWS)])
    size = max(_SMALLEST, -(-count // _CLASSES))
    classes = []
    for order in norms.argsort(descending=True).split(size):
        own = ids[order].sort().values
        bias = 0.0 if pool.whole_bias is None else float(pool.whole_bias[own].double().max())
        part = Prepared(pool.table, pool.score, pool.bias, pool.factor, own)
        classes.append(_Class(part, float(norms[order].max()), bias))
    return classes
