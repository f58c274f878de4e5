"""Models in other batches, threads, casts and parametrizations: the answers are equal."""

import copy
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import kgfast
from fuzz import models
from fuzz.case import Case, expect
from kgfast.models.base import SIDES

_CASTS = ("", "double", "half", "bfloat16")


class Encoder(nn.Module):
    """A network of random layers as a model of the user's own."""

    score = "dot"

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.num_entities, self.num_relations = case.pick.randint(2, 60), case.pick.randint(1, 5)
        widths = [case.choice((5, 64, 300, 1000)) for _ in range(case.pick.randint(2, 4))]
        self.dim, dtype = widths[-1], case.choice((torch.float32, torch.float64))
        count = self.num_entities + self.num_relations
        self.rows = case.normal(count, widths[0]).to(dtype)
        self.table = case.normal(self.num_entities, self.dim).to(dtype)
        self.kernel = case.normal(2, 1, 3).to(dtype) if case.chance(0.3) else None
        self.weights = [case.normal(*pair).to(dtype) for pair in pairwise(widths)]
        self.norm = nn.LayerNorm(self.dim, dtype=dtype) if case.chance(0.5) else None
        case.note(widths=widths, dtype=dtype, entities=self.num_entities)

    def queries(self, anchors: Tensor, relations: Tensor, side: str) -> Tensor:
        hidden = self.rows[anchors] * self.rows[self.num_entities + relations]
        if self.kernel is not None:
            hidden = torch.conv1d(hidden[:, None], self.kernel, padding=1).amax(1)
        for weight in self.weights:
            hidden = (hidden @ weight).tanh()
        hidden = hidden if self.norm is None else self.norm(hidden)
        return hidden if side == "tail" else -hidden

    def candidates(self, side: str) -> Tensor:
        return self.table


def batches(case: Case) -> None:
    """Expect the same bits of ranks and predictions for any batch and number of threads."""
    own = case.chance(0.5)
    model = Encoder(case) if own else models.draw(case).model
    count, k = case.pick.randint(1, 100), case.pick.randint(1, model.num_entities)
    hrt = torch.stack(
        [case.ids(most, count) for most in (model.num_entities, model.num_relations)]
        + [case.ids(model.num_entities, count)],
        1,
    )
    side, before = case.choice(SIDES), torch.get_num_threads()
    anchors: dict[str, Any] = {"heads": hrt[:, 0]} if side == "tail" else {"tails": hrt[:, 2]}
    found = []
    for _ in range(3):
        options = {"batch_size": case.choice((1, 2, 7, 33, 100, None))}
        threads = case.choice((1, 2, 3))
        case.note(own=own, side=side, threads=threads, **options)
        order = torch.randperm(count, generator=case.generator)
        asked = {name: ids[order] for name, ids in anchors.items()}
        torch.set_num_threads(threads)
        try:
            best = kgfast.topk(model, **asked, relations=hrt[order, 1], k=k, **options)
            ranks = kgfast.rank(model, hrt[order], **options)
        finally:
            torch.set_num_threads(before)
        parts = best.scores, best.ids, ranks.greater, ranks.equal
        found.append([part[order.argsort()] for part in parts])
    names = ("scores", "ids", "greater", "equal")
    for other in found[1:]:
        for name, one, two in zip(names, found[0], other, strict=True):
            expect(torch.equal(one, two), f"{name} differ in {int((one != two).sum())} places")


class Doubled(nn.Module):
    """A parametrization: twice what it holds, exactly."""

    def forward(self, table: Tensor) -> Tensor:
        return 2 * table


def forms(case: Case) -> None:
    """Compare a model that was cast or parametrized with one of the tables' values."""
    drawn = models.draw(case, trains=True, computes=False)  # copied below
    plain, cast, side = drawn.model, case.choice(_CASTS), case.choice(SIDES)
    if cast:
        getattr(plain, cast)()
    other = copy.deepcopy(plain)
    base = models.Drawn(other, drawn.name).base
    names = [name for name in ("entity", "relation") if case.chance(0.5)]
    with torch.no_grad():
        for name in names:
            getattr(drawn.base, name).mul_(2)
            parametrize.register_parametrization(base, name, Doubled())
    batch = case.pick.randint(1, 8)
    sizes = plain.num_entities, plain.num_relations, plain.num_entities
    hrt = torch.stack([case.ids(most, batch) for most in sizes], 1)
    pool, sparse = case.chance(0.5), case.chance(0.5)
    negatives = case.ids(plain.num_entities, *((6,) if pool else (batch, 6)))
    case.note(cast=cast, parametrized=names, pool=pool, sparse=sparse, side=side)
    if drawn.name == "conve":
        plain.eval(), other.eval()
    counts = [kgfast.rank(it, hrt, dims=drawn.dims) for it in (plain, other)]
    for dim, ranks in counts[0].items() if drawn.dims else [(None, counts[0])]:
        theirs = counts[1] if dim is None else counts[1][dim]
        expect(torch.equal(ranks.greater, theirs.greater), f"ranks of dim {dim} differ")
    name = "med" if drawn.dims else case.choice(("nssa", "margin", "logistic"))
    values = [
        getattr(kgfast.losses, name)(it, hrt, negatives, side=side, sparse=sparse)
        for it in (plain, other)
    ]
    expect(torch.equal(*(it.detach() for it in values)), f"{name}: {values[0]}, not {values[1]}")
    for value in values:
        value.backward()
    theirs = dict(other.named_parameters())
    for key, parameter in plain.named_parameters():
        last = key.rpartition(".")[2]
        path = key.removesuffix(last) + f"parametrizations.{last}.original"
        got, factor = (theirs[path], 2) if path in theirs else (theirs[key], 1)
        expect((got.grad is None) == (parameter.grad is None), f"{key}: one has no gradient")
        if parameter.grad is not None:
            wanted = factor * parameter.grad.to_dense().double()
            error = (got.grad.to_dense().double() - wanted).abs().max()
            scale = float(wanted.abs().max())
            # A gradient of half precision is a sum of several parts, each of which was rounded.
            small = {"half": 2.0**-8, "bfloat16": 2.0**-6}.get(cast, 2.0**-20)
            expect(error <= small * scale + 2.0**-20, f"{key}: gradients differ by {error}")
