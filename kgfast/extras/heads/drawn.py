"""The outputs that a sampled loss compares: the targets of a batch, and a draw of the others."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kgfast.rng import mix


class DrawnOutputs(NamedTuple):
    """Outputs, and what each stands for.

    Attributes
    ----------
    ids : Tensor
        int64 ``[M]``, ascending.
    shift : Tensor
        float32 ``[M]``: added to scores. 0 for targets; for others the logarithm of how many
        outputs one of them stands for.
    """

    ids: Tensor
    shift: Tensor


def drawn_outputs(targets: Tensor, num_outputs: int, num_negatives: int, seed: int) -> DrawnOutputs:
    """The distinct targets, and ``num_negatives`` uniform draws of which those are left out.

    With ``T`` distinct targets and ``K`` distinct draws that are none, a draw stands for
    ``(V - T) / K`` outputs, so that the sum of ``exp(score + shift)`` is an unbiased estimate of
    the sum over all ``V``, given that a draw is left. Where ``num_negatives`` is at least
    ``V - T``, all outputs are compared.

    Parameters
    ----------
    targets : Tensor
        int64 ``[B]``.
    num_outputs, num_negatives, seed : int

    Returns
    -------
    DrawnOutputs
    """
    hit = targets.unique()
    others = num_outputs - len(hit)
    if num_negatives >= others:
        ids = torch.arange(num_outputs, dtype=torch.int64, device=targets.device)
        return DrawnOutputs(
            ids, torch.zeros(num_outputs, dtype=torch.float32, device=targets.device)
        )
    generator = torch.Generator(targets.device).manual_seed(mix(seed))
    draws = torch.randint(
        num_outputs,
        (num_negatives,),
        generator=generator,
        dtype=torch.int64,
        device=targets.device,
    )
    ids = torch.cat([hit, draws]).unique()
    left = len(ids) - len(hit)
    each = math.log(others / left) if left else 0.0
    shift = torch.full(ids.shape, each, dtype=torch.float32, device=ids.device)
    shift[torch.searchsorted(ids, hit)] = 0.0
    return DrawnOutputs(ids, shift)
