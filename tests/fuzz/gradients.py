"""Valid calls of the operators with gradients against dense formulas: values and gradients."""

from typing import Any

import torch
from torch import Tensor

from fuzz import dense
from fuzz.case import Case, expect
from fuzz.operands import SPREAD, Operands, csr, draw
from fuzz.surroundings import anywhere
from kgfast import losses as losses_of
from kgfast import ops
from support import oracles
from support.states import STATES, state

LOSS_SCORES = ("dot", "l1", "l2", "rotate", "rotate_interleaved")
KINDS = (*SPREAD[:-1], "same", "few")  # others differ in what float32 takes for zero


def pairwise(case: Case) -> None:
    operands = _differentiable(case)
    with anywhere(case):
        dense.check("pairwise_scores", *_pairwise(operands), *_grads(case, operands))


def indexed(case: Case) -> None:
    """Attack ``ops.indexed_scores``, with dense and with row-sparse gradients."""
    operands = _differentiable(case)
    if not len(operands.table):
        return
    index = case.ids(len(operands.table), len(operands.queries), case.pick.randint(0, 40))
    if case.chance(0.3):
        index = index.t().contiguous().t()
    sparse = case.chance(0.3)
    case.note(index=list(index.shape), sparse=sparse)
    with anywhere(case):
        call, formula = _indexed(operands, index, sparse)
        dense.check("indexed_scores", call, formula, *_grads(case, operands))


def losses(case: Case) -> None:
    operands = _differentiable(case, LOSS_SCORES)
    if not len(operands.table):
        return
    name = case.choice(("bce", "bce_total", "cross_entropy", "cross_entropy_total"))
    case.note(loss=name)
    with anywhere(case):
        call, formula = _loss(case, operands, name)
        dense.check(name, call, formula, *_grads(case, operands, factor=False))


