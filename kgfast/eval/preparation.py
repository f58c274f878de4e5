"""Checks of a model before every call, and the model's state while it is evaluated."""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from kgfast.graph import KnownTriples, check_same_names
from kgfast.graph.ids import INT64_MAX
from kgfast.graph.named import Names
from kgfast.kernels.ieee import ieee_arithmetic
from kgfast.kernels.operands import Panels, Prepared
from kgfast.kernels.scores import SCORES, get_score
from kgfast.models import BlockScorer, RankableModel
from kgfast.models.base import Candidates, check_model
from kgfast.models.reciprocal import holder_of
from kgfast.models.relations import is_in_blocks
from kgfast.ops import run
from kgfast.ops.checks import check_candidates

_QUERY_BYTES = 8 << 20  # bytes of one batch of queries
_LEAST = 64  # queries of a batch, however wide
_LOCK = threading.RLock()  # a handler of a signal may call, too
_EVALUATED: dict[int, int] = {}  # calls, of threads, that keep a training module in eval mode


def _renew_lock() -> None:
    global _LOCK
    _LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):  # another thread of the parent may have held it
    os.register_at_fork(after_in_child=_renew_lock)


def check_rankable(model: object) -> None:
    """Check that a model has the attributes that rank() and topk() read."""
    if not is_in_blocks(model):
        check_model(model, "dim")


def check_known(known: KnownTriples | None, model: Any, names: Names) -> None:
    if known is not None and not isinstance(known, KnownTriples):
        raise TypeError(
            f"known must be KnownTriples or None; got {type(known).__name__}: a dataset has "
            "known(), triples make KnownTriples(triples)"
        )
    if known is not None:
        check_same_names(names, known.names, "the known triples")
        _check_times("known", known.num_times, model)
        pairs = model.num_relations * (known.num_times or 1)
        counts = ("entities", model.num_entities), ("relations", pairs)
        for (what, count), size in zip(counts, known.sizes, strict=True):
            if size > count:
                raise ValueError(
                    f"known must hold ids of {what} in 0 .. {count - 1}; got {size - 1}"
                )


def _check_times(name: str, num_times: int | None, model: Any) -> None:
    times = getattr(model, "num_times", None)
    if num_times != times:
        raise ValueError(
            f"{name} has {num_times or 'no'} times, the model {times or 'none'}: quads "
            "(h, r, t, time) need a model with as many times"
        )


def checked_batch_size(batch_size: int | None, model: Any, count: int = INT64_MAX) -> int:
    """Return the queries per batch of ``count``: as given, 8 MiB, or a function's own number."""
    if batch_size is None and is_in_blocks(model):
        return int(model.batch_size)
    if batch_size is None:
        if count <= _LEAST:
            return _LEAST
        facts = SCORES.get(model.score)
        planes = 2 if facts is None else max(2, facts.query_planes(has_factor=True))
        is_double = getattr(getattr(model, "entity", None), "dtype", None) == torch.float64
        query_bytes = (8 if is_double else 4) * planes * max(1, int(model.dim))
        return max(_LEAST, min(4096, _QUERY_BYTES // query_bytes))
    if isinstance(batch_size, bool) or not hasattr(batch_size, "__index__"):
        raise TypeError(f"batch_size must be an int; got {batch_size!r}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; got {batch_size}")
    return min(int(batch_size), INT64_MAX)


def check_names(names: Names, model: Any) -> None:
    """Check that a vocabulary has one name per row of the model."""
    if names[1] is not None:
        _check_times("vocabulary", names[1].num_times, model)
    for what, vocabulary in zip(("entities", "relations"), names, strict=True):
        if vocabulary is not None and len(vocabulary) != (size := getattr(model, f"num_{what}")):
            raise ValueError(
                f"vocabulary: {len(vocabulary):,} names of {what}, but the model has {size:,}: the "
                "names must be those of the model's rows"
            )


def prepared_candidates(
    model: Any,
    candidates: Candidates,
    ids: Tensor | None,
    dims: Sequence[int] | None = None,
    *,
    allows_nan: bool = False,
    panels: Panels | None = None,
) -> Prepared:
    """Check the candidates of one side, once for all batches."""
    table = candidates.table
    ids = None if ids is None else ids.to(table.device)
    score = get_score(model.score)
    prepared = Prepared(table, score, candidates.bias, candidates.factor, ids, panels)
    check_candidates(prepared, dims)
    if prepared.bias is None and ids is None:
        return prepared
    checks = run.checks_for(table.device, allows_nan=allows_nan)
    prepared = run.prepare(prepared, checks)
    checks.read()  # waits for the device once
    return prepared


@contextmanager
def evaluating(model: RankableModel | BlockScorer) -> Iterator[None]:
    """Set modules to eval mode and arithmetic to IEEE 754 without gradients; restore all after.

    A model that is no module may hold modules, or have ``training``, ``eval()`` and ``train()``.

    Raises
    ------
    TypeError
        If ``model.training`` is True and there is no method to change that.
    """
    holder = holder_of(model)
    is_trained = not isinstance(holder, nn.Module) and getattr(holder, "training", False)
    if is_trained and not (hasattr(holder, "eval") and hasattr(holder, "train")):
        raise TypeError(
            f"model.training is True, and {type(holder).__name__} has no eval() and train() to "
            "change that: queries may be random"
        )
    modules = holder.modules() if isinstance(holder, nn.Module) else modules_of(holder)
    with _LOCK:
        training = [it for it in modules if it.training or id(it) in _EVALUATED]
        for module in training:
            _EVALUATED[id(module)] = _EVALUATED.get(id(module), 0) + 1
            _set_training(module, False)
    try:
        if is_trained:
            holder.eval()
        with torch.no_grad(), ieee_arithmetic():
            yield
    finally:
        if is_trained:
            holder.train()
        with _LOCK:
            for module in training:
                _EVALUATED[id(module)] -= 1
                if not _EVALUATED[id(module)]:
                    del _EVALUATED[id(module)]
                    _set_training(module, True)


def _set_training(module: nn.Module, value: bool) -> None:
    if "training" in module.__dict__:  # as Module.__setattr__ ends, in a tenth of the time
        module.__dict__["training"] = value
    else:
        module.training = value


def modules_of(model: Any) -> list[nn.Module]:
    """Return all modules of a model, also modules that an object holds in lists and dicts."""
    model = holder_of(model)
    if isinstance(model, nn.Module):
        return list(model.modules())
    modules: dict[int, nn.Module] = {}
    for value in getattr(model, "__dict__", {}).values():
        held = value.values() if isinstance(value, dict) else value
        for member in held if isinstance(value, (list, tuple, dict)) else (value,):
            if isinstance(member, nn.Module) or hasattr(member, "in_blocks"):
                modules |= {id(module): module for module in modules_of(member)}
    return list(modules.values())


def tensors_of(model: Any) -> Iterator[Tensor]:
    """Yield every tensor of a model, also of models within."""
    model = holder_of(model)
    is_module = isinstance(model, nn.Module)
    if is_module:
        yield from model.parameters()
        yield from model.buffers()
    for value in getattr(model, "__dict__", {}).values():
        if isinstance(value, Tensor):
            yield value
        elif not is_module and (isinstance(value, nn.Module) or hasattr(value, "with_entity")):
            yield from tensors_of(value)
