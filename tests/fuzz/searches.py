"""Valid calls that score a function, rank relations, and find the best facts, on every model."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

import kgfast
from fuzz import models
from fuzz.case import Case, expect, refused
from fuzz.evaluations import Recorded, answers_of, drawn_graph, excluded, expect_rank
from fuzz.surroundings import anywhere
from support import oracles
from support.lists import padded, random_lists

_SIDES = ("head", "relation", "tail")
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class _Function:
    """A function that looks its scores up, ``[first, second, candidate]`` of each side."""

    def __init__(self, case: Case, entities: int, relations: int) -> None:
        dtype, values = case.choice(_DTYPES), case.choice(("few", "normal", "infinite", "nan"))
        case.note(dtype=dtype, values=values)
        self.nan = "worst" if values == "nan" else "error"
        self.changes_ids, self.result = case.chance(0.3), torch.empty(0)
        self.reuses_result = case.chance(0.3)
        case.note(changes_ids=self.changes_ids, reuses_result=self.reuses_result)
        sizes = {
            side: (entities, relations, entities) if side != "relation" else
            (entities, entities, relations)
            for side in _SIDES
        }  # fmt: skip
        self.tables = {side: case.normal(*size) for side, size in sizes.items()}
        for side, table in self.tables.items():
            if values != "normal":
                table.round_()
            spoilt = torch.rand(table.shape, generator=case.generator) < 0.2
            if values in ("infinite", "nan"):
                table[spoilt] = torch.inf * table[spoilt].sign()  # 0 becomes NaN
            if values == "infinite":
                table.nan_to_num_(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
            self.tables[side] = table.to(dtype)

    def __call__(self, anchors: Tensor, relations: Tensor, side: str, ids: Tensor) -> Tensor:
        scores = self.tables[side][anchors[:, None], relations[:, None], ids]
        if self.changes_ids:
            for changed in (anchors, relations, ids):
                changed.fill_(-1)
        if not self.reuses_result:
            return scores
        if self.result.shape != scores.shape:
            self.result = torch.empty_like(scores)
        return self.result.copy_(scores)

    def scores(self, triple: list[int], side: str) -> tuple[oracles.Floats, int]:
        """Return the scores ``[1, C]`` of the query that a triple makes, and its target."""
        h, r, t = triple
        first, second, target = {"tail": (h, r, t), "head": (t, r, h), "relation": (h, t, r)}[side]
        return oracles.numbers(self.tables[side][first, second])[None], target


def blocks(case: Case) -> None:
    """Attack ``kgfast.rank`` and ``topk`` of a function, among all, a list, or lists of each."""
    entities, relations = case.pick.randint(1, 60), case.pick.randint(1, 5)
    function = _Function(case, entities, relations)
    scorer = kgfast.BlockScorer(
        *(function, entities, relations),
        block=case.choice((1, 3, 16, 1024)), batch_size=case.choice((1, 5, 64)), nan=function.nan,
    )  # fmt: skip
    hrt, known, held = drawn_graph(case, entities, relations)
    sides = case.choice((("head", "tail"), ("tail",), ("relation", "head"), _SIDES))
    kind = case.choice(("all", "one list", "lists"))
    case.note(entities=entities, relations=relations, triples=len(hrt), sides=sides, among=kind)
    given: Any = None
    rows: list[list[int] | None] = [None] * len(hrt)
    if kind == "one list":
        size = case.pick.randint(0, entities)
        given = torch.randperm(entities, generator=case.generator)[:size]
        rows = [given.tolist()] * len(hrt)
    elif kind == "lists":
        lists = random_lists(len(hrt), entities, case.pick.randrange(2**31))
        given = padded(lists) if len(hrt) and case.chance(0.5) else tuple(lists)
        rows = [it.tolist() for it in lists.indices.split(lists.indptr.diff().tolist())]
    exclude, left_out = excluded(case, hrt[:, 0], entities)
    with anywhere(case):
        ranks = kgfast.rank(
            *(scorer, hrt), known=known, sides=sides, candidate_ids=given,
            batch_size=case.choice((None, 2)), nan=function.nan,
        )  # fmt: skip
        k = case.pick.randint(1, entities)
        top = kgfast.topk(
            scorer, heads=hrt[:, 0], relations=hrt[:, 1], k=k, known=known, pad=True,
            candidate_ids=given, exclude=exclude,
        )  # fmt: skip
    for row, triple in enumerate(hrt.tolist()):
        for column, side in enumerate(sides):
            values, target = function.scores(triple, side)
            among = None if side == "relation" else rows[row]
            expect_rank(ranks, (row, column), values, target, answers_of(held, triple, side), among)
        values, _ = function.scores(triple, "tail")
        answers = [*answers_of(held, triple, "tail"), *left_out[row]]
        best, _ = oracles.best(values, k, [answers], rows[row])
        got = top.ids[row].tolist()
        expect(got == best[0], f"query {row}: ids {got!r:.300}, not {best[0]!r:.300}")


def relations(case: Case) -> None:
    """Attack ``kgfast.rank`` of relations: by their rows, or by the scores of tails."""
    drawn = models.draw(case)
    model = drawn.model
    hrt, known, held = drawn_graph(case, model.num_entities, model.num_relations)
    if drawn.name == "rescal":  # has no queries for relations
        refused(lambda: kgfast.rank(model, hrt, sides=("relation",)), errors=(NotImplementedError,))
        return
    dim = None if drawn.dims is None else case.choice((None, *drawn.dims))
    case.note(triples=len(hrt), dim=dim)
    recorded = Recorded(drawn)
    try:
        with anywhere(case):
            ranks = kgfast.rank(
                *(model, hrt), known=known, sides=("relation",), dims=dim,
                batch_size=case.choice((None, 3)),
            )  # fmt: skip
    finally:
        recorded.close()
    for row, triple in enumerate(hrt.tolist()):
        h, r, t = triple
        if recorded.has(h, t, "relation"):
            values = recorded.scores(h, t, "relation", dim)
        else:
            every = range(model.num_relations)
            scores = [recorded.scores(h, it, "tail", dim)[:, t] for it in every]
            values = np.stack(scores, 1)
        expect_rank(ranks, (row, 0), values, r, answers_of(held, triple, "relation"))


def facts(case: Case) -> None:
    """Attack ``kgfast.top_facts``: of all, or of a slice."""
    drawn = models.draw(case)
    model = drawn.model
    _, known, held = drawn_graph(case, model.num_entities, model.num_relations)
    sizes = {"heads": model.num_entities, "relations": model.num_relations}
    sizes["tails"] = model.num_entities
    given = {name: _some(case, size) for name, size in sizes.items()}
    k = case.choice((1, 3, 20, 1000))
    case.note(k=k, **{name: None if it is None else len(it) for name, it in given.items()})
    recorded = Recorded(drawn)
    try:
        with anywhere(case):
            found = kgfast.top_facts(
                model, k=k, known=known, batch_size=case.choice((None, 2)), **given
            )
    finally:
        recorded.close()
    heads, own, tails = (
        sorted(range(size) if (it := given[name]) is None else it) for name, size in sizes.items()
    )
    pairs = [(h, r) for h in heads for r in own]
    order = []
    for (h, r), row in zip(pairs, recorded.tails(pairs) if pairs else (), strict=True):
        order += [(-row[t], h, r, t) for t in tails if (h, r, t) not in held]
    order.sort()
    wanted = [list(it[1:]) for it in order[:k]]
    got = found.triples.tolist()
    expect(got == wanted, f"facts {got!r:.300}, not {wanted!r:.300}")
    scores = torch.tensor([-it[0] for it in order[:k]], dtype=torch.float64)
    expect(
        torch.equal(found.scores, scores.to(found.scores.dtype)),
        f"scores {found.scores}, not {scores}",
    )


def _some(case: Case, size: int) -> list[int] | None:
    """Draw ids in any order, or None for all."""
    if case.chance(0.6):
        return None
    order = torch.randperm(size, generator=case.generator)
    some: list[int] = order[: case.pick.randint(0, size)].tolist()
    return some
