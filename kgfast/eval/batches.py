"""What rank() and topk() share: checks of a model and its queries, and how they go in batches."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from kgfast.graph import KnownTriples, Vocabulary, ids_or_names
from kgfast.graph.ids import INT64_MAX
from kgfast.graph.named import Names
from kgfast.kernels.ieee import ieee_arithmetic
from kgfast.kernels.operands import Prepared
from kgfast.kernels.panels import Panels
from kgfast.kernels.scores import SCORES, get_score
from kgfast.models.base import Candidates, check_model
from kgfast.models.reciprocal import holder_of
from kgfast.models.relations import is_in_blocks
from kgfast.ops import run
from kgfast.ops.checks import check_candidates
from kgfast.ops.dispatch import is_copied

AnyModel = TypeVar("AnyModel")

_QUERY_BYTES = 8 << 20  # of one batch of queries


def check_rankable(model: Any) -> None:
    """That a model has what rank() and topk() read of it."""
    if not is_in_blocks(model):
        check_model(model, "dim")


def check_known(known: KnownTriples | None) -> None:
    """That known triples are an index of them."""
    if known is not None and not isinstance(known, KnownTriples):
        raise TypeError(f"known must be KnownTriples or None; got {type(known).__name__}")


def checked_batch_size(batch_size: int | None, model: Any) -> int:
    """The number of queries a batch: as given, or within 8 MiB, or as a function gets them."""
    if batch_size is None and is_in_blocks(model):
        return int(model.batch_size)
    if batch_size is None:
        return max(64, min(4096, _QUERY_BYTES // _query_bytes(model)))
    if isinstance(batch_size, bool) or not hasattr(batch_size, "__index__"):
        raise TypeError(f"batch_size must be an int; got {batch_size!r}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; got {batch_size}")
    return min(int(batch_size), INT64_MAX)


def prepared_candidates(
    model: Any,
    candidates: Candidates,
    ids: Tensor | None,
    dims: Sequence[int] | None = None,
    *,
    allows_nan: bool = False,
    panels: Panels | None = None,
) -> Prepared:
    """The candidates of one side, checked once for all its batches; ids from any device."""
    table = candidates.table
    ids = None if ids is None else ids.to(table.device)
    score = get_score(model.score)
    prepared = Prepared(table, score, candidates.bias, candidates.factor, ids, panels)
    check_candidates(prepared, dims)
    checks = run.checks_for(table.device, allows_nan=allows_nan)
    prepared = run.prepare(prepared, checks)
    checks.read()  # waits for the device once
    return prepared


def _query_bytes(model: Any) -> int:
    """Bytes of a query, counted as at least two float32 planes."""
    facts = SCORES.get(model.score)
    planes = 2 if facts is None else max(2, facts.query_planes(has_factor=True))
    is_double = getattr(getattr(model, "entity", None), "dtype", None) == torch.float64
    return (8 if is_double else 4) * planes * max(1, int(model.dim))


def as_candidate_ids(candidate_ids: Any, names: Vocabulary | None) -> Tensor | None:
    """Candidate ids of any integer dtype or container, or names, as int64."""
    if candidate_ids is None:
        return None
    return ids_or_names("candidate_ids", candidate_ids, names)


def check_names(names: Names, model: Any) -> None:
    """That a vocabulary has a name for every row of the model, and no more."""
    for what, own in zip(("entities", "relations"), names, strict=True):
        size = getattr(model, f"num_{what}")
        if own is not None and len(own) != size:
            raise ValueError(
                f"vocabulary: {len(own):,} names of {what}, but the model has {size:,}: they are "
                f"not those of its rows"
            )


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Eval mode for every module of the model, and IEEE arithmetic; both restored afterwards.

    A model that is no module may hold some, or have ``eval`` and ``train`` as they do.

    Raises
    ------
    TypeError
        If it says that it is training and has no such methods.
    """
    model = holder_of(model)
    modules = modules_of(model)
    training = [module.training for module in modules]
    own = bool(getattr(model, "training", False)) and not isinstance(model, nn.Module)
    if own and not (
        callable(getattr(model, "eval", None)) and callable(getattr(model, "train", None))
    ):
        raise TypeError(
            f"model.training is True, and {type(model).__name__} has no eval() and train() to "
            f"change it: its queries may be random"
        )
    for module in modules:
        module.training = False
    if own:
        model.eval()
    try:
        with ieee_arithmetic(2 * int(model.num_entities) * int(model.dim)):
            yield
    finally:
        if own:
            model.train()
        for module, mode in zip(modules, training, strict=True):
            module.training = mode


def modules_of(model: Any) -> list[nn.Module]:
    """All modules of a model: its own, or those that an object holds, in lists and dicts too."""
    model = holder_of(model)
    if isinstance(model, nn.Module):
        return list(model.modules())
    modules: dict[int, nn.Module] = {}
    for value in getattr(model, "__dict__", {}).values():
        held = value.values() if isinstance(value, dict) else value
        for part in held if isinstance(value, (list, tuple, dict)) else (value,):
            if isinstance(part, nn.Module) or hasattr(part, "in_blocks"):
                modules |= {id(module): module for module in modules_of(part)}
    return list(modules.values())


def host_model(model: AnyModel) -> AnyModel:
    """Return a model, or its copy on the CPU where its device, as MPS and XPU, has no kernels.

    A notice tells of the first copy. The copy is made with the tensors on the CPU already, so that
    its device needs no room for it.
    """
    moved: dict[int, Any] = {}
    for tensor in _tensors_of(model):
        if is_copied(tensor.device):
            host = tensor.detach().cpu()
            is_parameter = isinstance(tensor, nn.Parameter)
            moved[id(tensor)] = (
                nn.Parameter(host, requires_grad=tensor.requires_grad) if is_parameter else host
            )
    return copy.deepcopy(model, moved) if moved else model


def _tensors_of(model: Any) -> Iterator[Tensor]:
    """Yield the tensors of a module, or those that another object and its modules hold."""
    model = holder_of(model)
    if isinstance(model, nn.Module):
        yield from model.parameters()
        yield from model.buffers()
    for value in getattr(model, "__dict__", {}).values():
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, nn.Module) and not isinstance(model, nn.Module):
            yield from _tensors_of(value)
