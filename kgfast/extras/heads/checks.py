"""Checks of the arguments of a head."""

import torch
from torch import Tensor

from kgfast.ops import check_device, check_ids, check_index, check_tensor, check_unique

_COLDEST = 1e-20  # smallest temperature: a score divided by it is finite in float32


def check_hidden(hidden: Tensor, weight: Tensor) -> None:
    """Check that hidden states are floating point ``[..., D]``, on the weight's device."""
    check_tensor("hidden", hidden)
    if not hidden.is_floating_point():
        raise TypeError(f"hidden must be a floating-point tensor; got {hidden.dtype}")
    if hidden.ndim < 1 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"hidden must have shape [..., {weight.shape[1]}], the width of the head; got "
            f"{list(hidden.shape)}"
        )
    check_device("hidden", hidden, weight, "the weight of the head")


def check_ids_of(name: str, ids: Tensor, weight: Tensor, ignore_index: int | None = None) -> None:
    """Check that ids of any shape are outputs, int64, or ``ignore_index``."""
    check_tensor(name, ids)
    if ids.dtype != torch.int64:
        raise TypeError(f"{name} must be int64; got {ids.dtype}")
    check_device(name, ids, weight, "the weight of the head")
    wrong = (ids < 0) | (ids >= len(weight))
    if ignore_index is not None:
        wrong &= ids != ignore_index
    spared = "" if ignore_index is None else f" or ignore_index ({ignore_index})"
    _refuse(name, ids, wrong, f"0 .. {len(weight) - 1}{spared}")


def check_targets(
    targets: Tensor, hidden: Tensor, weight: Tensor, ignore_index: int | None = None
) -> None:
    """Check that targets are one per hidden state, outputs or ``ignore_index``."""
    check_ids_of("targets", targets, weight, ignore_index)
    if targets.shape != hidden.shape[:-1]:
        raise ValueError(
            f"targets must have shape {list(hidden.shape[:-1])}, one for each hidden state; got "
            f"{list(targets.shape)}"
        )


def check_candidates(candidate_ids: Tensor, weight: Tensor) -> None:
    """Check that candidates are distinct outputs, at least one."""
    check_index("candidate_ids", candidate_ids, (None,), weight, "the rows of the head")
    if not len(candidate_ids):
        raise ValueError("candidate_ids must name at least one output; the list is empty")
    check_ids("candidate_ids", candidate_ids, len(weight))
    check_unique("candidate_ids", candidate_ids)


def places_of(targets: Tensor, ids: Tensor, is_counted: Tensor) -> Tensor:
    """Return the places of targets among ascending ids; any place for uncounted ones."""
    places = torch.searchsorted(ids, targets.contiguous()).clamp_(max=len(ids) - 1)
    _refuse("targets", targets, (ids[places] != targets) & is_counted, "candidate_ids")
    return places


def check_positive_int(name: str, value: int, most: int | None = None) -> None:
    """Check that a value is an int of at least 1 (and at most ``most``)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int; got {type(value).__name__}")
    if value < 1 or (most is not None and value > most):
        allowed = "at least 1" if most is None else f"in 1 .. {most}"
        raise ValueError(f"{name} must be {allowed}; got {value}")


def check_temperature(temperature: float) -> None:
    """Check that scores can be divided by a temperature."""
    if isinstance(temperature, bool) or not isinstance(temperature, (int, float)):
        raise TypeError(f"temperature must be a number; got {type(temperature).__name__}")
    if not _COLDEST <= temperature <= 1 / _COLDEST:
        raise ValueError(
            f"temperature must be in {_COLDEST} .. {1 / _COLDEST}; got {temperature} (greedy() "
            f"takes the best)"
        )


def check_seed(seed: int) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be an int; got {type(seed).__name__}")


def _refuse(name: str, values: Tensor, wrong: Tensor, allowed: str) -> None:
    """Raise a ValueError that names the first wrong value, if there is one."""
    if bool(wrong.any()):
        place = wrong.nonzero()[0].tolist()
        at = f"[{', '.join(map(str, place))}]" if place else ""
        raise ValueError(f"{name}{at} must be in {allowed}; got {int(values[tuple(place)])}")
