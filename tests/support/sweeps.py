"""Sweeps of the CPU backend: their interval of every pair, beside the right number."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kgfast.kernels import cpu
from kgfast.kernels.cpu.views import Machine, arguments_of
from kgfast.kernels.reference import canonical as reference

from .flat import operands_of


def sweep_errors(
    isa_name: str,
    queries: Tensor,
    table: Tensor,
    score: str,
    widths: Sequence[int],
    factor: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the middles of a sweep's intervals, canonical distances, and half the lengths.

    Each is ``[C, B, N]``.
    """
    operands = operands_of(queries, table, score, factor=factor)
    facts = operands.score
    shape = (len(widths), len(queries), len(table))
    recorded = torch.empty((2, *shape))
    targets = torch.zeros(len(queries), dtype=torch.int64)
    cpu.extension.rank_counts(
        Machine(isa_name, 1, 0),
        arguments_of(operands, None)[1],
        widths,
        targets,
        *(None, None, None, None),
        nan_worst=True,
        counts=None,
        pairs=None,
        recorded=recorded,
    )
    low, high = recorded.double()
    planes = operands.query_planes
    exact = [
        -reference.canonical_scores(
            reference.crop(queries, facts, dim, planes)[:, None],
            reference.crop(table, facts, dim),
            facts,
            factor=None if factor is None else factor[:, :dim],
        )
        for dim in widths
    ]
    return (low + high) / 2, torch.stack(exact), (high - low) / 2
