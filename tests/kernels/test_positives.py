"""Pairs with a label of their own, against plain Python."""

import pytest
import torch

from kgfast.kernels.labels import Bce
from kgfast.kernels.positives import Positives

ROWS = [[3, 1, 3], [], [0, 4, 1, 0], [4]]
LABELS = Bce(
    torch.tensor([0, 3, 3, 7, 8]), torch.tensor([id for ids in ROWS for id in ids]), 1.0, 0.0
)
PAIRS = [(query, id) for query, ids in enumerate(ROWS) for id in sorted(set(ids))]
CHUNKS = [slice(0, 2), slice(2, 4), slice(4, 5)]


def pairs_of(positives):
    return list(zip(positives.queries.tolist(), positives.ids.tolist(), strict=True))


def test_labels_are_distinct_pairs_in_order():
    assert pairs_of(Positives.of_labels(LABELS, 5)) == PAIRS
    by_candidate = pairs_of(Positives.of_labels(LABELS, 5, by_candidate=True))
    assert by_candidate == sorted(PAIRS, key=lambda pair: pair[::-1])


def test_targets_are_pairs_in_order():
    targets = torch.tensor([4, 0, 4, 2])
    assert pairs_of(Positives.of_targets(targets)) == [(0, 4), (1, 0), (2, 4), (3, 2)]
    by_candidate = Positives.of_targets(targets, by_candidate=True)
    assert pairs_of(by_candidate) == [(1, 0), (3, 2), (0, 4), (2, 4)]


def test_chunks_find_their_own():
    positives = Positives.of_labels(LABELS, 5, by_candidate=True)
    parts = [positives.ids[part].tolist() for part in positives.in_chunks(CHUNKS)]
    assert parts == [[0, 1, 1], [3], [4, 4]]
    assert positives.in_chunks([]) == []


@pytest.mark.parametrize("by_candidate", [False, True])
def test_sums_are_in_the_order_of_ids(by_candidate):
    """Add numbers whose sum is another in any other order."""
    positives = Positives.of_labels(LABELS, 5, by_candidate=by_candidate)
    values = torch.tensor([1e16, 1.0, 3.0, 1.0, -1e16], dtype=torch.float64)[positives.ids]
    expected = [values.new_zeros(()) for _ in ROWS]
    for query, id in PAIRS:
        expected[query] += float(values[positives.queries.eq(query) & positives.ids.eq(id)])
    assert torch.equal(positives.sum_by_query(values), torch.stack(expected))
