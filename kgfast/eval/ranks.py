"""The result of a ranking: counts per triple and side, and metrics."""

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from kgfast.eval.intervals import Intervals, intervals_of
from kgfast.eval.metrics import HITS, metrics_with, table_of, values_of
from kgfast.frames import FRAMES, needed
from kgfast.graph import KnownTriples, Names, Triples, named_columns
from kgfast.graph.named import relation_names
from kgfast.models.base import check_option

if TYPE_CHECKING:
    from pandas import DataFrame

RankType = Literal["optimistic", "realistic", "pessimistic"]
RANK_TYPES: tuple[RankType, ...] = ("optimistic", "realistic", "pessimistic")
_ROWS = 1 << 14  # triples whose ranks are made at once
Grouping = Literal["relation", "time", "cardinality", "frequency"]


class Ranks:
    """Ranks of T triples on S sides.

    Ranks follow from three counts: candidates above the target, other candidates equal to the
    target, and all candidates. Ranks are filtered where :func:`kgfast.rank` was given known
    triples; :attr:`raw` holds the unfiltered ranks of the same pass.

    Attributes
    ----------
    greater, equal, num_candidates : Tensor
        int64 ``[T, S]``; ``num_candidates`` counts the target, but is 0 for a query without
        candidates. The rank of such a query is 0, and metrics leave the triple out.
    sides : tuple of {"head", "relation", "tail"}
        The columns. Metrics are over the sides of entities, or over relations if there is no other
        side: entities and relations are never pooled.
    triples : Tensor
        int64 ``[T, 3]``, or quads ``[T, 4]``; :class:`kgfast.Triples` give the ranks their names.

    Examples
    --------
    >>> counts = torch.tensor([[0], [2]])
    >>> ranks = Ranks(counts, torch.tensor([[1], [0]]), torch.tensor([[5], [5]]), ("tail",),
    ...               torch.tensor([[0, 0, 1], [1, 0, 2]]))
    >>> ranks.realistic.squeeze(1).tolist(), ranks.hits(1)
    ([1.5, 3.0], 0.0)
    """

    _noun = "triple"
    _groupings: tuple[str, ...] = ("relation", "time", "cardinality", "frequency")
    _columns: tuple[str, ...] = ("head", "relation", "tail", "time")

    def __init__(
        self,
        greater: Tensor,
        equal: Tensor,
        num_candidates: Tensor,
        sides: Sequence[Literal["head", "relation", "tail"]],
        triples: Tensor | Triples,
        *,
        raw: "Ranks | None" = None,
        known: KnownTriples | None = None,
    ) -> None:
        self.greater, self.equal, self.num_candidates = greater, equal, num_candidates
        self.sides, self._known = tuple(sides), known
        self._vocabularies: Names = None, None
        if isinstance(triples, Triples):
            self._vocabularies = triples.entities, triples.relations
            triples = triples.quads
        self.triples = triples
        self._raw = raw  # not self: memory would wait for the collector of cycles

    def __len__(self) -> int:
        return len(self.greater)

    @property
    def raw(self) -> "Ranks":
        """Unfiltered ranks; ``self`` if no triples were filtered."""
        return self if self._raw is None else self._raw

    @property
    def optimistic(self) -> Tensor:
        """Optimistic ranks ``1 + greater``: ties are won. int64 ``[T, S]``."""
        return self._first + self.greater

    @property
    def pessimistic(self) -> Tensor:
        """Pessimistic ranks ``1 + greater + equal``: ties are lost. int64 ``[T, S]``."""
        return self._first + self.greater + self.equal

    @property
    def realistic(self) -> Tensor:
        """Mean of both ranks: the expected rank under random ties. float64 ``[T, S]``."""
        return self._first + self.greater + self.equal.double() / 2

    @property
    def _first(self) -> Tensor:
        """Return the best possible ranks: 1, and 0 where there were no candidates."""
        return (self.num_candidates > 0).long()

    def ranks(self, rank_type: RankType = "realistic") -> Tensor:
        """Return the ranks of a type, float64 ``[T, S]``."""
        check_option("rank_type", rank_type, RANK_TYPES)
        ranks: Tensor = getattr(self, rank_type)
        return ranks.double()

    @property
    def mrr(self) -> float:
        """Mean reciprocal rank."""
        return self.metrics()["mrr"]

    @property
    def mr(self) -> float:
        """Mean rank."""
        return self.metrics()["mr"]

    def hits(self, k: int, rank_type: RankType = "realistic") -> float:
        """Return the share of ranks of at most ``k``."""
        return self.metrics(rank_type, hits=[k])[f"hits@{k}"]

    def metrics(
        self, rank_type: RankType = "realistic", *, hits: Sequence[int] = HITS
    ) -> dict[str, float]:
        """Compute all metrics over the sides; over head and tail if relations are ranked too.

        Triples that had no candidates on one of these sides are left out. Metrics are NaN where
        there are no triples.

        Parameters
        ----------
        rank_type : {"optimistic", "realistic", "pessimistic"}
        hits : sequence of int
            The k of each ``hits@k``. :meth:`intervals`, the metrics of :meth:`by` and
            :func:`kgfast.compare` take the same argument.

        Returns
        -------
        dict
            ``mrr``, ``mr``, ``median_rank``, ``hits@1``, ``hits@3``, ``hits@10``, ``amr``: mean
            rank divided by the expected mean rank of random scores, ``amri``: ``1 - (MR - 1) / E[MR
            - 1]`` (Berrendorf et al. 2020, eqs. 5 and 6), ``amrr`` and ``ahits@k``: MRR and hits@k
            likewise, 0 for random scores and 1 for the best, and ``z_mr``, ``z_mrr``, ``z_hits@k``:
            standard deviations of random scores above their mean (Hoyt et al. 2022, section 3), 0
            where random scores could not differ.

        Raises
        ------
        ValueError, TypeError
            If a k of ``hits`` is no whole number of at least 1.
        """
        metrics, ranked = metrics_with(hits), self._ranked()
        ranks = ranked._cells(rank_type).flatten()
        return values_of(metrics, ranks, ranked.num_candidates[:, self.pooled_columns].flatten())

    def _ranked(self) -> "Ranks":
        is_ranked = torch.ones(len(self), dtype=torch.bool, device=self.greater.device)
        for column in self.pooled_columns:
            is_ranked &= self.num_candidates[:, column] > 0
        return self if bool(is_ranked.all()) else self._part(is_ranked)

    def _cells(self, rank_type: RankType) -> Tensor:
        """Return the ranks that metrics use, float64 ``[T, C]``, on the host, some at a time."""
        columns = self.pooled_columns
        cells = torch.empty(len(self), len(columns), dtype=torch.float64, device="cpu")
        for first in range(0, max(1, len(self)), _ROWS):
            rows = slice(first, first + _ROWS)
            cells[rows] = self._part(rows, columns).ranks(rank_type)
        return cells

    @property
    def pooled_columns(self) -> list[int]:
        """The columns that metrics pool: relations are never pooled with entities."""
        entities = [column for column, side in enumerate(self.sides) if side != "relation"]
        return entities or list(range(len(self.sides)))

    @property
    def num_ranks(self) -> int:
        """The number of ranks that metrics are made of."""
        return len(self._ranked()) * len(self.pooled_columns)

    def intervals(
        self,
        rank_type: RankType = "realistic",
        *,
        confidence: float = 0.95,
        samples: int = 1000,
        seed: int = 0,
        hits: Sequence[int] = HITS,
    ) -> Intervals:
        """Compute confidence intervals of the metrics in tables, by a bootstrap over triples.

        A sample draws as many triples as there are, with replacement, each with all its sides.
        Intervals are percentiles of the samples' metrics (Efron and Tibshirani 1993, chapter 13).
        Use :func:`kgfast.compare` to compare two rankings of the same triples: two intervals may
        overlap although the difference is certain.

        Parameters
        ----------
        rank_type, hits
            As :meth:`metrics` takes them.
        confidence : float
            The share of samples within an interval.
        samples : int
            Number of bootstrap samples.
        seed : int
            The same seed gives the same intervals.

        Returns
        -------
        Intervals
            A dict of metric to ``(value, low, high)``; NaN where there are no triples.

        Raises
        ------
        ValueError
            If ``confidence`` is not between 0 and 1, or ``samples`` is below 2.
        """
        ranks, bootstrap = self._ranked(), (confidence, samples, seed)
        values, cells = ranks.metrics(rank_type, hits=hits), ranks._cells(rank_type)
        sizes = ranks.num_candidates[:, self.pooled_columns]
        return intervals_of(values, cells, sizes, bootstrap)

    def side(self, side: Literal["head", "relation", "tail"]) -> "Ranks":
        """Return the ranks of one side."""
        check_option("side", side, self.sides)
        return self._part(columns=[self.sides.index(side)])

    def by(self, grouping: Grouping) -> "GroupedRanks":
        """Split the ranks into groups.

        Parameters
        ----------
        grouping : {"relation", "time", "cardinality", "frequency"}
            ``relation``, and ``time`` of quads: by id, or name where the triples had a vocabulary.
            ``cardinality``: by 1-1, 1-N, N-1, N-N of the relation in the known triples (Bordes et
            al. 2013; threshold 1.5). ``frequency``: by the number of known triples with the target,
            in decades. The sides of a triple may then fall into different groups, whose intervals
            and comparisons draw ranks, not triples. Relations are left out if entities are ranked.

        Raises
        ------
        ValueError
            If the grouping does not exist, or needs known triples and there are none.
        """
        if grouping not in self._groupings:
            allowed = ", ".join(self._groupings) or "none"
            raise ValueError(f"grouping must be one of {allowed}; got {grouping!r}")
        if grouping == "time" and self.triples.shape[1] == 3:
            raise ValueError("by('time') needs quads (h, r, t, time); these are triples")
        known, is_time, names = self._known, grouping == "time", None
        members: list[Any] = self.triples[:, 3 if is_time else 1].tolist()
        if grouping in ("relation", "time"):
            names = relation_names(self._vocabularies[1])[is_time]
        elif known is None:
            raise ValueError(f"by({grouping!r}) needs the known triples: rank(..., known=...)")
        elif grouping == "frequency":
            return GroupedRanks(grouping, self._by_frequency(known))
        else:
            kinds = known.relation_cardinalities()
            members = [kinds.get(relation, "unknown") for relation in members]
        labels, codes = np.unique(members, return_inverse=True)
        parts = [self._part(torch.from_numpy(codes == code)) for code in range(len(labels))]
        listed = labels.tolist() if names is None else names.names_of(labels.tolist())
        return GroupedRanks(grouping, dict(zip(listed, parts, strict=True)))

    def _by_frequency(self, known: KnownTriples) -> dict[Any, "Ranks"]:
        pooled = self._part(columns=self.pooled_columns)
        is_relation = pooled.sides == ("relation",)
        frequency = known.relation_frequency() if is_relation else known.entity_frequency()
        places = [("head", "relation", "tail").index(side) for side in pooled.sides]
        targets = self.triples[:, places]
        seen = targets < len(frequency)
        counts = torch.zeros_like(targets)
        counts[seen] = frequency[targets[seen]].to(counts.device)
        powers = [10**power for power in range(19)]
        bounds = torch.tensor(powers, dtype=torch.int64, device=counts.device)
        digits = torch.bucketize(counts, bounds, right=True)  # 0 for 0, 1 for 1 .. 9
        return {
            f"{10 ** (n - 1)}-{10**n - 1}" if n else "0": pooled._pooled(digits == n)
            for n in digits.unique().tolist()
        }

    def _part(
        self, rows: Tensor | slice = slice(None), columns: list[int] | None = None
    ) -> "Ranks":
        columns = list(range(len(self.sides))) if columns is None else columns
        sides = [self.sides[column] for column in columns]
        return self._of(lambda counts: counts[rows][:, columns], sides, self.triples[rows])

    def _pooled(self, cells: Tensor) -> "Ranks":
        sides = self.sides if len(self.sides) == 1 else ("both",)
        triples = self.triples[cells.nonzero()[:, 0]]
        return self._of(lambda counts: counts[cells][:, None], sides, triples)

    def _of(self, some: Callable[[Tensor], Tensor], sides: Any, triples: Tensor) -> "Ranks":
        """Return the ranks after ``some`` selects counts, also raw counts."""
        ranks = copy(self)
        for name in ("greater", "equal", "num_candidates"):
            setattr(ranks, name, some(getattr(self, name)))
        ranks.sides, ranks.triples = tuple(sides), triples
        ranks._raw = None if self._raw is None else self._raw._of(some, sides, triples)
        return ranks

    def to_frame(self) -> "DataFrame":
        """Return a pandas DataFrame with one row per triple and side.

        Raises
        ------
        ImportError
            If pandas is not installed.
        """
        pd = needed("pandas", "Ranks.to_frame()", FRAMES)
        columns = zip(self._columns, self.triples.unbind(1), strict=False)
        triples, labels = named_columns(dict(columns), self._vocabularies)
        frames = []
        for column, side in enumerate(self.sides):
            values: dict[str, Any] = {
                **triples,
                "side": side,
                **{name: getattr(self, name)[:, column].numpy() for name in RANK_TYPES},
                "num_candidates": self.num_candidates[:, column].numpy(),
                "raw_realistic": self.raw.realistic[:, column].numpy(),
                **labels,
            }
            frames.append(pd.DataFrame(values, index=pd.RangeIndex(len(self), name=self._noun)))
        frame: DataFrame = pd.concat(frames).sort_index(kind="stable")
        return frame

    def _title(self) -> str:
        kind = "raw" if self.raw is self else "filtered"
        noun = self._noun if len(self) == 1 else f"{self._noun}s"
        title = f"Ranks of {len(self):,} {noun}, {kind}, realistic"
        left_out = len(self) - len(self._ranked())
        return f"{title}; {left_out:,} without candidates left out" if left_out else title

    def table(self, *, hits: Sequence[int] = HITS) -> str:
        """Return the metrics of each side as text, which ``repr`` prints with default ``hits``."""
        rows: dict[str, Any] = {side: self.side(side).metrics(hits=hits) for side in self.sides}
        if len(self.pooled_columns) > 1:
            rows["both"] = self.metrics(hits=hits)
        return f"{self._title()}\n{table_of(rows)}"

    def __repr__(self) -> str:
        return self.table()


