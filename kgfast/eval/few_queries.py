"""Calls of topk() with an index and few queries, which a service makes one after the other.

Cost model: the index holds what a table and its panels are for the kernel. A call asks whether the
table is the tensor that was packed, unwritten since, checks its ids as Python's integers, and calls
one kernel that makes the queries and finds the answers: some 50 us with nothing to sweep. Queries
that are not made of two rows each are the model's. Everything else that topk() can be asked takes
the longer way, which also names what is wrong with an argument.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from kgfast.eval.index import Index, packing_here
from kgfast.eval.predictions import Predictions
from kgfast.kernels.checks import Checks, NonFiniteError
from kgfast.kernels.ieee import ieee_arithmetic
from kgfast.kernels.operands import Operands
from kgfast.models.base import Model, Side
from kgfast.models.reciprocal import Reciprocal
from kgfast.ops import run

_MOST = 16  # queries


def few_answers(
    index: Any, model: Any, heads: Any, tails: Any, relations: Any, k: Any
) -> Predictions | None:
    """Return the best answers to few queries of ids; None where another way has to find them."""
    outer = model if type(model) is Reciprocal else None
    if outer is not None:
        model = outer._modules.get("model")
        if not _OVERRIDES.isdisjoint(outer.__dict__):
            return None
    kind: Any = type(model)
    if not (isinstance(index, Index) and _is_plain(kind) and not model._modules):
        return None
    entity, relation = model._parameters.get("entity"), model._parameters.get("relation")
    given, side = (heads, "tail") if tails is None else (tails, "head")
    if (heads is None) == (tails is None) or not _OVERRIDES.isdisjoint(model.__dict__):
        return None
    if not (_is_held(entity) and _is_held(relation)):
        return None
    num_relations = relation.shape[0] if outer is None else relation.shape[0] // 2
    first, second = _ids(given, entity.shape[0]), _ids(relations, num_relations)
    candidates = index.prepared(entity, model.score)
    is_count = type(k) is int and 1 <= k <= entity.shape[0]
    if first is None or second is None or candidates is None or not is_count:
        return None
    count = max(len(first), len(second))
    if len(first) not in (1, count) or len(second) not in (1, count):
        return None
    first = first if len(first) == count else first * count
    second = second if len(second) == count else second * count
    anchors, others = _as_tensor(first), _as_tensor(second)
    asked, told = side, others
    if outer is not None:  # heads are tails of the inverse relation
        told, side = outer.relation_ids(others, _SIDES[asked]), "tail"
        second = told.tolist()
    packing, how = packing_here(), model._composition(side)
    is_composed = how is not None and how.fits(entity.shape[1], relation)
    try:
        if packing is not None and is_composed:
            scores, ids = packing.topk_of_ids(candidates, relation, how, (first, second), k)
        else:
            with torch.no_grad(), ieee_arithmetic(2 * entity.numel()):
                queries = Operands(model.queries(anchors, told, side), candidates)
                scores, ids = run.topk(queries, k, None, Checks(deferred=False))
    except NonFiniteError:
        return None
    return Predictions(scores, ids, anchors, others, _SIDES[asked])


_SIDES: dict[str, Side] = {"head": "head", "tail": "tail"}
_OVERRIDES = frozenset(
    ("queries", "_queries", "_composition", "candidates", "relation_ids")
)  # attributes


@lru_cache
def _is_plain(kind: type) -> bool:
    return (
        issubclass(kind, Model)
        and kind.__module__.startswith("kgfast.models.")
        and kind.queries is Model.queries
        and kind.candidates is Model.candidates
        and kind.num_entities is Model.num_entities
        and kind.num_relations is Model.num_relations
        and not hasattr(kind, "query_chunk")
        and not hasattr(kind, "parallel_queries")
    )


def _is_held(table: Any) -> bool:
    """Return whether a table is a parameter of float32 on the CPU."""
    is_plain = type(table) is nn.Parameter and table.dtype == torch.float32
    return is_plain and table.device.type == "cpu"


def _ids(given: Any, count: int) -> list[int] | None:
    """Return few ids below ``count``; None where they are something else."""
    if type(given) is Tensor:
        is_few = given.dtype == torch.int64 and given.ndim < 2 and 0 < given.numel() <= _MOST
        if not (is_few and given.device.type == "cpu"):
            return None
        given = given.tolist()
    ids = given if type(given) is list else [given]
    if not 0 < len(ids) <= _MOST or any(type(it) is not int for it in ids):
        return None
    return ids if min(ids) >= 0 and max(ids) < count else None


def _as_tensor(ids: list[int]) -> Tensor:
    return torch.tensor(ids, dtype=torch.int64, device="cpu")
