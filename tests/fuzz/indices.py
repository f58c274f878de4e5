"""An index and writes to the tables that it was packed of: calls are right, or refused."""

from collections.abc import Callable

import torch
from torch import nn

import kgfast
from fuzz.case import Case, expect, refused
from fuzz.evaluations import drawn_graph

_OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adagrad")


def writes(case: Case) -> None:
    """Attack ``kgfast.rank`` with an index, after writes of every kind that must be seen."""
    is_inference = case.chance(0.2)
    entities, relations, dim = case.pick.randint(2, 300), case.pick.randint(1, 4), 4
    with torch.inference_mode(is_inference):
        tables = [case.normal(rows, 2 * dim).float() for rows in (entities, relations)]
        tables = tables if is_inference else [nn.Parameter(it) for it in tables]
        model = case.choice((kgfast.DistMult, kgfast.TransE, kgfast.ComplEx))(*tables)
    hrt, known, _ = drawn_graph(case, entities, relations)
    index = kgfast.Index(model)
    case.note(model=type(model).__name__, inference=is_inference, entities=entities)
    for _ in range(case.pick.randint(1, 4)):
        kinds = ("nothing", "rows") if is_inference else tuple(_WRITES)
        kind = case.choice(kinds)
        before = model.entity.detach().clone()
        case.note(write=kind)
        with torch.inference_mode(is_inference):
            _WRITES[kind](case, model)
        if not torch.equal(model.entity, before):
            expect(not index.is_current, f"{kind}: the index says that it is current")
            message = refused(
                lambda: kgfast.rank(model, hrt[:1], index=index), errors=(ValueError,)
            )
            expect("refresh" in message, f"{kind}: {message}")
        if not index.is_current:
            index.refresh()
        plain, own = (kgfast.rank(model, hrt, known=known, index=it) for it in (None, index))
        for name in ("greater", "equal", "num_candidates"):
            expect(torch.equal(getattr(own, name), getattr(plain, name)), f"{kind}: {name} differ")


def _step(case: Case, model: kgfast.Model) -> None:
    """Take a step of an optimizer of torch, with gradients of some parameters."""
    how = case.choice(({"fused": True}, {"foreach": True}, {}))
    name = case.choice(_OPTIMIZERS)
    case.note(optimizer=name, how=how)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, **how)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) if case.chance(0.7) else None
    optimizer.step()


def _rows(case: Case, model: kgfast.Model) -> None:
    ids = case.ids(len(model.entity), 3)
    with torch.no_grad():
        model.entity[ids] += 1


def _row_adam(case: Case, model: kgfast.Model) -> None:
    ids = case.ids(len(model.entity), 3).unique()
    moments = [torch.zeros_like(model.entity.detach()) for _ in range(2)]
    kgfast.ops.row_adam(
        [model.entity.detach(), *moments], ids, torch.ones(len(ids), model.entity.shape[1]),
        lr=0.1, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0, step=1,
    )  # fmt: skip


def _replaced(case: Case, model: kgfast.Model) -> None:
    """Put another parameter on the same memory, which may have been written to as often."""
    count, data = model.entity._version, model.entity.data
    model.entity = nn.Parameter(data)
    if case.chance(0.5):
        data[case.pick.randrange(len(data))] += 1
    torch.autograd.graph.increment_version([model.entity] * (count - model.entity._version))


_WRITES: dict[str, Callable[[Case, kgfast.Model], object]] = {
    "nothing": lambda case, model: None,
    "rows": _rows,
    "step": _step,
    "row_adam": _row_adam,
    "load": lambda case, model: model.load_state_dict(
        {name: it + 1 for name, it in model.state_dict().items()}
    ),
    "replaced": _replaced,
    "moved": lambda case, model: setattr(model, "entity", nn.Parameter(model.entity + 1)),
}
