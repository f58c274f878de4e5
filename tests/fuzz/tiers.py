"""Ranks and the best k of as many rows as tiers ask for, of tables and of an index."""

import torch
from torch import Tensor

import kgfast
from fuzz.case import Case, expect
from fuzz.operands import Operands, csr, drawn
from fuzz.surroundings import anywhere
from support import oracles

_SCORES = ("l1", "l1", "rotate", "rotate", "l2", "dot")
_VALUES = (*5 * ["normal"], "grid", "signs", "few", "lognormal", "cauchy", "close")
_DTYPES = (torch.float32, torch.float32, torch.float16, torch.bfloat16)


class _Given:
    """A model whose queries are the rows of a tensor."""

    num_relations = 1

    def __init__(self, operands: Operands) -> None:
        self.score, self._rows = operands.score, operands.queries
        self._candidates = kgfast.Candidates(operands.table, operands.bias)
        self.num_entities = len(operands.table)
        self.dim = operands.table.shape[1] // oracles.LAYOUTS[operands.score][1]

    def queries(
        self, anchors: Tensor, relations: Tensor, side: str, dims: int | None = None
    ) -> Tensor:
        return self._rows[anchors]

    def candidates(self, side: str) -> kgfast.Candidates:
        return self._candidates


def ranks_and_best(case: Case) -> None:
    """Compare ``kgfast.rank`` and ``kgfast.topk`` of one model with the oracle."""
    few = case.chance(0.4)
    rows = case.pick.randint(40, 300) if few else case.pick.randint(4_096, 4_500)
    batch = case.choice((1, 2, 4, 16, 33)) if few else case.choice((4, 32, 40, 40))
    dim, score = case.choice((7, 16, 33, 64, 130)), case.choice(_SCORES)
    operands = drawn(case, score, case.choice(_VALUES), case.choice(_DTYPES), dim, rows, batch)
    operands.dims, targets = None, case.ids(rows, batch)
    near = case.choice((0.0, 0.05, 0.05, 1.0, None))  # times a normal number from their queries
    if near is not None:
        own = operands.table[targets].double()
        size = float(own.abs().mean())
        moved = own + near * size * case.normal(*own.shape)
        operands.queries = moved.to(operands.queries.dtype)
    indexed, k = case.chance(0.5), case.choice((1, 10, 40))
    case.note(near=near, indexed=indexed, k=k)
    values = oracles.canonical_scores(operands.queries, operands.table, score, operands.bias)
    model, heads = _Given(operands), torch.arange(batch)
    *pointers, lists = csr(case, batch, min(rows, 40))
    hrt = torch.stack([heads, torch.zeros_like(heads), targets], 1)
    answers = [[row, 0, id] for row, ids in enumerate(lists) for id in ids]
    known = kgfast.KnownTriples(torch.tensor(answers, dtype=torch.int64).reshape(-1, 3))
    with anywhere(case):
        index = kgfast.Index(model, croppable=case.chance(0.3)) if indexed else None
    with anywhere(case):  # tiers, threads and instructions may differ from those of the index
        ranks = kgfast.rank(model, hrt, known=known, sides=("tail",), index=index)
        top = kgfast.topk(
            model, heads=heads, relations=0, k=k, exclude=tuple(pointers), pad=True, index=index
        )
    greater, equal, *left_out = oracles.counts(values, targets.tolist(), lists)
    for name, counted, out in (("greater", greater, 0), ("equal", equal, 1)):
        wanted = [a - b for a, b in zip(counted, left_out[out], strict=True)]
        got = getattr(ranks, name)[:, 0].tolist()
        expect(got == wanted, f"{name}: got {got!r:.300}, the oracle says {wanted!r:.300}")
    best, _ = oracles.best(values, k, lists)
    got = top.ids.tolist()
    expect(got == best, f"ids: got {got!r:.300}, the oracle says {best!r:.300}")
