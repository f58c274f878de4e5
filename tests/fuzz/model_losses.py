"""Valid calls of the losses of models against dense formulas: values and all gradients."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

import kgfast
from fuzz import dense, models
from fuzz.case import Case, anywhere, expect
from fuzz.models import Drawn
from kgfast.models.base import SIDES
from support import oracles

SAMPLED = ("nssa", "margin", "logistic")
Scores = Callable[[Tensor], Tensor]


def sampled(case: Case) -> None:
    """Attack nssa, margin, logistic, and med of croppable models."""
    drawn = models.draw(case, trains=True)
    side, name = case.choice(SIDES), case.choice(SAMPLED)
    name = "med" if drawn.dims is not None and case.chance(0.8) else name
    model, batch = drawn.model, case.pick.randint(1, 12)
    hrt = case.triples(batch, model.num_entities, model.num_relations)
    columns = case.pick.randint(1, 20)
    pool = case.chance(0.4)
    negatives = case.ids(model.num_entities, *((columns,) if pool else (batch, columns)))
    mask = torch.rand(batch, columns, generator=case.generator) < 0.7 if case.chance(0.3) else None
    reduction = "mean" if name == "med" else case.choice(("mean", "sum", "none"))
    options, formula = _sampled(case, name, batch)
    given = {"side": side, "mask": mask, **options, "sparse": case.chance(0.3)}
    given |= {} if name == "med" else {"reduction": reduction}
    case.note(loss=name, pool=pool, **{name: it for name, it in given.items() if name != "weights"})
    replaced = hrt[:, None].repeat(1, columns, 1)
    replaced[..., 2 if side == "tail" else 0] = negatives

    cancelling: dict[str, float] = {}
    scores: list[Tensor] = []

    def definition(tables: dict[str, Tensor]) -> Tensor:
        dims = drawn.dims if name == "med" else [None]
        found = [
            (
                models.score_of(drawn, tables, hrt, side, dim),
                models.score_of(drawn, tables, replaced, side, dim),
            )
            for dim in dims or [None]
        ]
        if not scores:  # float64 tables come first
            scores.extend(it for pair in found for it in pair)
        if name == "med":
            return _med(drawn, tables, found, mask, cancelling)
        return formula(*found[0], mask, reduction)

    with anywhere(case):
        triples = hrt if case.chance(0.5) else tuple(hrt.T if side == "tail" else hrt.flip(1).T)
        loss = getattr(kgfast.losses, name)(model, triples, negatives, **given)
    _compare(name, drawn, loss, definition, (scores, cancelling))


def whole(case: Case) -> None:
    """Attack bce and cross_entropy over all entities."""
    drawn = models.draw(case, trains=True)
    transforms = drawn.rscf and "A2" in models.tables_of(drawn, torch.float64)
    if transforms:
        return
    model, side = drawn.model, case.choice(SIDES)
    batch, count = case.pick.randint(1, 12), model.num_entities
    hrt = case.triples(batch, model.num_entities, model.num_relations)
    anchors, targets = (hrt[:, 0], hrt[:, 2]) if side == "tail" else (hrt[:, 2], hrt[:, 0])
    reduction, smoothing = case.choice(("mean", "sum", "none")), case.choice((0.0, 0.2))
    name = case.choice(("bce", "cross_entropy"))
    case.note(loss=name, side=side, reduction=reduction, smoothing=smoothing)

    def scores(tables: dict[str, Tensor]) -> Tensor:
        rows = hrt[:, None].repeat(1, count, 1)
        rows[..., 2 if side == "tail" else 0] = torch.arange(count)
        return models.score_of(drawn, tables, rows, side)

    def definition(tables: dict[str, Tensor]) -> Tensor:
        found = scores(tables)
        if name == "cross_entropy":
            rows = oracles.softmax_cross_entropy(found, targets, smoothing)
            return _reduced(rows, batch, reduction)
        a, c = (1 - smoothing, smoothing / count) if smoothing else (1.0, 0.0)
        rows = oracles.binary_cross_entropy(found, [[it] for it in targets.tolist()], a, c)
        return _reduced(rows, batch * count, reduction)

    with anywhere(case):
        given = (hrt,) if case.chance(0.5) else ((anchors, hrt[:, 1]), targets)
        options = {"side": side, "label_smoothing": smoothing, "reduction": reduction}
        loss = getattr(kgfast.losses, name)(model, *given, **options)
    _compare(name, drawn, loss, definition)


def _compare(
    name: str,
    drawn: Drawn,
    loss: Tensor,
    definition: Callable[[dict[str, Tensor]], Tensor],
    noted: tuple[Sequence[Tensor], Mapping[str, float]] = ((), MappingProxyType({})),
) -> None:
    """Values, and gradients by the tables' names.

    ``noted`` are the exact scores, whose gradients may cancel in those of tables, and how large
    numbers are that cancel in the gradients of some tables.
    """
    exact, plain = (models.tables_of(drawn, it) for it in (torch.float64, torch.float32))
    right, rough = definition(exact), definition(plain)
    expect(bool(right.isfinite().all()), "the formula is not finite")
    dense.close(name, loss, right, rough)
    sizes = _sizes(right, exact, noted[0])
    for result in (loss, right, rough):
        result.sum().backward()
    spread = 16.0 * (1 + float(rough.detach().abs().max()))
    for table, parameter in models.parameters_of(drawn).items():
        if exact[table].grad is None:
            continue
        expect(parameter.grad is not None, f"{name}: {table} has no gradient")
        got = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        close = f"{name}: gradient of {table}"
        right_grad, rough_grad = exact[table].grad, plain[table].grad
        size = sum(it.get(table, 0.0) for it in (sizes, noted[1], drawn.cancelling))
        remains = dense.CANCELLING * 2.0**-24 * size
        dense.close(close, got, right_grad, rough_grad, largest=spread, remains=remains)


def _sizes(
    loss: Tensor, tables: Mapping[str, Tensor], scores: Sequence[Tensor]
) -> dict[str, float]:
    """Measure how large the numbers are that scores add to the gradient of each table."""
    of_scores = torch.autograd.grad(loss.sum(), scores, retain_graph=True) if scores else ()
    leaves = {name: it for name, it in tables.items() if it.requires_grad}
    if not of_scores:
        return {}
    grads = torch.autograd.grad(
        scores, list(leaves.values()), [it.abs() for it in of_scores],
        retain_graph=True, allow_unused=True,
    )  # fmt: skip
    return {
        name: 0.0 if it is None else float(it.abs().max())
        for name, it in zip(leaves, grads, strict=True)
    }


def _sampled(case: Case, name: str, batch: int) -> tuple[dict[str, Any], Any]:
    """Draw options of a loss, and make its formula of scores, mask and reduction."""
    if name == "nssa":
        alpha = case.choice((0.0, 0.5, 1.0))
        weights = None if case.chance(0.6) else case.normal(batch).abs().float() + 0.1

        def nssa(positive: Tensor, negative: Tensor, mask: Any, reduction: str) -> Tensor:
            logits = alpha * negative.detach()
            kept = torch.ones_like(logits, dtype=torch.bool) if mask is None else mask
            chances = logits.masked_fill(~kept, -torch.inf).softmax(-1).nan_to_num(0.0)
            wrong = (chances * oracles.softplus(negative)).sum(-1)
            rows = (wrong + oracles.softplus(-positive)) / 2
            shares = torch.ones_like(rows) if weights is None else weights.to(rows.dtype)
            return _reduced(rows * shares, shares.sum(), reduction)

        return {"alpha": alpha, "weights": weights}, nssa
    if name == "margin":
        width = case.choice((0.5, 2.0))

        def margin(positive: Tensor, negative: Tensor, mask: Any, reduction: str) -> Tensor:
            terms = (width - positive[:, None] + negative).relu()
            kept = torch.ones_like(terms) if mask is None else mask.to(terms.dtype)
            return _reduced((terms * kept).sum(-1), kept.sum().clamp_min(1), reduction)

        return {"margin": width}, margin

    def logistic(positive: Tensor, negative: Tensor, mask: Any, reduction: str) -> Tensor:
        terms = oracles.softplus(negative)
        kept = torch.ones_like(terms) if mask is None else mask.to(terms.dtype)
        rows = oracles.softplus(-positive) + (terms * kept).sum(-1)
        return _reduced(rows, kept.sum() + batch, reduction)

    return {}, logistic


def _reduced(rows: Tensor, count: Any, reduction: str) -> Tensor:
    if reduction == "none":
        return rows
    return rows.sum() if reduction == "sum" else rows.sum() / count


def _med(
    drawn: Drawn,
    tables: dict[str, Tensor],
    found: list[tuple[Tensor, Tensor]],
    mask: Any,
    cancelling: dict[str, float],
) -> Tensor:
    """Compute the loss of docs/how-to/med_rscf.md, softmax weights, ``exp`` of sub-models."""

    def chances(name: str, sign: float, scores: Tensor) -> Tensor:
        """Softmax weights ``q``, by a scale ``w`` whose gradient is ``sum s q (g - sum q g)``."""
        weights = (sign * tables[name] * scores).softmax(0)

        def note(gradient: Tensor) -> None:
            size = float((scores * weights.detach() * gradient).abs().sum())
            cancelling[name] = cancelling.get(name, 0.0) + size

        if weights.requires_grad and weights.dtype == torch.float64:
            weights.register_hook(note)
        return weights

    kept = torch.ones_like(found[0][1], dtype=torch.bool) if mask is None else mask
    total: Any = 0.0
    for place, (positive, negative) in enumerate(found):
        log_right, log_wrong = oracles.softplus(-positive), oracles.softplus(negative)
        if place == 0:
            improving = log_right.mean() + log_wrong[kept].sum() / max(1, int(kept.sum()))
        else:
            smaller = found[place - 1]
            mutual = _huber(smaller[0] - positive).mean()
            mutual = mutual + _huber(smaller[1] - negative)[kept].sum() / max(1, int(kept.sum()))
            p = chances("w1", -1.0, smaller[0].detach())
            q = chances("w2", 1.0, smaller[1].detach()[kept])
            improving = (p * log_right).sum() + (q * log_wrong[kept]).sum()
            total = total + mutual
        share = (drawn.dims or [1])[place] / (drawn.dims or [1])[-1]
        total = total + (tables["w3"] * share).exp() * improving
    return total


def _huber(x: Tensor) -> Tensor:
    return torch.where(x.abs() <= 1, x * x / 2, x.abs() - 0.5)
