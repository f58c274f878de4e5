"""Errors of a head for arguments that do not fit."""

import re

import pytest
import torch
from torch import nn

from kgfast.extras.heads import StreamedHead

HEAD = StreamedHead(5, 3, bias=True)
HIDDEN, TARGETS = torch.ones(2, 3), torch.tensor([1, 4])
METHODS = {
    "loss": lambda hidden=HIDDEN, targets=TARGETS, **options: HEAD.loss(hidden, targets, **options),
    "sampled_loss": lambda hidden=HIDDEN, targets=TARGETS, number=2, seed=0: HEAD.sampled_loss(
        hidden, targets, number, seed=seed
    ),
    "rank": lambda hidden=HIDDEN, targets=TARGETS, **options: HEAD.rank(hidden, targets, **options),
    "greedy": lambda hidden=HIDDEN, **options: HEAD.greedy(hidden, **options),
    "topk": lambda hidden=HIDDEN, k=2, **options: HEAD.topk(hidden, k, **options),
    "sample": lambda hidden=HIDDEN, seed=0, **options: HEAD.sample(hidden, seed=seed, **options),
    "embed": lambda ids: HEAD.embed(ids),
}


def ids(*values):
    return torch.tensor(values, dtype=torch.int64)


MISTAKES = [
    ("loss", {"targets": ids(1, 5)}, "targets[1] must be in 0 .. 4; got 5"),
    ("loss", {"targets": ids(-1, 4)}, "targets[0] must be in 0 .. 4; got -1"),
    ("rank", {"targets": ids(1, 5)}, "targets[1] must be in 0 .. 4; got 5"),
    ("rank", {"candidate_ids": ids(1, 2)}, "targets[1] must be in candidate_ids; got 4"),
    ("loss", {"targets": ids(1)}, "targets must have shape [2], one for each hidden state; got"),
    ("loss", {"targets": TARGETS.float()}, "targets must be int64; got torch.float32"),
    ("loss", {"targets": [1, 4]}, "targets must be a tensor; got list"),
    ("loss", {"label_smoothing": 1.0}, "label_smoothing must be in [0, 1); got 1.0"),
    ("loss", {"reduction": "max"}, "reduction must be mean, sum or none; got 'max'"),
    ("loss", {"candidate_ids": ids(1, 2)}, "targets[1] must be in candidate_ids; got 4"),
    ("sampled_loss", {"targets": ids(1, 9)}, "targets[1] must be in 0 .. 4"),
    ("sampled_loss", {"number": 0}, "num_negatives must be at least 1; got 0"),
    ("sampled_loss", {"seed": None}, "seed must be an int; got None"),
    ("topk", {"k": 6}, "k must be in 1 .. 5; got 6"),
    ("topk", {"k": 0}, "k must be in 1 .. 5; got 0"),
    ("topk", {"k": 3, "candidate_ids": ids(1, 2)}, "k must be in 1 .. 2; got 3"),
    ("topk", {"k": 2.0}, "k must be an int; got 2.0"),
    ("sample", {"top_k": 6}, "top_k must be in 1 .. 5; got 6"),
    ("sample", {"temperature": 0.0}, "temperature must be in 1e-20 .. 1e+20; got 0.0 (greedy()"),
    ("sample", {"temperature": float("nan")}, "temperature must be in 1e-20 .. 1e+20; got nan"),
    ("sample", {"temperature": "hot"}, "temperature must be a number; got str"),
    ("sample", {"seed": True}, "seed must be an int; got True"),
    ("embed", {"ids": ids(1, 5)}, "ids[1] must be in 0 .. 4; got 5"),
    ("embed", {"ids": torch.tensor([[1], [-1]])}, "ids[1, 0] must be in 0 .. 4; got -1"),
    ("embed", {"ids": torch.ones(2)}, "ids must be int64; got torch.float32"),
]
for method in ("loss", "sampled_loss", "rank", "greedy", "topk", "sample"):
    wide = "hidden must have shape [..., 3], the width of the head; got [2, 4]"
    MISTAKES += [
        (method, {"hidden": torch.ones(2, 4)}, wide),
        (method, {"hidden": torch.ones(2, 3).long()}, "hidden must be a floating-point tensor"),
        (method, {"hidden": None}, "hidden must be a tensor; got NoneType"),
    ]
for method in ("loss", "topk"):
    MISTAKES += [
        (method, {"candidate_ids": ids()}, "candidate_ids must name at least one output"),
        (method, {"candidate_ids": ids(1, 5)}, "candidate_ids[1] must be in 0 .. 4; got 5"),
        (method, {"candidate_ids": ids(4, 1, 4)}, "candidate_ids[2] must not repeat an earlier"),
        (method, {"candidate_ids": ids(4, 1)[None]}, "candidate_ids must have shape [*]"),
        (method, {"candidate_ids": torch.ones(2)}, "candidate_ids must be int64"),
    ]


@pytest.mark.parametrize(("method", "given", "message"), MISTAKES)
def test_mistakes_are_named(method, given, message):
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        METHODS[method](**given)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0, 3), {}, "num_outputs must be at least 1; got 0"),
        ((5, 0), {}, "dim must be at least 1; got 0"),
        ((5.0, 3), {}, "num_outputs must be an int; got 5.0"),
        ((5, 3), {"weight": torch.ones(5, 3)}, "weight must be a parameter, as tying is; got"),
        ((5, 3), {"weight": nn.Parameter(torch.ones(3, 5))}, "weight must have shape [5, 3]; got"),
    ],
)
def test_heads_that_cannot_be(arguments, options, message):
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        StreamedHead(*arguments, **options)


@pytest.mark.parametrize("method", ["loss", "rank", "greedy", "sample"])
def test_numbers_that_are_not_finite(method):
    hidden = HIDDEN.clone()
    hidden[1, 2] = float("nan")
    place = r"hidden\[1\]" if method == "rank" else "row 1"
    with pytest.raises(ValueError, match=f"{place} holds a NaN or an infinity"):
        METHODS[method](hidden=hidden)
