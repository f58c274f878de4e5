"""Candidates that each query names, and what they must give: the specification, query by query."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kgfast.kernels.operands import Lists
from support.flat import reference


def random_lists(
    num_queries: int, num_rows: int, seed: int, targets: Tensor | None = None
) -> Lists:
    """Draw lists of any length, none and all rows included; half of those of targets hold them."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for query in range(num_queries):
        size = int(torch.randint(num_rows + 1, (1,), generator=generator))
        size = (0, num_rows, size, min(size, 5), size)[(seed + query) % 5]
        ids = torch.randperm(num_rows, generator=generator)[:size]
        if targets is not None and query % 2 and size:
            is_target = ids == targets[query]
            ids = ids if bool(is_target.any()) else torch.cat([ids[1:], targets[query : query + 1]])
        rows.append(ids)
    lengths = torch.tensor([0, *map(len, rows)], dtype=torch.int64)
    return Lists(lengths.cumsum(0), torch.cat([torch.empty(0, dtype=torch.int64), *rows]))


def padded(lists: Lists) -> Tensor:
    """Return lists as ``[B, K]``, with -1 in the places that are left."""
    rows = [lists.indices[a:b] for a, b in pairwise(lists.indptr.tolist())]
    longest = max(map(len, rows), default=0)
    return torch.stack(
        [torch.nn.functional.pad(row, (0, longest - len(row)), value=-1) for row in rows]
    )


def _each_query(args: tuple[Any, ...], lists: Lists) -> Any:
    """Yield the arguments of each query alone, and its candidates."""
    queries, table, middle, indptr, indices, score = args
    bounds = pairwise(indptr.tolist())
    for query, (first, last) in enumerate(bounds):
        own = lists.indices[int(lists.indptr[query]) : int(lists.indptr[query + 1])]
        its = middle[query : query + 1] if isinstance(middle, Tensor) else middle
        known = torch.tensor([0, last - first]), indices[first:last]
        yield (queries[query : query + 1], table, its, *known, score), own


def expected_counts(args: tuple[Any, ...], lists: Lists, **options: Any) -> list[Tensor]:
    """Count each query with its list as the only candidates, by the reference."""
    each = [
        reference.rank_counts(*own, candidate_ids=ids, **options)
        for own, ids in _each_query(args, lists)
    ]
    return [torch.cat(column, -1) for column in zip(*each, strict=True)]


def expected_best(args: tuple[Any, ...], lists: Lists, **options: Any) -> list[Tensor]:
    """Find the best of each query likewise; ``args`` hold k in the place of targets."""
    each = [
        reference.topk(*own, candidate_ids=ids, **options) for own, ids in _each_query(args, lists)
    ]
    return [torch.cat(column, -2) for column in zip(*each, strict=True)]
