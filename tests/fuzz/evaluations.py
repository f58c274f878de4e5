"""Valid calls of ``kgfast.rank`` and ``kgfast.topk`` on every model against the oracle.

The model's queries and factors are recorded as the call asks for them: ranks are exact given these.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

import kgfast
from fuzz import models
from fuzz.case import Case, anywhere, expect
from fuzz.models import Drawn
from kgfast.models.base import SIDES
from support import oracles


class Recorded:
    """The queries and candidates that a model gave during a call."""

    def __init__(self, drawn: Drawn) -> None:
        self.drawn = drawn
        self._queries: dict[tuple[int, int, str, int | None], Tensor] = {}
        self._candidates: dict[tuple[str, int | None], Any] = {}
        model = drawn.model
        self._real_queries, self._real_candidates = model.queries, model.candidates
        model.queries, model.candidates = self.queries, self.candidates

    def close(self) -> None:
        """Give the model its own methods back."""
        del self.drawn.model.queries, self.drawn.model.candidates

    def queries(
        self, anchors: Tensor, relations: Tensor, side: str, dims: int | None = None
    ) -> Tensor:
        given = {} if dims is None else {"dims": dims}
        rows: Tensor = self._real_queries(anchors, relations, side, **given)
        asked = zip(anchors.tolist(), relations.tolist(), rows, strict=True)
        for anchor, relation, row in asked:
            self._queries[anchor, relation, side, dims] = row.clone()
        return rows

    def candidates(self, side: str, *dims: int, **named: int) -> Any:
        found = self._real_candidates(side, *dims, **named)
        dim = dims[0] if dims else named.get("dims")
        self._candidates[side, dim] = found
        return found

    def scores(self, anchor: int, relation: int, side: str, dim: int | None) -> oracles.Floats:
        """Return the canonical scores of one query, ``[1, N]``, from what was recorded."""
        key = anchor, relation, side
        query = self._queries.get((*key, dim), self._queries.get((*key, None)))
        held = self._candidates.get((side, dim), self._candidates.get((side, None)))
        if query is None or held is None:
            expect(False, f"the model was not asked for {key}")
        drawn, score = self.drawn, self.drawn.model.score
        table = drawn.base.relation if side == "relation" else drawn.base.entity
        count = drawn.base.dim
        width = None if dim is None or dim == count else dim
        if width is not None:
            table = models.cropped(drawn, table, table.shape[1], width)
            query = self._cropped_query(query, width, held.factor is not None)
        factor = None if held.factor is None else held.factor[:, :dim]
        return oracles.canonical_scores(query[None], table, score, held.bias, factor)

    def _cropped_query(self, query: Tensor, width: int, has_factor: bool) -> Tensor:
        """Cut the first features of each plane out of a query of the whole width."""
        planes, _, _ = oracles.LAYOUTS[self.drawn.model.score]
        planes += has_factor
        base = self.drawn.base
        if self.drawn.model.score in ("dot", "l2"):  # complex rows of scores of reals
            planes = base.entity.shape[1] // base.dim
        if len(query) == planes * width:
            return query
        if getattr(base, "layout", "halves") == "interleaved":
            return query[: planes * width]
        return torch.cat([part[:width] for part in query.chunk(planes)])


def rank(case: Case) -> None:
    """Attack ``kgfast.rank`` with every option."""
    drawn = models.draw(case)
    hrt, known, lists = drawn_graph(case, drawn.model.num_entities, drawn.model.num_relations)
    sides = case.choice((("head", "tail"), ("tail", "head"), ("head",), ("tail",)))
    dims: Any = None
    if drawn.dims is not None:
        dims = case.choice((None, drawn.dims, [drawn.dims[0]], drawn.dims[-1], drawn.dims[::-1]))
    ids = _subset(case, drawn)
    batch_size = case.choice((None, 1, 3, 64))
    case.note(triples=len(hrt), sides=sides, dims=dims, subset=_length(ids), batch=batch_size)
    recorded = Recorded(drawn)
    try:
        with anywhere(case):
            found = kgfast.rank(
                *(drawn.model, hrt), known=known, sides=sides, dims=dims,
                candidate_ids=ids, batch_size=batch_size, index=_index(case, drawn),
            )  # fmt: skip
    finally:
        recorded.close()
    subset = None if ids is None else [int(it) for it in ids]
    for dim, ranks in found.items() if isinstance(found, dict) else [(dims, found)]:
        for column, side in enumerate(sides):
            for row, triple in enumerate(hrt.tolist()):
                anchor, target = (
                    (triple[0], triple[2]) if side == "tail" else (triple[2], triple[0])
                )
                values = recorded.scores(anchor, triple[1], side, dim)
                answers = answers_of(lists, triple, side)
                expect_rank(ranks, (row, column), values, target, answers, subset)


def expect_rank(
    ranks: Any,
    place: tuple[int, int],
    values: oracles.Floats,
    target: int,
    answers: list[int],
    subset: list[int] | None = None,
) -> None:
    """Compare a rank, filtered and raw, with that of canonical scores ``[1, C]``."""
    counts = [it[0] for it in oracles.counts(values, [target], [answers], subset)]
    candidates = set(range(values.shape[1]) if subset is None else subset)
    candidates |= {target} if candidates else set()
    left = len(candidates - (set(answers) - {target}))
    wanted = counts[0] - counts[2], counts[1] - counts[3], left
    raw = counts[0], counts[1], len(candidates)
    for kind, of_kind, expected in (("", ranks, wanted), ("raw ", ranks.raw, raw)):
        for name, right in zip(("greater", "equal", "num_candidates"), expected, strict=True):
            got = int(getattr(of_kind, name)[place])
            expect(got == right, f"{place}: {kind}{name} is {got}, not {right}")


def topk(case: Case) -> None:
    """Attack ``kgfast.topk`` with every option."""
    drawn = models.draw(case)
    hrt, known, lists = drawn_graph(case, drawn.model.num_entities, drawn.model.num_relations)
    side = case.choice(SIDES)
    anchors, relations = hrt[:, 0 if side == "tail" else 2], hrt[:, 1]
    dim = None if drawn.dims is None else case.choice((None, *drawn.dims))
    ids, k = _subset(case, drawn), case.pick.randint(1, drawn.base.num_entities)
    asked_of: Any = relations
    if len(hrt) and case.chance(0.2):  # one for all
        relations = relations[:1].expand(len(hrt))
        asked_of = case.choice((relations[:1], relations[:1].tolist(), int(relations[0])))
    case.note(queries=len(hrt), side=side, dim=dim, subset=_length(ids), k=k, relations=asked_of)
    given: dict[str, Any] = {"tails" if side == "head" else "heads": anchors}
    recorded = Recorded(drawn)
    try:
        with anywhere(case):
            found = kgfast.topk(
                drawn.model, **given, relations=asked_of, k=k, known=known,
                candidate_ids=ids, dims=dim, pad=True, batch_size=case.choice((None, 2)),
                index=_index(case, drawn),
            )  # fmt: skip
    finally:
        recorded.close()
    subset = None if ids is None else [int(it) for it in ids]
    asked = zip(anchors.tolist(), relations.tolist(), strict=True)
    for row, (anchor, relation) in enumerate(asked):
        values = recorded.scores(anchor, relation, side, dim)
        triple = [anchor, relation, anchor]
        answers = answers_of(lists, triple, side)
        best, _ = oracles.best(values, k, [answers], subset)
        got = found.ids[row].tolist()
        expect(got == best[0], f"query {row}: ids {got!r:.300}, not {best[0]!r:.300}")


def _index(case: Case, drawn: Drawn) -> Any:
    has_index = case.chance(0.4)
    case.note(indexed=has_index)
    return kgfast.Index(drawn.model, croppable=drawn.dims is not None) if has_index else None


def drawn_graph(
    case: Case, entities: int, relations: int
) -> tuple[Tensor, Any, set[tuple[int, int, int]]]:
    """Draw triples to rank, the index of known ones or none, and those as a set."""
    triples = partial(case.triples, entities=entities, relations=relations)
    hrt = triples(case.choice((0, 1, 2, 7, 20)))
    if case.chance(0.3):
        return hrt, None, set()
    parts = [triples(case.choice((0, 5, 60))), triples(3), hrt]
    return hrt, kgfast.KnownTriples(*parts), {tuple(row) for row in torch.cat(parts).tolist()}


def answers_of(known: set[tuple[int, int, int]], triple: list[int], side: str) -> list[int]:
    """List the known answers to the query that a triple makes."""
    place = ("head", "relation", "tail").index(side)
    rest = triple[:place] + triple[place + 1 :]
    return [it[place] for it in known if [*it[:place], *it[place + 1 :]] == rest]


def _subset(case: Case, drawn: Drawn) -> Any:
    if case.chance(0.7):
        return None
    count = drawn.model.num_entities
    ids = torch.randperm(count, generator=case.generator)[: case.pick.randint(0, count)]
    return case.choice((ids, ids.tolist(), ids.int()))


def _length(ids: Any) -> int | None:
    return None if ids is None else len(ids)
