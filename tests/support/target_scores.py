"""Ranks by blocks: the counts of each, against target scores that are given."""

from itertools import pairwise
from typing import Any

import torch

from kgfast.kernels.checks import Checks
from kgfast.kernels.reference.rank import target_scores
from support.engines import Engine
from support.flat import operands_of, reference


def assert_blocks_sum_to_the_whole(
    engine: Engine, args: tuple[Any, ...], kwargs: dict[str, Any], cuts: int
) -> None:
    """Cut the table ``cuts`` times; ``args`` are those of ``rank_counts``."""
    queries, table, targets, indptr, indices, score = args
    options = {name: value for name, value in kwargs.items() if name != "nan_worst"}
    nan_worst = kwargs.get("nan_worst", False)
    checks = Checks(deferred=False, allows_nan=nan_worst)
    scores = target_scores(operands_of(queries, table, score, **options), targets, checks)
    expected = torch.stack(reference.rank_counts(*args, **kwargs))
    count, rows = len(table), torch.repeat_interleave(indptr.diff())
    ends = [0, *sorted(round(count * i / (cuts + 1)) for i in range(1, cuts + 1)), count]
    total = torch.zeros_like(expected)
    for first, last in pairwise(ends):
        own = options.copy()
        for name in ("bias", "factor"):
            if own.get(name) is not None and len(own[name]) == count:
                own[name] = own[name][first:last]
        if own.get("candidate_ids") is not None:
            ids = own["candidate_ids"]
            own["candidate_ids"] = ids[(ids >= first) & (ids < last)] - first
        is_here = (indices >= first) & (indices < last)
        known = torch.zeros_like(indptr)
        known[1:] = torch.zeros_like(targets).index_add(0, rows, is_here.long()).cumsum(0)
        if first == last:
            continue
        here = torch.where((targets >= first) & (targets < last), targets - first, -1)
        tensors = (queries, table[first:last], here, known, indices[is_here] - first)
        counted = engine.rank_counts(
            *tensors, score, nan_worst=nan_worst, target_scores=scores, **own
        )
        total += torch.stack(counted)
    assert torch.equal(total, expected)
