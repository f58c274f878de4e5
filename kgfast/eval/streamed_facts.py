"""The best facts of top_facts() where entities are a table in files."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kgfast.eval.blocks import Queries
from kgfast.eval.facts import Best, Grid
from kgfast.eval.queries import CPU
from kgfast.eval.streamed_topk import Search, best_of, cut_of
from kgfast.graph import KnownTriples
from kgfast.progress import sweep_bar
from kgfast.tables import Rows


@dataclass(frozen=True)
class Asked:
    """What one call asks for.

    Attributes
    ----------
    model : Model
    table : Rows
        Its entities.
    grid : Grid
        The queries (h, r).
    k : int
    known : KnownTriples or None
    tails : Tensor or None
        int64: only these are candidates.
    """

    model: Any
    table: Rows
    grid: Grid
    k: int
    known: KnownTriples | None
    tails: Tensor | None

    def best(self, limit: int, *, progress: bool) -> tuple[Tensor, Tensor]:
        """Triples ``[k, 3]`` and their scores, best first, within a limit of memory.

        The best facts of all are among the best of each query, whose ties have the lowest tails.
        """
        found, dtype = Best(self.k), torch.float32
        cut = cut_of(self._search(next(self.grid.batches(), None)), limit)
        grid = replace(self.grid, batch_size=cut.per_pass)
        rows = sum(1 for _ in grid.batches()) * len(self.table)
        with sweep_bar(
            progress, "searching", rows, self.table.shape[1], self.table.row_bytes
        ) as advance:
            for queries in grid.batches():
                search = self._search(queries)
                every = torch.arange(len(queries.anchors), dtype=torch.int64, device=CPU)
                answers = best_of(search, search.pool(), cut, every, None, advance)
                query, place = (answers.ids >= 0).nonzero(as_tuple=True)
                tails = answers.ids[query, place]
                triples = [queries.anchors[query], queries.others[query], tails]
                found.add(answers.scores[query, place], torch.stack(triples, 1))
                dtype = answers.dtype
        return found.triples, found.scores.to(dtype)

    def _search(self, queries: Queries | None) -> "_OfFacts":
        none = torch.empty(0, dtype=torch.int64, device=CPU)
        asked = (none, none) if queries is None else (queries.anchors, queries.others)
        count = min(self.k, len(self.table) if self.tails is None else len(self.tails))
        own = self.model, self.table
        known, whole = self.known, (None, None)
        return _OfFacts(*own, "tail", "heads", *asked, max(1, count), known, self.tails, whole)


class _OfFacts(Search):
    """A search whose queries nobody numbered."""

    def query_in_words(self, row: Any) -> str:
        """A query, as messages call it."""
        head, relation = int(self.anchors[int(row)]), int(self.relations[int(row)])
        return f"head {head} with relation {relation}"
