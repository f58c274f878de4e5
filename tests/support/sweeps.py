"""What a sweep of the CPU backend computes of every pair, beside what it should."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kgfast.kernels import cpu
from kgfast.kernels.cpu.views import address, factor_view, query_view, score_code, view_of
from kgfast.kernels.reference import canonical as reference
from kgfast.kernels.scores import get_score


def sweep_errors(
    isa_name: str,
    queries: Tensor,
    table: Tensor,
    score: str,
    widths: Sequence[int],
    factor: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The sweep's distances, the canonical ones, and the claimed bound: ``[C, B, N]`` each."""
    facts = get_score(score)
    shape = (len(widths), len(queries), len(table))
    values = torch.empty(shape, dtype=torch.float32)
    bounds = torch.empty(shape, dtype=torch.float64)
    targets = torch.zeros(len(queries), dtype=torch.int64)
    cpu.extension.sweep_errors(
        isa_name,
        score_code(facts, factor),
        query_view(queries, facts, factor),
        view_of(table, facts),
        factor_view(factor),
        *shape[1:],
        widths,
        facts.term_ulps,
        address(targets),
        address(values),
        address(bounds),
    )
    planes = facts.query_planes(factor is not None)
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
