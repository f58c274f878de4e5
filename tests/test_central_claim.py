"""Nothing of size [batch, entities] exists: every allocation of every public call is watched.

A dispatch mode sees each tensor that torch makes, forward and backward, on every backend that the
machine has. Scratch memory of kernels is measured by tests beside the kernels' own, and for Triton
by tests/kernels/triton/test_workspace.py.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import kgfast
from kgfast import losses, ops
from kgfast.extras.heads import StreamedHead
from kgfast.extras.influence import tracin

N, R, D, K = 30_000, 3, 2, 8
BATCH = {"cpu": 512, "reference": 18}  # scores of so many queries fill no scratch of a backend


class Allocations(TorchDispatchMode):
    """Within, the largest tensor that torch makes is remembered: ``elements``, by ``operator``."""

    elements, operator = 0, ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if _is_dense(leaf)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if _is_dense(leaf) and _storage(leaf) not in given:
                elements = leaf.untyped_storage().nbytes() // leaf.element_size()
                if elements > self.elements:
                    self.elements, self.operator = elements, str(func)
        return result


def _is_dense(leaf):
    return isinstance(leaf, Tensor) and leaf.layout == torch.strided


def _storage(tensor):
    return int(StorageWeakRef(tensor.untyped_storage()).cdata)


@pytest.fixture
def b(backend):
    """Return the number of queries of a call."""
    return BATCH[backend]


def numbers(*shape, seed=0, grad=False):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).requires_grad_(grad)


def integers(high, *shape, seed=0):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def triples(count):
    return torch.stack([integers(N, count, seed=1), integers(R, count), integers(N, count)], 1)


def a_function():
    place = numbers(N)
    return kgfast.BlockScorer(
        lambda anchors, relations, side, ids: -(place[anchors, None] - place[ids]).abs(), N, R
    )


def a_file():
    model = kgfast.RotatE.init(N, R, D, seed=0)
    with tempfile.TemporaryDirectory() as folder:  # the file stays open
        np.save(Path(folder, "entity.npy"), model.entity.detach().numpy())
        table = kgfast.tables.open(Path(folder, "entity.npy"))
        return kgfast.RotatE(table, model.relation.detach())


IN_MEMORY: dict[str, Callable[[], Any]] = {
    "rotate": lambda: kgfast.RotatE.init(N, R, D, seed=0),
    "transe l2": lambda: kgfast.TransE.init(N, R, D, norm="l2", seed=0),
    "distmult": lambda: kgfast.DistMult.init(N, R, D, seed=0),
    "conve": lambda: kgfast.ConvE.init(N, R, 16, embedding_height=4, seed=0),
    "rscf": lambda: kgfast.RSCF(kgfast.TransE.init(N, R, D, seed=0)),
}
MODELS = {**IN_MEMORY, "a function": a_function, "a file": a_file}


def answers(b):
    known = kgfast.KnownTriples(triples(4 * b))
    return {
        "rank": lambda model: kgfast.rank(model, triples(b), known=known),
        "rank, one batch": lambda model: kgfast.rank(model, triples(b), batch_size=b),
        "topk": lambda model: kgfast.topk(
            model, heads=range(b), relations=[1] * b, k=10, known=known
        ),
        "top_facts": lambda model: kgfast.top_facts(model, k=9, heads=range(b), relations=[1]),
    }


def positives(b):
    return torch.arange(0, 2 * b + 1, 2), integers(N, 2 * b)


OF_ALL_ENTITIES = ("bce", "bce, rows", "cross_entropy")


def model_losses(b):
    given, targets = triples(b), integers(N, b)
    heads, relations, _ = given.T.contiguous()
    queries = heads, relations
    regularizers = losses.regularizers
    return {
        "bce": lambda model: losses.bce(model, given),
        "bce, rows": lambda model: losses.bce(model, queries, positives(b), reduction="none"),
        "cross_entropy": lambda model: losses.cross_entropy(
            model, queries, targets, label_smoothing=0.1
        ),
        "nssa": lambda model: losses.nssa(model, given, integers(N, b, K)),
        "nssa, a pool": lambda model: losses.nssa(model, given, integers(N, K)),
        "margin": lambda model: losses.margin(model, given, integers(N, b, K)),
        "logistic": lambda model: losses.logistic(model, given, integers(N, K)),
        "l2": lambda model: regularizers.l2(model, given),
    }


def operators(b):
    targets, index, labels = integers(N, b), integers(N, b, K), (*positives(b), 0.9, 0.01)
    known = torch.zeros(b + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)
    return {
        "rank_counts": lambda q, t, score: ops.rank_counts(q, t, targets, *known, score),
        "topk": lambda q, t, score: ops.topk(q, t, 10, score=score),
        "indexed_scores": lambda q, t, score: ops.indexed_scores(q, t, index, score),
        "bce": lambda q, t, score: ops.bce(q, t, None, *labels, score),
        "bce_total": lambda q, t, score: ops.bce(q, t, None, *labels, score, divisor=2.0),
        "cross_entropy": lambda q, t, score: ops.cross_entropy(q, t, None, targets, 0.1, score),
        "cross_entropy_total": lambda q, t, score: ops.cross_entropy(
            q, t, None, targets, 0.1, score, divisor=2.0
        ),
    }


def heads(b):
    return {
        "loss": lambda head, hidden: head.loss(hidden, integers(N, b)),
        "sampled_loss": lambda head, hidden: head.sampled_loss(hidden, integers(N, b), 64, seed=1),
        "greedy": lambda head, hidden: head.greedy(hidden),
        "topk": lambda head, hidden: head.topk(hidden, 5),
        "sample": lambda head, hidden: head.sample(hidden, seed=1),
    }


def watched(b, call):
    """Make a call and its backward; nothing in it may be as large as ``[B, N]``."""
    with Allocations() as made:
        result = call()
        if isinstance(result, Tensor) and result.requires_grad:
            result.sum().backward()
    assert 0 < made.elements < b * N, f"{made.operator} made {made.elements:,} elements"


@pytest.mark.parametrize("call", answers(1))
@pytest.mark.parametrize("model", MODELS)
def test_ranks_and_predictions(b, model, call):
    if model == "a function":
        b = BATCH["reference"]  # PyTorch computes the scores whatever the backend is
    of = MODELS[model]()
    watched(b, lambda: answers(b)[call](of))


@pytest.mark.parametrize(
    ("model", "call"),
    [
        (model, call)
        for model in IN_MEMORY
        for call in model_losses(1)
        if model != "rscf" or call not in OF_ALL_ENTITIES  # RSCF has no such losses
    ],
)
def test_losses(b, model, call):
    of = IN_MEMORY[model]()
    watched(b, lambda: model_losses(b)[call](of))


@pytest.mark.parametrize("name", ["n3", "dura"])
def test_penalties(b, name):
    of = MODELS["distmult"]()
    watched(b, lambda: getattr(losses.regularizers, name)(of, triples(b)))


def test_relation_prediction(b):
    of, (heads, relations, tails) = MODELS["rotate"](), triples(b).T
    logits = losses.relation_logits
    watched(b, lambda: cross_entropy(logits(of, heads, tails), relations))


@pytest.mark.parametrize("score", ["dot", "l1", "rotate"])
@pytest.mark.parametrize("call", operators(1))
def test_operators(b, call, score):
    queries, table = numbers(b, 2 * D, grad=True), numbers(N, 2 * D, seed=1, grad=True)
    watched(b, lambda: operators(b)[call](queries, table, score))


@pytest.mark.parametrize("call", heads(1))
def test_heads(b, call):
    head, hidden = StreamedHead(N, 2 * D), numbers(b, 2 * D, grad=True)
    watched(b, lambda: heads(b)[call](head, hidden))


def test_influence(b):
    model, train = kgfast.DistMult.init(N, R, D, seed=0), triples(b)
    watched(b, lambda: tracin(model, train, train[:8], loss="bce", rates=[0.1], k=1))


def test_what_is_dense_is_seen(b):
    """Scores of all pairs are dense by definition, as is a plain product."""
    queries, table = numbers(b, D), numbers(N, D)
    for dense in (lambda: ops.pairwise_scores(queries, table, "dot"), lambda: queries @ table.T):
        with pytest.raises(AssertionError, match="elements"):
            watched(b, dense)
