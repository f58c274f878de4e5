"""Bad input of bce and cross_entropy: what is wrong is named."""

import pytest
import torch

from kgfast import ops

BAD = {
    "unknown score": ({"score": "cosine"}, ValueError, "score must be one of dot, l1"),
    "widths differ": ({"queries": torch.zeros(2, 6)}, ValueError, "queries must have 4 columns"),
    "bias": ({"bias": torch.zeros(5)}, ValueError, r"bias must have shape \[6\]"),
}
BAD_BCE = {
    "indptr too short": (
        {"positive_indptr": torch.zeros(2).long()},
        ValueError,
        r"positive_indptr must have shape \[3\]",
    ),
    "indptr falls": (
        {"positive_indptr": torch.tensor([0, 3, 2])},
        ValueError,
        "positive_indptr must rise from 0 to len",
    ),
    "int32 indices": (
        {"positive_indices": torch.tensor([0, 1]).int()},
        TypeError,
        "positive_indices must be int64",
    ),
    "no positives": (
        {"positive_indptr": torch.tensor([0, 2, 2])},
        ValueError,
        "positive_indptr: row 1 has no positives",
    ),
    "out of range": (
        {"positive_indices": torch.tensor([0, 6])},
        ValueError,
        r"positive_indices\[1\] must be in 0 .. 5; got 6",
    ),
    "negative": (
        {"positive_indices": torch.tensor([-1, 6])},
        ValueError,
        r"positive_indices\[0\] must be in 0 .. 5; got -1",
    ),
    "label": ({"label_c": float("nan")}, ValueError, "label_c must be finite; got nan"),
}
BAD_CROSS_ENTROPY = {
    "targets too long": ({"targets": torch.arange(3)}, ValueError, r"targets must have shape \[2"),
    "out of range": (
        {"targets": torch.tensor([0, 6])},
        ValueError,
        r"targets\[1\] must be in 0 .. 5; got 6",
    ),
    "smoothing 1": ({"label_smoothing": 1.0}, ValueError, r"label_smoothing must be in \[0, 1\)"),
    "negative smoothing": ({"label_smoothing": -0.1}, ValueError, r"in \[0, 1\); got -0.1"),
    "NaN smoothing": ({"label_smoothing": float("nan")}, ValueError, r"in \[0, 1\); got nan"),
}


@pytest.mark.parametrize("name", [*BAD, *BAD_BCE])
def test_bad_input_of_bce_is_named(name):
    change, error, message = (BAD | BAD_BCE)[name]
    given = {
        "queries": torch.zeros(2, 4),
        "candidates": torch.zeros(6, 4),
        "bias": None,
        "positive_indptr": torch.tensor([0, 1, 2]),
        "positive_indices": torch.tensor([3, 5]),
        "label_a": 1.0,
        "label_c": 0.0,
        "score": "rotate",
    }
    with pytest.raises(error, match=message):
        ops.bce(**(given | change))


@pytest.mark.parametrize("name", [*BAD, *BAD_CROSS_ENTROPY])
def test_bad_input_of_cross_entropy_is_named(name):
    change, error, message = (BAD | BAD_CROSS_ENTROPY)[name]
    given = {
        "queries": torch.zeros(2, 4),
        "candidates": torch.zeros(6, 4),
        "bias": None,
        "targets": torch.tensor([3, 5]),
        "label_smoothing": 0.0,
        "score": "rotate",
    }
    with pytest.raises(error, match=message):
        ops.cross_entropy(**(given | change))