class RowRanks(Ranks):
    """Ranks of P pairs of a query and a target row, by :func:`kgfast.rank_rows`.

    Counts and ranks are ``[P, 1]``, as those of :class:`Ranks` of one side. A target without
    candidates has the rank 0, and metrics leave it out. There are no groups.

    Attributes
    ----------
    queries, targets : Tensor
        int64 ``[P]``.
    """

    _noun, _groupings, _columns = "target", (), ("query", "target")

    @property
    def queries(self) -> Tensor:
        """Return the query of each rank."""
        return self.triples[:, 0]

    @property
    def targets(self) -> Tensor:
        """Return the row of each rank."""
        return self.triples[:, 1]

    def best(self) -> "Ranks":
        """Return the best rank of each query: ``hits(k)`` says if any target is among the k."""
        order = self.realistic.masked_fill(self.num_candidates == 0, torch.inf)[:, 0].argsort()
        order = order[self.queries[order].argsort(stable=True)]
        is_first = self.queries[order].diff(prepend=self.queries.new_full((1,), -1)) != 0
        return self._part(order[is_first])


class GroupedRanks(dict[Any, Ranks]):
    """Ranks by group: a dict that prints as a table."""

    def __init__(self, grouping: str, groups: dict[Any, Ranks]) -> None:
        super().__init__(groups)
        self.grouping = grouping

    def metrics(self, *, hits: Sequence[int] = HITS) -> dict[Any, dict[str, float]]:
        """Return the metrics of every group, with the number of ranks as ``count``."""
        return {
            name: {"count": float(ranks.num_ranks), **ranks.metrics(hits=hits)}
            for name, ranks in self.items()
        }

    def macro(
        self, rank_type: RankType = "realistic", *, hits: Sequence[int] = HITS
    ) -> dict[str, float]:
        """Average each metric over the groups with equal weights."""
        metrics = [of.metrics(rank_type, hits=hits) for of in self.values() if of.num_ranks]
        if not metrics:
            raise ValueError(f"there are no ranks to group by {self.grouping}")
        return {name: sum(one[name] for one in metrics) / len(metrics) for name in metrics[0]}

    def to_frame(self, *, hits: Sequence[int] = HITS) -> "DataFrame":
        """Return a pandas DataFrame with one row per group; needs pandas."""
        pd = needed("pandas", "GroupedRanks.to_frame()", FRAMES)
        frame: DataFrame = pd.DataFrame.from_dict(self.metrics(hits=hits), orient="index")
        return frame.rename_axis(self.grouping).astype({"count": int} if len(frame) else {})

    def table(self, *, hits: Sequence[int] = HITS) -> str:
        """Return the metrics of every group as text."""
        if not self:
            return "No ranks"
        kinds = {"raw" if ranks.raw is ranks else "filtered" for ranks in self.values()}
        title = f"Ranks by {self.grouping}, {', '.join(kinds)}, realistic"
        return f"{title}\n{table_of(self.metrics(hits=hits))}"

    def __repr__(self) -> str:
        return self.table()
