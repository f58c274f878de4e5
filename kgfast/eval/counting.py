"""The job of rank(): counts of the candidates that beat or equal the target of each query."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.candidates import (
    Allowed,
    ListedIds,
    candidates_of_sides,
    pool_sizes,
)
from kgfast.eval.excluded import excluded_of_sides
from kgfast.eval.job import Job, JobSection, SoFar
from kgfast.eval.preparation import check_known, check_names, checked_batch_size
from kgfast.eval.queries import CPU, Queries, moved, places, roles_of
from kgfast.eval.sources import CandidateSource, Crops, crops_of
from kgfast.graph import as_triples_tensor, names_of, with_names
from kgfast.kernels.operands import Known
from kgfast.models.base import SIDES_AND_RELATIONS, Side, is_nested
from kgfast.storage import digest

# kinds of counts: greater, equal, both of the excluded; known answers, and all candidates
KINDS = 6
_WAITING = 1 << 17  # queries with counts on a device at a time: 6 MiB


class CountsSoFar(SoFar):
    """Counts of candidates that beat or equal the targets, int64 ``[6, C, B]``."""

    def open(self) -> None:
        source, queries = self.source, self.queries
        shape = (KINDS, source.num_crops, len(queries.rows))
        self.counts = torch.zeros(shape, dtype=torch.int64, device=source.home)
        known, targets = queries.known, queries.targets
        assert known is not None
        assert targets is not None
        sizes = pool_sizes(known, targets, source.num_rows, source.ids_of(queries), queries.lists)
        self.counts[4], self.counts[5] = sizes

    def begin(self) -> None:
        """Leave queries as they are: half precision is an error."""

    def take(self, block: Any) -> None:
        counts = self.source.counts(self.queries, block)
        if counts is not None:
            for sums, values in zip(self.counts, counts, strict=False):
                sums += values.view_as(sums).to(sums.device)


class Ranking(Job):
    """Checked arguments of a ranking, and the counts of all triples.

    ``hrt`` has the triples, int64 ``[T, 3]`` on the host; ``counts`` has a tensor
    ``[6, C, T, S]`` for each group of crops that share a sweep.
    """

    name = "rank"
    start = CountsSoFar

    def __init__(
        self,
        model: Any,
        triples: Any,
        sides: Sequence[Side],
        allowed: Allowed,
        dims: int | Sequence[int] | None,
        batch_size: int | None,
        options: tuple[str, Any] = ("error", None),
    ) -> None:
        nan, vocabulary = options
        self.model, self.known = model, allowed.known
        triples, self.names = with_names(triples, vocabulary)
        check_names(self.names if vocabulary is None else names_of(vocabulary), model)
        _check_choices(sides, nan)
        self.sides, self.allows_nan = tuple(sides), nan == "worst"
        self.num_times = getattr(model, "num_times", None)
        sizes = {"num_entities": model.num_entities, "num_relations": model.num_relations}
        sizes["num_times"] = self.num_times
        self.hrt = as_triples_tensor(triples, **sizes).cpu()
        check_known(self.known, model, self.names)
        self.batch_size = checked_batch_size(batch_size, model, len(self.hrt))
        self.crops: list[Crops] = [{None: None}] if dims is None else _crops(model, dims)
        if allowed.exclude is not None:
            self.excluded = excluded_of_sides(allowed.exclude, sides, self.hrt, model, self.names)
        entities = [side for side in sides if side != "relation"]
        every = allowed.candidate_ids, entities, len(self.hrt), model, self.names
        of_sides = candidates_of_sides(*every)
        self.sections, self.counts = [], []
        for group, crops in enumerate(self.crops):
            shape = (KINDS, len(crops), len(self.hrt), len(sides))
            self.counts.append(torch.zeros(shape, dtype=torch.int64, device=CPU))
            for column, side in enumerate(sides):
                self.sections.append(JobSection(side, crops, of_sides.get(side), (group, column)))
        self._waiting: list[CountsSoFar] = []
        self._totals: dict[Side, Tensor] = {}  # known answers of each triple, of an index on a GPU

    @property
    def num_queries(self) -> int:
        return len(self.hrt)

    @property
    def facts(self) -> dict[str, str]:
        return super().facts | {
            "triples": f"{len(self.hrt):,} triples {digest(self.hrt)}",
            "nan": "worst" if self.allows_nan else "error",
        }

    @property
    def result_bytes(self) -> int:  # type: ignore[override]
        return 104 * max(map(len, self.crops)) + 64

    def queries(self, section: JobSection, home: torch.device, size: int) -> Iterable[Queries]:
        """Make all queries, equal ones together; with lists, in the order of the triples."""
        if not len(self.hrt):
            return ()
        if len(self.hrt) == 1 or isinstance(section.candidate_ids, ListedIds):
            return (self.some(section, places(len(self.hrt)), home),)
        anchors, others, _ = roles_of(self.hrt, section.side)
        rows = (others * int(self.model.num_entities) + anchors).argsort(stable=True)
        return (self.some(section, rows, home),)

    def some(self, section: JobSection, rows: Tensor, home: torch.device) -> Queries:
        hrt = self.hrt if len(self.hrt) == 1 else self.hrt[rows]
        hrt = hrt.T.contiguous()
        hrt = hrt if home.type == "cpu" else moved(hrt, home)
        anchors, others, targets = roles_of(hrt.T, section.side)
        return Queries(section.side, rows, anchors, others, self.words, targets=targets)

    def known_of(self, queries: Queries, source: CandidateSource) -> Known:
        known, home, side = self.known, source.home, source.side
        if known is None:
            zeros = queries.anchors.new_zeros(len(queries) + 1)
            return Known(zeros, zeros[:0])
        if home.type == "cpu":
            ids = queries.anchors, queries.others
            return Known(*known.exclude(*ids, side, within=source.row_range))
        if known.device.type == "cpu":
            anchors, others, _ = roles_of(self.hrt[queries.rows], side)
            answers = known.exclude(anchors, others, side, within=source.row_range)
            return Known(*(moved(array, home) for array in answers))
        # The number of answers is asked for once, so that the host does not wait for each batch.
        options: dict[str, Any] = {"within": source.row_range}
        if source.row_range is None:
            if side not in self._totals:
                anchors, others, _ = roles_of(moved(self.hrt, known.device), side)
                self._totals[side] = known.counts(anchors, others, side).cpu()
            options = {"num_answers": int(self._totals[side][queries.rows].sum())}
        answers = known.exclude(queries.anchors, queries.others, side, **options)
        return Known(*(moved(array, home) for array in answers))

    def put(self, result: CountsSoFar) -> None:
        """Keep counts; counts on a device wait there, so that the host seldom does."""
        if result.counts.device.type == "cpu":
            group, column = result.section.place
            self.counts[group][:, :, result.queries.rows, column] = result.counts
            return
        self._waiting.append(result)
        if sum(len(waiting.queries) for waiting in self._waiting) >= _WAITING:
            self.finish()

    def finish(self) -> None:
        for (group, column), results in groupby(self._waiting, lambda result: result.section.place):
            rows, counts = zip(*((of.queries.rows, of.counts) for of in results), strict=True)
            # The host waits for all batches of a section at once.
            self.counts[group][:, :, torch.cat(rows), column] = torch.cat(counts, 2).cpu()
        self._waiting.clear()

    def join(self, shares: Any) -> None:
        """Add the counts of all processes; each process knows the numbers of candidates."""
        count = KINDS - 1 if shares.num_shares == 1 else KINDS
        for counts in self.counts:
            counts[:count] = shares.sum_of_all(counts[:count])

    def words(self, queries: Queries, place: int) -> str:
        """Return a query in words, for errors."""
        row = int(queries.rows[place])
        return f"triples[{row}] = {tuple(self.hrt[row].tolist())}"


def _check_choices(sides: Any, nan: Any) -> None:
    is_tuple = not isinstance(sides, str) and bool(sides)
    if not is_tuple or len(set(sides)) != len(sides) or not set(sides) <= set(SIDES_AND_RELATIONS):
        raise ValueError(
            f"sides must be distinct names of {SIDES_AND_RELATIONS}, in a tuple; got {sides!r}"
        )
    if nan not in ("error", "worst"):
        raise ValueError(f"nan must be 'error' or 'worst'; got {nan!r}")


def _crops(model: Any, dims: int | Sequence[int]) -> list[Crops]:
    """Return groups of crops that share a sweep; a crop with its own operands is alone."""
    crops = list(dims) if isinstance(dims, Sequence) else [dims]
    if not crops:
        raise ValueError("dims must name at least one crop width")
    widths = crops_of(model, crops)
    if is_nested(model) and None not in widths.values():
        return [dict(sorted(widths.items(), key=lambda crop: crop[1] or 0))]
    return [{dim: width} for dim, width in widths.items()]
