"""The best k of a block of queries so far, and the merge of new pairs.

Nothing here waits: shapes depend on k and on the room for new pairs alone. The order in which new
pairs come does not matter.
"""

import torch
from torch import Tensor

LANE = 0xFFFFFFFF
_LARGEST = 2**63 - 1
_MISSING, _NAN = -(2**63), 1 - 2**63  # keys below every number's


class BestLanes:
    """Best k pairs by score, then lowest lane; a *position* is a query by its first limit.

    ``order``, int64 ``[b]``, has the query of each position. ``excluded``, int64, rising, are
    ``query << 32 | lane`` of pairs that are never among the best.
    """

    def __init__(self, order: Tensor, k: int, excluded: Tensor | None) -> None:
        self.order, self.k, self.excluded = order, k, excluded
        positions = torch.arange(len(order), dtype=torch.int64, device=order.device)
        self.rows = positions[:, None]
        self.pairs = ((self.rows << 32) | LANE).repeat(1, k)  # position << 32 | lane
        self.scores = torch.full_like(self.pairs, -torch.inf, dtype=torch.float64)
        self.keys = torch.full_like(self.pairs, _MISSING)

    def merge(self, new: Tensor, new_scores: Tensor, is_new: Tensor) -> Tensor:
        """Merge new pairs into the best; return limits below which no k-th score lies.

        ``new [n]`` are pairs, and ``new_scores`` are canonical scores where ``is_new``.
        """
        scores = torch.cat([self.scores.flatten(), new_scores])
        pairs = torch.cat([self.pairs.flatten(), new])
        keys = torch.cat([self.keys.flatten(), keys_of(new_scores)])
        rows = torch.cat([self.pairs.flatten() >> 32, self._rows_of(new, is_new)])
        order = pairs.argsort()  # equal keys by lane
        order = order[keys[order].argsort(descending=True, stable=True)]
        order = order[rows[order].argsort(stable=True)]
        first = torch.searchsorted(rows[order], self.rows)  # a row has k entries or more
        best = order[first + torch.arange(self.k, dtype=torch.int64, device=first.device)]
        self.scores, self.pairs, self.keys = scores[best], pairs[best], keys[best]
        return torch.where(self.keys[:, -1] > _NAN, self.scores[:, -1], -torch.inf)

    def write(self, scores: Tensor, ids: Tensor, first: int, sorted_ids: Tensor | None) -> None:
        """Store the best in the order of queries, beginning with query ``first``."""
        is_missing = self.keys == _MISSING
        best = torch.where(is_missing, 0, self.pairs & LANE)
        if sorted_ids is not None:
            best = sorted_ids[best]
        rows = self.order - first
        scores.index_copy_(0, rows, self.scores.to(scores.dtype))
        ids.index_copy_(0, rows, torch.where(is_missing, -1, best))

    def _rows_of(self, pairs: Tensor, is_new: Tensor) -> Tensor:
        """Return positions of pairs; one past the last for old pairs and for known answers."""
        positions, excluded, past = pairs >> 32, self.excluded, len(self.order)
        positions = torch.where(is_new, positions, past)
        if excluded is None:
            return positions
        keys = (self.order[pairs >> 32] << 32) | (pairs & LANE)
        nearest = torch.searchsorted(excluded, keys).clamp_(max=len(excluded) - 1)
        return torch.where(excluded[nearest] == keys, past, positions)


def keys_of(scores: Tensor) -> Tensor:
    """Return integers in the order of the scores, zeros equal, NaN below every number."""
    bits = (scores + 0.0).view(torch.int64)
    ordered = bits ^ ((bits >> 63) & _LARGEST)
    return torch.where(scores.isnan(), _NAN, ordered)
