"""Valid calls of ``ops.rank_counts``, ``topk`` and ``above`` against the oracle, exactly."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fuzz.case import Case, expect, refused
from fuzz.operands import Operands, csr, draw, subset
from fuzz.surroundings import anywhere
from kgfast import ops
from support import oracles
from support.sampled import threads
from support.states import ROUNDINGS, STATES, state

Call = Callable[[], Any]


def rank(case: Case) -> None:
    """Draw operands, sometimes with a NaN or an infinity."""
    operands = draw(case)
    with anywhere(case):
        check_rank(case, operands)


def topk(case: Case) -> None:
    operands = draw(case)
    with anywhere(case):
        check_topk(case, operands)


def above(case: Case) -> None:
    operands = draw(case)
    with anywhere(case):
        check_above(case, operands)


def lists(case: Case) -> None:
    """Attack both consumers with candidates that each query names."""
    operands = draw(case)
    with anywhere(case):
        check_lists(case, operands)


def in_state(case: Case) -> None:
    """Expect the same integers under every global state of torch and rounding mode."""
    name = case.choice((*STATES, *ROUNDINGS))
    operands = draw(case, large=0.03)
    check = case.choice((check_rank, check_topk))
    case.note(state=name)
    with anywhere(case):
        check(case, operands, name)


def check_rank(case: Case, operands: Operands, under: str | None = None) -> None:
    rows, batch = len(operands.table), len(operands.queries)
    if not rows:
        operands.queries, batch = operands.queries[:0], 0
    indptr, indices, known = csr(case, batch, rows)
    targets, ids = case.ids(rows, batch), subset(case, rows)
    nan_worst, taking_part = _spoil(case, operands, targets, ids)
    case.note(subset=None if ids is None else len(ids), nan_worst=nan_worst)

    def call() -> Any:
        return ops.rank_counts(
            *(operands.queries, operands.table, targets, indptr, indices, operands.score),
            **operands.keywords(),
            candidate_ids=ids,
            nan_worst=nan_worst,
        )

    if taking_part and not nan_worst:
        refused(lambda: _under(under, call), errors=(ValueError,))
        return
    wanted = [
        oracles.counts(values, targets.tolist(), known, None if ids is None else ids.tolist())
        for values in _values(operands)
    ]
    found = _under(under, call)
    for place, name in enumerate(("greater", "equal", "greater excluded", "equal excluded")):
        expect(found[place].dtype == torch.int64, f"{name} is {found[place].dtype}")
        of_crops = [it[place] for it in wanted]
        expected = of_crops[0] if operands.dims is None else of_crops
        got = found[place].tolist()
        expect(got == expected, f"{name}: got {got!r:.400}, the oracle says {expected!r:.400}")


def check_topk(case: Case, operands: Operands, under: str | None = None) -> None:
    rows, batch = len(operands.table), len(operands.queries)
    indptr, indices, known = csr(case, batch, rows)
    ids, k = subset(case, rows), case.pick.randint(1, case.choice((1, 4, 20, rows + 3)))
    if case.chance(0.4):
        indptr = indices = None  # type: ignore[assignment]
        known = [[] for _ in range(batch)]
    nan_worst, taking_part = _spoil(case, operands, None, ids)
    allowed = set(range(rows) if ids is None else ids.tolist())
    enough = all(len(allowed - set(answers)) >= k for answers in known)
    pad = case.chance(0.5)
    case.note(subset=None if ids is None else len(ids), nan_worst=nan_worst, k=k, pad=pad)

    def call() -> Any:
        return ops.topk(
            *(operands.queries, operands.table, k, indptr, indices, operands.score),
            **operands.keywords(),
            candidate_ids=ids,
            nan_worst=nan_worst,
            pad=pad,
        )

    if (taking_part and not nan_worst) or not (enough or pad):
        refused(lambda: _under(under, call), errors=(ValueError,))
        return
    scores, found = _under(under, call)
    expect(found.dtype == torch.int64, f"ids are {found.dtype}")
    expect(scores.dtype == operands.queries.dtype, f"scores are {scores.dtype}")
    crops = range(len(operands.crops))
    for crop, values in zip(crops, _values(operands), strict=True):
        best, of_best = oracles.best(values, k, known, None if ids is None else sorted(allowed))
        got = (found if operands.dims is None else found[crop]).tolist()
        expect(got == best, f"ids: got {got!r:.400}, the oracle says {best!r:.400}")
        with np.errstate(all="ignore"):
            rounded = torch.from_numpy(of_best).to(scores.dtype).numpy()
        own = (scores if operands.dims is None else scores[crop]).detach().numpy()
        same = np.array_equal(own, rounded, equal_nan=True)
        expect(
            same, f"scores: got {own.tolist()!r:.300}, the oracle says {rounded.tolist()!r:.300}"
        )


def check_above(case: Case, operands: Operands) -> None:
    """Ask for all above scores of their own, or right beside them, at the first crop."""
    rows, batch = len(operands.table), len(operands.queries)
    indptr, indices, known = csr(case, batch, rows)
    ids = subset(case, rows)
    _, taking_part = _spoil(case, operands, None, ids)
    options = operands.keywords()
    dims = options.pop("dims", None)
    asked = operands.queries, operands.table
    given = indptr, indices, operands.score
    options |= {"candidate_ids": ids, "dims": None if dims is None else dims[0]}
    if taking_part:
        refused(lambda: ops.above(*asked, -1.0, *given, **options), errors=(ValueError,))
        return
    with np.errstate(all="ignore"):
        rounded = torch.from_numpy(_values(operands)[0]).to(operands.queries.dtype)
    thresholds = torch.zeros(batch, dtype=rounded.dtype)
    if rows:
        thresholds = rounded[torch.arange(batch), case.ids(rows, batch)].nan_to_num(0.0)
        ends = torch.full_like(thresholds, case.choice((torch.inf, -torch.inf)))
        thresholds = thresholds if case.chance(0.7) else thresholds.nextafter(ends)
    among = set(range(rows) if ids is None else ids.tolist())
    wanted = [
        [it for it in reaches.nonzero()[:, 0].tolist() if it in among and it not in set(own)]
        for reaches, own in zip(rounded >= thresholds[:, None], known, strict=True)
    ]
    count = sum(map(len, wanted))
    case.note(subset=None if ids is None else len(ids), results=count)
    pointers, found, scores = ops.above(*asked, thresholds, *given, **options)
    parts = found.tensor_split(pointers[1:-1]) if batch else ()
    got = [it.tolist() for it in parts]
    expect(got == wanted, f"ids: got {got!r:.400}, the oracle says {wanted!r:.400}")
    own = [rounded[row, it] for row, it in enumerate(wanted)]
    of_ids = torch.cat([rounded.new_empty(0), *own])
    expect(torch.equal(scores + 0.0, of_ids + 0.0), f"scores: got {scores.tolist()!r:.300}")
    if count > 1:
        options["max_results"] = count - 1
        said = refused(
            lambda: ops.above(*asked, thresholds, *given, **options), errors=(ValueError,)
        )
        expect(f"results, {count:,}; got" in said, said)


def check_lists(case: Case, operands: Operands) -> None:
    """One call of each, of lists that are padded or one after the other."""
    rows, batch = len(operands.table), len(operands.queries)
    if not rows:
        operands.queries, batch = operands.queries[:0], 0
    indptr, indices, known = csr(case, batch, rows)
    targets, k = case.ids(rows, batch), case.choice((1, 4, rows + 3))
    own = [
        torch.randperm(rows, generator=case.generator)[: case.pick.randint(0, rows)]
        for _ in range(batch)
    ]
    none = torch.empty(0, dtype=torch.int64)
    sizes = torch.tensor([0, *map(len, own)])
    given = {"candidate_ids": torch.cat([none, *own]), "candidate_indptr": sizes.cumsum(0)}
    if case.chance(0.5):
        padded = torch.full((batch, int(sizes.max()) + case.pick.randint(0, 2)), -1)
        for row, ids in zip(padded, own, strict=True):
            row[: len(ids)] = ids
        given = {"candidate_ids": padded}
    case.note(lists=sizes[1:].tolist(), k=k, padded=len(given) == 1)
    arguments = indptr, indices, operands.score
    given |= operands.keywords()
    counts = ops.rank_counts(operands.queries, operands.table, targets, *arguments, **given)
    _, best = ops.topk(operands.queries, operands.table, k, *arguments, **given, pad=True)
    for crop, values in enumerate(_values(operands)):
        for query, ids in enumerate(own):
            asked = values[query : query + 1], [int(targets[query])], [known[query]], ids.tolist()
            expected = [column[0] for column in oracles.counts(*asked)]
            place = (..., query) if operands.dims is None else (crop, query)
            got = [int(column[place]) for column in counts]
            expect(got == expected, f"counts: got {got}, the oracle says {expected}")
            answers, _ = oracles.best(
                values[query : query + 1], k, [known[query]], sorted(asked[3])
            )
            found = (best if operands.dims is None else best[crop])[query].tolist()
            said = f"ids: got {found!r:.300}, the oracle says {answers[0]!r:.300}"
            expect(found == answers[0], said)


def _values(operands: Operands) -> list[oracles.Floats]:
    return [
        oracles.canonical_scores(
            *(operands.queries, operands.table, operands.score),
            operands.bias,
            None if operands.factor is None else operands.factor,
            dim,
        )
        for dim in operands.crops
    ]


def _under(name: str | None, call: Call) -> Any:
    # All of torch runs in the mode of the caller where it has one thread.
    count = 1 if name in ROUNDINGS else torch.get_num_threads()
    with threads(count), state(*([name] if name else [])):
        return call()


def _spoil(
    case: Case, operands: Operands, targets: Tensor | None, ids: Tensor | None
) -> tuple[bool, bool]:
    """Put a NaN or an infinity somewhere; say whether to accept it, and whether it takes part.

    Among the features of the widest crop, in a row that is a candidate, or a target, or a query.
    """
    if case.chance(0.8) or not len(operands.queries):
        return case.chance(0.1), False
    value = case.choice((float("nan"), float("inf"), float("-inf")))
    names = ["queries", "table", "table"]
    names += ["bias"] if operands.bias is not None and len(operands.bias) else []
    names += ["factor"] if operands.factor is not None else []
    name = case.choice(names)
    rows = {"queries": operands.queries, "table": operands.table, "bias": operands.bias,
            "factor": operands.factor}[name]  # fmt: skip
    if rows is None or not len(rows):
        return False, False
    asked = set(range(len(operands.table)) if ids is None else ids.tolist())
    if targets is not None:
        asked |= set(targets.tolist())
    if name == "queries" or name == "bias":
        row, takes_part = case.pick.randrange(len(rows)), True
    else:
        if not asked:
            return False, False
        row, takes_part = case.choice(sorted(asked)), True
    if name == "bias":
        rows[row] = value
    else:
        rows[row, 0] = value  # every crop has the first feature
    case.note(spoilt=(name, row, value))
    return case.chance(0.5), takes_part
