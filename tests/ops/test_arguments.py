"""Arguments of a wrong type, layout or size: every operator refuses them in one line by name."""

import math

import pytest
import torch

from kgfast import ops

N, G = 7, 8


def given(name):
    """A valid call of an operator."""
    rows = {"queries": torch.ones(2, G), "candidates": torch.ones(N, G), "score": "dot"}
    csr = torch.tensor([0, 1, 2]), torch.tensor([0, 3])
    positives = {"positive_indptr": csr[0], "positive_indices": csr[1]}
    labels = {"bias": torch.ones(N), "label_a": 1.0, "label_c": 0.0}
    table = {"table": rows["candidates"], "index": torch.tensor([[1], [0]])}
    targets = {"targets": torch.tensor([0, 6])}
    scores = {"queries": rows["queries"], "bias": torch.ones(N), "score": "dot"}
    return {
        "rank_counts": rows | targets | {"exclude_indptr": csr[0], "exclude_indices": csr[1]},
        "topk": rows | {"k": 2},
        "pairwise_scores": rows,
        "indexed_scores": scores | table,
        "bce": rows | positives | labels,
        "bce_total": rows | positives | labels | {"divisor": 2.0},
        "cross_entropy": rows | targets | {"bias": None, "label_smoothing": 0.0},
        "cross_entropy_total": rows | targets | {"bias": None, "label_smoothing": 0.0},
        "adversarial_rows": {"scores": torch.ones(2, 3), "alpha": 1.0},
    }[name]


def refused(name, error, message, **change):
    with pytest.raises(error, match=message) as caught:
        getattr(ops, name)(**given(name) | change)
    assert "\n" not in str(caught.value)


SWEEPS = ("rank_counts", "topk", "pairwise_scores", "indexed_scores", "bce", "bce_total")


@pytest.mark.parametrize("name", [*SWEEPS, "cross_entropy", "cross_entropy_total"])
def test_rows_must_be_dense_tensors(name):
    table = "table" if name == "indexed_scores" else "candidates"
    for argument in ("queries", table):
        dense = given(name)[argument]
        for value in ("x", dense.numpy(), None):
            kind = type(value).__name__
            refused(
                name, TypeError, f"^{argument} must be a tensor; got {kind}", **{argument: value}
            )
        for value in (dense.to_sparse(), dense.to_sparse_csr()):
            refused(name, TypeError, f"^{argument} must be dense", **{argument: value})
    refused(name, TypeError, "^bias must be a tensor; got int", bias=3)
    refused(name, TypeError, "^bias must be dense", bias=torch.ones(N).to_sparse())


def test_factors_and_indices_must_be_dense():
    rows = {"queries": torch.ones(2, 3 * G), "score": "rscf_l1"}
    for name in ("pairwise_scores", "indexed_scores", "rank_counts", "topk"):
        sparse = torch.ones(N, G).to_sparse()
        refused(name, TypeError, "^factor must be dense", factor=sparse, **rows)
        for dims, message in ((3, "^dims must be a sequence"), (["a"], r"^dims\[0\] must be an")):
            refused(name, TypeError, message, dims=dims, factor=torch.ones(N, G), **rows)
    sparse = torch.tensor([0, 6]).to_sparse()
    refused("rank_counts", TypeError, "^targets must be dense", targets=sparse)
    sparse = torch.ones(2, 1).long().to_sparse()
    refused("indexed_scores", TypeError, "^index must be dense", index=sparse)


@pytest.mark.parametrize("value", ["x", [1.0], None, object()])
def test_adversarial_scores_must_be_a_tensor(value):
    refused("adversarial_rows", TypeError, "^scores must be a tensor", scores=value)


def test_adversarial_scores_must_be_dense():
    sparse = torch.ones(2, 3).to_sparse()
    refused("adversarial_rows", TypeError, "^scores must be dense", scores=sparse)


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("adversarial_rows", "alpha"),
        ("bce", "label_a"),
        ("bce_total", "label_c"),
        ("bce_total", "divisor"),
        ("cross_entropy", "label_smoothing"),
        ("cross_entropy_total", "label_smoothing"),
        ("cross_entropy_total", "divisor"),
    ],
)
def test_numbers_are_named(name, argument):
    for value in ("x", None, [1.0], torch.ones(2)):
        refused(name, TypeError, f"^{argument} must be a number; got", **{argument: value})
    for value in (math.nan, math.inf, 10**400):
        refused(name, ValueError, f"^{argument} must be ", **{argument: value})


def test_numbers_may_be_tensors_without_axes():
    alpha = torch.tensor(0.5)
    rows = ops.adversarial_rows(torch.ones(2, 3), alpha)
    assert rows.equal(ops.adversarial_rows(torch.ones(2, 3), 0.5))


def test_a_name_of_a_score_is_a_string():
    refused("pairwise_scores", ValueError, r"^score must be one of dot, .*; got \[\]", score=[])
