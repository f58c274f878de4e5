"""Sweeps of the CPU backend: their value of every pair, beside the right one."""

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
    """Return a sweep's distances, canonical ones, and the claimed bound: ``[C, B, N]`` each."""
    operands = operands_of(queries, table, score, factor=factor)
    facts = operands.score
    shape = (len(widths), len(queries), len(table))
    values = torch.empty(shape, dtype=torch.float32)
    bounds = torch.empty(shape, dtype=torch.float64)
    targets = torch.zeros(len(queries), dtype=torch.int64)
    cpu.extension.sweep_errors(
        Machine(isa_name, 1, 0),
        arguments_of(operands, None)[1],
        widths,
        targets,
        values,
        bounds,
    )
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
    return values.double(), torch.stack(exact), bounds
