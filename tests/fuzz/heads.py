"""Valid calls of output layers: losses against dense formulas, draws against what they promise."""

import torch
from torch import Tensor, nn

from fuzz import dense
from fuzz.case import Case, expect
from fuzz.surroundings import anywhere
from kgfast.extras.heads import StreamedHead
from support import oracles


def head(case: Case) -> None:
    """Attack ``StreamedHead``: the loss with its gradients, the best, draws."""
    outputs, dim = case.choice((1, 2, 9, 64, 1025, 2100)), case.choice((1, 3, 8, 33))
    rows, has_bias = case.pick.randint(0, 9), case.chance(0.5)
    hidden = case.normal(rows, dim).float()
    weight = case.normal(outputs, dim).float()
    bias = case.normal(outputs).float() if has_bias else None
    ids = None
    if case.chance(0.5):
        count = case.pick.randint(1, outputs)
        ids = torch.randperm(outputs, generator=case.generator)[:count]
    smoothing, sparse = case.choice((0.0, 0.1)), case.chance(0.5)
    case.note(outputs=outputs, dim=dim, rows=rows, bias=has_bias, smoothing=smoothing)
    case.note(candidates=None if ids is None else len(ids), sparse=sparse)
    pool = torch.arange(outputs) if ids is None else ids
    places = case.ids(len(pool), rows)

    def made(*tensors: Tensor | None) -> StreamedHead:
        made = StreamedHead(outputs, dim, bias=has_bias, sparse=sparse)
        for name, value in zip(("weight", "bias"), tensors, strict=True):
            if value is not None:
                del made._parameters[name]
                setattr(made, name, value)
        return made

    def call(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        options = {"label_smoothing": smoothing, "candidate_ids": ids}
        return made(weight, bias).loss(hidden, pool[places], reduction="none", **options)

    def scores(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return oracles.dense_scores(hidden[:, None], weight, "dot", bias=bias)[:, pool]

    formula = dense.OfScores(
        scores, lambda found: oracles.softmax_cross_entropy(found, places, smoothing)
    )
    tensors = hidden, weight, bias
    needs = [it is not None for it in tensors]
    with anywhere(case), torch.random.fork_rng():
        dense.check(
            "StreamedHead.loss",
            *(call, formula, tensors, needs),
            lambda shape: case.normal(*shape),
        )
        of = made(nn.Parameter(weight), None if bias is None else nn.Parameter(bias))
        _draws(case, of, hidden, pool, ids)


def _draws(
    case: Case, head: StreamedHead, hidden: Tensor, pool: Tensor, ids: Tensor | None
) -> None:
    """Expect draws among the candidates and the best, whatever the other rows are."""
    top_k = case.choice((None, 1, min(5, len(pool)), len(pool)))
    temperature = case.choice((1e-20, 0.3, 1.0, 50.0))
    case.note(top_k=top_k, temperature=temperature)
    options = {"seed": case.pick.randint(-5, 1 << 70), "candidate_ids": ids}
    drawn = head.sample(hidden, temperature, top_k, **options)
    expect(bool(torch.isin(drawn, pool).all()), "a draw is no candidate")
    if top_k is not None:
        best = head.topk(hidden, top_k, candidate_ids=ids)[1]
        expect(bool((best == drawn[:, None]).any(1).all()), "a draw is none of the best")
    part = head.sample(hidden[: len(hidden) // 2], temperature, top_k, **options)
    expect(torch.equal(part, drawn[: len(part)]), "a draw depends on the rows beside it")
