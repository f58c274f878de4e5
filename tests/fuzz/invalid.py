"""Invalid arguments: one argument of a valid call is spoilt; the call must say so in one line."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import kgfast
from fuzz.case import Case, anywhere, refused
from kgfast import ops

ROWS, BATCH, WIDTH = 7, 3, 8
Arguments = dict[str, Any]
_NOT_TENSORS = (None, 3, "x", [1.0], object())


def operators(case: Case) -> None:
    name, call = case.choice(sorted(_OPERATORS.items()))
    _spoil(case, name, call, _operands(case, name))


def calls(case: Case) -> None:
    name, call = case.choice(sorted(_CALLS.items()))
    _spoil(case, name, call, _arguments(case, name))


def _spoil(case: Case, name: str, call: Callable[..., Any], arguments: Arguments) -> None:
    spoilt = case.choice(sorted(it for it in arguments if it in _BAD))
    value = case.choice(_BAD[spoilt])(arguments[spoilt])
    case.note(call=name, argument=spoilt, value=repr(value)[:200])
    if isinstance(value, Tensor):
        case.note(dtype=value.dtype, shape=list(value.shape), device=value.device)
    with anywhere(case, reference=0.2):
        refused(lambda: call(**arguments | {spoilt: value}), errors=(ValueError, TypeError))


def _operands(case: Case, name: str) -> Arguments:
    """Make a valid call of an operator, with every argument that can be spoilt."""
    filtered = name in ("rank_counts", "topk", "pairwise_scores", "indexed_scores")
    score = case.choice(("dot", "rotate", "rscf_l1") if filtered else ("dot", "l1", "rotate"))
    width = 3 * WIDTH if score == "rscf_l1" else WIDTH
    given: Arguments = {
        "queries": torch.randn(BATCH, width),
        "candidates": torch.randn(ROWS, WIDTH),
        "score": score,
        "bias": torch.randn(ROWS),
    }
    if filtered:
        given |= {"dims": [1, 4]}
        given |= {"factor": torch.randn(ROWS, WIDTH)} if score == "rscf_l1" else {}
    csr = torch.tensor([0, 1, 3, 4]), torch.tensor([0, 2, 2, 6])
    targets = torch.tensor([0, 6, 3])
    ids = torch.tensor([5, 0, 3, 2])
    if name == "rank_counts":
        given |= {"targets": targets, "exclude_indptr": csr[0], "exclude_indices": csr[1]}
        given |= {"candidate_ids": ids}
    elif name == "topk":
        given |= {"k": 1, "exclude_indptr": csr[0], "exclude_indices": csr[1], "candidate_ids": ids}
    elif name == "indexed_scores":
        given["table"] = given.pop("candidates")
        given |= {"index": torch.arange(BATCH * ROWS).view(BATCH, ROWS) % ROWS}
    elif name in ("bce", "bce_total"):
        given |= {"positive_indptr": csr[0], "positive_indices": csr[1]}
        given |= {"label_a": 1.0, "label_c": 0.0}
    elif name in ("cross_entropy", "cross_entropy_total"):
        given |= {"targets": targets, "label_smoothing": 0.1}
    if name.endswith("_total"):
        given |= {"divisor": 2.0}
    return given


_OPERATORS: dict[str, Callable[..., Any]] = {
    "rank_counts": ops.rank_counts,
    "topk": ops.topk,
    "pairwise_scores": ops.pairwise_scores,
    "indexed_scores": ops.indexed_scores,
    "bce": ops.bce,
    "bce_total": ops.bce,
    "cross_entropy": ops.cross_entropy,
    "cross_entropy_total": ops.cross_entropy,
}


def _arguments(case: Case, name: str) -> Arguments:
    kind = case.choice((kgfast.RotatE, kgfast.TransE, kgfast.DistMult))
    model = kind(torch.randn(ROWS, WIDTH), torch.randn(2, WIDTH // (1 + (kind is kgfast.RotatE))))
    hrt = torch.tensor([[0, 0, 1], [6, 1, 2], [3, 0, 3]])
    given: Arguments = {"model": model}
    if name == "rank":
        given |= {"triples": hrt, "sides": ("head", "tail"), "candidate_subset": [1, 2, 5]}
        given |= {"crops": [2, 4], "batch_size": 2, "nan": "error", "known": None}
    elif name == "topk":
        given |= {"heads": torch.tensor([0, 3]), "relations": torch.tensor([0, 1]), "k": 2}
        given |= {"candidate_subset": [1, 2, 5], "batch_size": 2, "known": None}
    elif name == "bce" or name == "cross_entropy":
        given |= {"anchors": hrt[:, 0], "relation_ids": hrt[:, 1], "targets": hrt[:, 2]}
        given |= {"side": "tail", "label_smoothing": 0.1, "reduction": "mean"}
    elif name == "KnownTriples":
        given = {"triples": hrt}
    else:
        given |= {"triples": hrt, "negatives": torch.randint(ROWS, (3, 4)), "side": "head"}
        given |= {"mask": torch.ones(3, 4, dtype=torch.bool), "reduction": "mean"}
        given |= {"alpha": 1.0, "weights": torch.ones(3)} if name == "nssa" else {}
    return given


def _rank(candidate_subset: Any, crops: Any, **given: Any) -> Any:
    return kgfast.rank(given.pop("model"), given.pop("triples"), **given, dims=crops,
                       candidate_ids=candidate_subset)  # fmt: skip


def _topk(candidate_subset: Any, **given: Any) -> Any:
    return kgfast.topk(given.pop("model"), **given, candidate_ids=candidate_subset)


def _whole(name: str) -> Callable[..., Any]:
    def call(model: Any, anchors: Any, relation_ids: Any, targets: Any, **given: Any) -> Any:
        return getattr(kgfast.losses, name)(model, (anchors, relation_ids), targets, **given)

    return call


_CALLS: dict[str, Callable[..., Any]] = {
    "rank": _rank,
    "topk": _topk,
    "KnownTriples": lambda triples: kgfast.KnownTriples(triples),
    **{name: _whole(name) for name in ("bce", "cross_entropy")},
    **{name: getattr(kgfast.losses, name) for name in ("nssa", "margin", "logistic")},
}


class _Liar:
    """A model whose table has more, or fewer, rows than it says, or queries of another width."""

    score, num_relations, dim = "dot", 2, WIDTH

    def __init__(self, says: int, holds: int, width: int = WIDTH, score: str = "dot") -> None:
        self.num_entities, self._table = says, torch.randn(holds, WIDTH)
        self._width, self.score = width, score

    def queries(self, anchors: Tensor, relations: Tensor, side: str, dims: Any = None) -> Tensor:
        return torch.randn(len(anchors), self._width)

    def candidates(self, side: str) -> kgfast.Candidates:
        return kgfast.Candidates(self._table)


Spoiler = Callable[[Any], Any]


def _always(*values: Any) -> list[Spoiler]:
    return [lambda _, value=value: value for value in values]


def _with(place: tuple[int, ...], value: float) -> Spoiler:
    """Return a spoiler that replaces one number of a copy."""

    def spoil(tensor: Any) -> Any:
        copy = torch.as_tensor(tensor).clone()
        copy[place] = value
        return copy

    return spoil


_ROWS: list[Spoiler] = [
    *_always(*_NOT_TENSORS),
    lambda it: it.long(),
    lambda it: it.bool(),
    lambda it: it.to(torch.complex64),
    lambda it: it[0],
    lambda it: it[None],
    lambda it: it[:, :-1],
    lambda it: it.numpy(),
    lambda it: it.to("meta"),
    lambda it: it.to_sparse(),
    lambda it: it[:, :0],
    _with((0, 0), float("nan")),
    _with((2, 1), float("inf")),
]
_QUERIES: list[Spoiler] = [*_ROWS, lambda it: torch.cat([it, it[:1]])[:, 1:]]
_IDS: list[Spoiler] = [
    *_always(*_NOT_TENSORS),
    lambda it: it.int(),
    lambda it: it.double(),
    lambda it: it.bool(),
    lambda it: it[None],
    lambda it: it[0],
    lambda it: it.to("meta"),
    _with((0,), -1),
    _with((0,), ROWS),
    _with((0,), 2**62),
    _with((0,), -(2**63)),
]
_LIST: list[Spoiler] = [lambda it: it[:-1], lambda it: torch.cat([it, it[:1]])]
_INDPTR: list[Spoiler] = [
    *_IDS[:10],
    *_LIST,
    _with((1,), 4),
    _with((-1,), 3),
    _with((-1,), 2**61),
    lambda it: it.flip(0),
]
_OUTSIDE: list[Spoiler] = [
    *_always("x", 3.5, [[1, 2]], [0, 7], [-1], [1, 1], [2**63 - 1], [0.5], [True, False])
]
_TRIPLES: list[Spoiler] = [
    *_always(None, 3, "xyz", object(), [[0, 1]], [(0, 0.5, 1)], [(0, 0, 2**64)], [("a", "b", "c")]),
    lambda it: it.double(),
    lambda it: it.bool(),
    lambda it: it[:, :2],
    lambda it: it[0],
    _with((1, 0), -1),
]
_MODELS = [
    *_always(None, 3, object(), torch.randn(3, 3)),
    *_always(_Liar(8, 7), _Liar(6, 7), _Liar(7, 7, width=9), _Liar(7, 7, score="nothing")),
]
_BAD: dict[str, Sequence[Spoiler]] = {
    "queries": _QUERIES,
    "candidates": _ROWS,
    "table": _ROWS,
    "factor": [it for it in _ROWS[1:9]],
    "score": _always(None, 3, "", "DOT", "cosine", b"dot", "dot\0", "rscf_l2x"),
    "bias": [
        *_always("x", 3, [1.0]),
        lambda it: it.long(),
        lambda it: it[:, None],
        lambda it: it[:-1],
        lambda it: it[:0],
        lambda it: it.to("meta"),
        _with((0,), float("nan")),
        _with((0,), float("inf")),
    ],
    "dims": _always([], [0], [-1], [WIDTH + 1], ["a"], [1.5], [True], 3, [None], [2**70], "2"),
    "crops": _always([], [0], [-1], [WIDTH + 1], ["a"], [1.5], [True], 0, 2**70, 1.5, "2"),
    "targets": [*_IDS, *_LIST],
    "index": [
        *_always(*_NOT_TENSORS),
        lambda it: it.int(),
        lambda it: it.double(),
        lambda it: it[0],
        lambda it: it[:-1],
        lambda it: it.to("meta"),
        _with((0, 1), -1),
        _with((0, 1), ROWS),
        _with((0, 1), 2**62),
    ],
    "exclude_indptr": _INDPTR,
    "exclude_indices": [*_IDS, *_LIST],
    "positive_indptr": [*_INDPTR, _with((1,), 0)],
    "positive_indices": [*_IDS, *_LIST],
    "candidate_ids": [*_IDS[1:], _with((0,), 3)],
    "k": _always(0, -1, 1.5, "3", True, None, 2**40, 2**70, [1]),
    "label_a": _always(float("nan"), float("inf"), "x", None),
    "label_c": _always(float("nan"), float("-inf"), "x", None),
    "label_smoothing": _always(-0.1, 1.0, float("nan"), "x", None),
    "divisor": _always(0, -1.0, float("nan"), float("inf"), "x"),
    "alpha": _always(-1.0, float("nan"), float("inf"), "x", None),
    "model": _MODELS,
    "triples": _TRIPLES,
    "sides": _always((), "tail", ("tail", "tail"), ("left",), (3,), 3),
    "candidate_subset": _OUTSIDE,
    "batch_size": _always(0, -1, True, 1.5, "a"),
    "nan": _always("ignore", None, 3),
    "known": _always(3, [(0, 0, 1)], "x", torch.zeros(1, 3, dtype=torch.int64)),
    "heads": _always([0.5], [-1], [ROWS], [[0, 1]], "x", [True], object(), [2**64], None),
    "relations": _always([0.5], [-1], [2], [[0, 1]], "x", [True], [0, 0, 0], None),
    "anchors": [*_IDS, *_LIST],
    "relation_ids": [*_IDS, *_LIST, _with((0,), 2)],
    "side": _always("left", None, 3, "TAIL"),
    "reduction": _always("max", None, 3),
    "negatives": [
        *_always(*_NOT_TENSORS),
        lambda it: it.int(),
        lambda it: it.double(),
        lambda it: it[:-1],
        lambda it: it[None],
        _with((0, 1), -1),
        _with((0, 1), ROWS),
        _with((0, 1), 2**62),
    ],
    "mask": [
        *_always(3, "x", [True]),
        lambda it: it.float(),
        lambda it: it[:-1],
        lambda it: it[0],
        lambda it: it[:, :-1],
    ],
    "weights": [*_always(3, "x", [1.0]), lambda it: it[:-1], lambda it: it[None]],
}