def pairs(case: Case) -> None:
    """Attack ``kgfast.losses.siglip``, with any of the gradients."""
    count, dim = case.choice((1, 2, 7, 64, 130, 257)), case.choice((1, 3, 16, 33, 100))
    image, text = (case.normal(count, dim).float() / dim**0.5 for _ in range(2))
    numbers = [
        torch.tensor(case.pick.uniform(*bounds), dtype=torch.float32, device="cpu")
        for bounds in ((-3.0, 30.0), (-20.0, 5.0))
    ]
    has_bias = case.chance(0.8)
    tensors = image, text, numbers[0], numbers[1] if has_bias else None
    needs = [it is not None and case.chance(0.7) for it in tensors]
    case.note(shape=[count, dim], numbers=[it.item() for it in numbers], bias=has_bias, needs=needs)

    def scores(image: Tensor, text: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
        return scale * image @ text.T + (0.0 if bias is None else bias)

    def mean(found: Tensor) -> Tensor:
        signs = 1 - 2 * torch.eye(count, dtype=found.dtype, device=found.device)
        return oracles.softplus(signs * found).sum() / count

    with anywhere(case):
        formula = dense.OfScores(scores, mean)
        given = formula, tensors, needs, lambda shape: case.normal(*shape)
        dense.check("siglip", losses_of.siglip, *given)


def adversarial(case: Case) -> None:
    rows, columns = case.pick.randint(1, 40), case.choice((1, 2, 7, 8, 15, 16, 17, 64, 255, 1025))
    scores = (case.normal(rows, columns) * 10.0 ** case.pick.randint(-3, 3)).float()
    if case.chance(0.3):
        scores = scores.t().contiguous().t()
    alpha = case.choice((0.0, 0.5, 1.0, 3.0, 20.0))
    case.note(shape=[rows, columns], alpha=alpha)
    with anywhere(case, reference=0.0) as backend:
        if backend == "reference":
            return
        dense.check(
            "adversarial_rows",
            lambda x: ops.adversarial_rows(x, alpha),
            lambda x: dense.adversarial_rows(x, alpha),
            *([scores], [True], lambda shape: case.normal(*shape)),
        )


def row_adam(case: Case) -> None:
    rows, width = case.pick.randint(1, 60), case.choice((1, 3, 8, 16, 33, 130))
    count = case.pick.randint(0, rows)
    tables = [case.normal(rows, width).float() for _ in range(3)]
    tables[2] **= 2
    exact = [it.double() for it in tables]
    given = {
        "lr": 10.0 ** case.pick.randint(-5, 0),
        "betas": (case.pick.uniform(0, 0.99), case.pick.uniform(0.5, 0.9999)),
        "eps": 1e-8,
        "weight_decay": case.choice((0.0, 0.01)),
    }
    case.note(shape=[rows, width], count=count, **given)
    with anywhere(case, reference=0.0) as backend:
        if backend == "reference":
            return
        for step in range(1, case.pick.randint(2, 5)):
            ids = torch.randperm(rows, generator=case.generator)[:count]
            gradients = case.normal(count, width).float()
            ops.row_adam(tables, ids, gradients, step=step, **given)  # type: ignore[arg-type]
            _adam(exact, ids, gradients.double(), step=step, **given)  # type: ignore[arg-type]
    for name, got, right in zip(("table", "moment", "variance"), tables, exact, strict=True):
        dense.close(f"row_adam: {name}", got, right, right)


def row_adagrad(case: Case) -> None:
    """Compare steps over all rows or some with float64."""
    shape = [case.pick.randint(1, 60), case.choice((1, 3, 16, 130, 1500))]
    count = case.pick.randint(0, shape[0])
    of_some = case.choice((False, True))
    table, sums = case.normal(*shape).float(), case.normal(*shape).float() ** 2
    exact, exact_sums = table.double(), sums.double()
    lr, decay = 10.0 ** case.pick.randint(-5, 0), case.choice((0.0, 0.01))
    case.note(shape=shape, lr=lr, weight_decay=decay, count=count if of_some else None)
    with anywhere(case, reference=0.0) as backend:
        if backend == "reference":
            return
        for _ in range(case.pick.randint(1, 4)):
            ids = torch.randperm(shape[0], generator=case.generator)
            ids = ids[:count] if of_some else torch.arange(shape[0])
            gradient = case.normal(len(ids), shape[1]).float()
            given = ids if of_some else None
            ops.row_adagrad((table, sums), given, gradient, lr=lr, eps=1e-10, weight_decay=decay)
            slopes = gradient.double() + decay * exact[ids]
            exact_sums[ids] += slopes**2
            exact[ids] -= lr * slopes / (exact_sums[ids].sqrt() + 1e-10)
    dense.close("row_adagrad: table", table, exact, exact)
    dense.close("row_adagrad: sums", sums, exact_sums, exact_sums)


def in_state(case: Case) -> None:
    """Expect the same scores and losses under every global state of torch."""
    name = case.choice(STATES)
    losses = "bce", "bce_total", "cross_entropy", "cross_entropy_total"
    kind = case.choice(("pairwise", "indexed", *losses))
    is_loss = kind in losses
    operands = _differentiable(case, LOSS_SCORES if is_loss else None)
    case.note(state=name, operator=kind)
    if not len(operands.table):
        return
    if kind == "pairwise":
        call, formula = _pairwise(operands)
    elif kind == "indexed":
        index = case.ids(len(operands.table), len(operands.queries), case.pick.randint(1, 9))
        call, formula = _indexed(operands, index, False)
    else:
        call, formula = _loss(case, operands, kind)
    tensors, needs, grad_of = _grads(case, operands, factor=not is_loss)
    if name in ("inference", "no_grad"):
        needs = [False] * len(needs)

    def within(*given: Tensor | None) -> Tensor:
        with state(name):
            found: Tensor = call(*given)
            if any(needs):  # a backward in this state, too
                again = call(*given)
                leaves = [it for it, need in zip(given, needs, strict=True) if need]
                torch.autograd.grad(again.sum(), leaves, allow_unused=True)  # type: ignore[arg-type]
        expect(not found.is_inference() or name == "inference", "an inference tensor")
        return found.clone() if found.is_inference() else found

    with anywhere(case):
        dense.check(kind, within, formula, tensors, needs, grad_of)


def _differentiable(case: Case, scores: tuple[str, ...] | None = None) -> Operands:
    """Draw operands whose gradients are not ill-posed, of one of some scores."""
    while True:
        operands = draw(case, values=KINDS, large=0.0)
        if scores is None or operands.score in scores:
            break
        case.notes.clear()
    if operands.table.dtype == torch.float64 and operands.queries.dtype == torch.float32:
        operands.table = operands.table.float().double()  # read as float32: else q = c is ill-posed
    if scores is not None:
        operands.dims = None
        operands.factor = None
    return operands


def _grads(case: Case, operands: Operands, factor: bool = True) -> tuple[Any, Any, Any]:
    """Draw which tensors are differentiated, and the gradient that comes in."""
    tensors = [operands.queries, operands.table, operands.bias]
    tensors += [operands.factor] if factor else []
    mode = case.choice(("all", "all", "none", "some"))
    needs = [
        it is not None and mode != "none" and (mode == "all" or case.chance(0.5)) for it in tensors
    ]
    case.note(needs=needs)
    return tensors, needs, lambda shape: case.normal(*shape)


def _stacked(operands: Operands, of_crop: Any) -> Tensor:
    found = [of_crop(dim) for dim in operands.crops]
    return found[0] if operands.dims is None else torch.stack(found)


def _pairwise(operands: Operands) -> tuple[Any, Any]:
    def call(queries: Tensor, table: Tensor, bias: Any, factor: Any) -> Tensor:
        return ops.pairwise_scores(
            *(queries, table, operands.score), bias=bias, factor=factor, dims=operands.dims
        )

    def formula(queries: Tensor, table: Tensor, bias: Any, factor: Any) -> Tensor:
        pairs = queries[:, None], table[None], operands.score
        return _stacked(
            operands, lambda dim: oracles.dense_scores(*pairs, bias=bias, factor=factor, dim=dim)
        )

    return call, formula


def _indexed(operands: Operands, index: Tensor, sparse: bool) -> tuple[Any, Any]:
    def call(queries: Tensor, table: Tensor, bias: Any, factor: Any) -> Tensor:
        return ops.indexed_scores(
            *(queries, table, index, operands.score),
            bias=bias, factor=factor, dims=operands.dims, sparse=sparse,
        )  # fmt: skip

    def formula(queries: Tensor, table: Tensor, bias: Any, factor: Any) -> Tensor:
        own = None if bias is None else bias.expand(len(table))[index]
        of = None if factor is None else factor[index]
        pairs = queries[:, None], table[index], operands.score
        return _stacked(
            operands, lambda dim: oracles.dense_scores(*pairs, bias=own, factor=of, dim=dim)
        )

    return call, formula


def _loss(case: Case, operands: Operands, name: str) -> tuple[Any, Any]:
    rows, batch, score = len(operands.table), len(operands.queries), operands.score

    def scores(queries: Tensor, table: Tensor, bias: Any) -> Tensor:
        return oracles.dense_scores(queries[:, None], table[None], score, bias=bias)

    divisor = case.choice((1.0, 7.5)) if name.endswith("_total") else 0.0
    if name.startswith("cross_entropy"):
        targets, smoothing = case.ids(rows, batch), case.choice((0.0, 0.1, 0.9))

        def call(queries: Tensor, table: Tensor, bias: Any) -> Tensor:
            given = queries, table, bias, targets, smoothing, score
            if divisor:
                return ops.cross_entropy_total(*given, divisor)
            return ops.cross_entropy(*given)

        def of_scores(found: Tensor) -> Tensor:
            made = oracles.softmax_cross_entropy(found, targets, smoothing)
            return made.sum() / divisor if divisor else made

        return call, dense.OfScores(scores, of_scores)
    indptr, indices, positives = csr(case, batch, rows, least=1)
    a, c = case.choice(((1.0, 0.0), (0.9, 0.01), (-0.5, 0.3)))
    labels = indptr, indices, a, c, score

    def call_bce(queries: Tensor, table: Tensor, bias: Any) -> Tensor:
        if divisor:
            return ops.bce_total(queries, table, bias, *labels, divisor=divisor)
        return ops.bce(queries, table, bias, *labels)

    def bce_of_scores(found: Tensor) -> Tensor:
        rows = oracles.binary_cross_entropy(found, positives, a, c)
        return rows.sum() / divisor if divisor else rows

    return call_bce, dense.OfScores(scores, bce_of_scores)


def _adam(
    tables: list[Tensor],
    ids: Tensor,
    gradients: Tensor,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    step: int,
) -> None:
    table, first, second = (it[ids] for it in tables)
    gradients = gradients + weight_decay * table
    first = betas[0] * first + (1 - betas[0]) * gradients
    second = betas[1] * second + (1 - betas[1]) * gradients**2
    mean, spread = first / (1 - betas[0] ** step), second / (1 - betas[1] ** step)
    for whole, rows in zip(
        tables, (table - lr * mean / (spread.sqrt() + eps), first, second), strict=True
    ):
        whole[ids] = rows
