"""Arguments of a wrong type, layout or size: every operator refuses them in one line by name."""

import math

import pytest
import torch

from kgfast import ops

N, G, B = 6, 4, 2
RANKS = ("rank_counts", "topk")
SCORED = ("pairwise_scores", "indexed_scores")
BCE, CROSS_ENTROPY = ("bce", "bce_total"), ("cross_entropy", "cross_entropy_total")
TOTALS = "bce_total", "cross_entropy_total"
SWEEPS = (*RANKS, *SCORED, *BCE, *CROSS_ENTROPY)


def ids(*values):
    return torch.tensor(values, dtype=torch.int64)


def given(name):
    """Return a valid call of an operator."""
    rows = {"queries": torch.zeros(B, G), "candidates": torch.zeros(N, G), "score": "rotate"}
    excluded = {"exclude_indptr": ids(0, 1, 2), "exclude_indices": ids(0, 3)}
    positives = {"positive_indptr": ids(0, 1, 2), "positive_indices": ids(3, 5)}
    labels = {"bias": torch.ones(N), "label_a": 1.0, "label_c": 0.0}
    table = {"table": rows["candidates"], "index": torch.zeros(B, 3, dtype=torch.int64)}
    targets = {"targets": ids(0, 5)}
    scores = {"queries": rows["queries"], "bias": torch.ones(N), "score": "rotate"}
    return {
        "rank_counts": rows | targets | excluded,
        "topk": rows | {"k": 2} | excluded,
        "pairwise_scores": rows,
        "indexed_scores": scores | table,
        "bce": rows | positives | labels,
        "bce_total": rows | positives | labels | {"divisor": 2.0},
        "cross_entropy": rows | targets | {"bias": None, "label_smoothing": 0.0},
        "cross_entropy_total": rows
        | targets
        | {"bias": None, "label_smoothing": 0.0, "divisor": 1.0},
    }[name]


def refused(name, error, message, **change):
    if name == "indexed_scores" and "candidates" in change:
        change["table"] = change.pop("candidates")
        message = message.replace("candidates", "table")
    with pytest.raises(error, match=message) as caught:
        getattr(ops, name.removesuffix("_total"))(**given(name) | change)
    assert "\n" not in str(caught.value)


VALUES = [  # operators, a change, the message
    (SWEEPS, {"score": "cosine"}, "score must be one of dot, l1"),
    (SWEEPS, {"queries": torch.zeros(G)}, "queries must have two axes"),
    (SWEEPS, {"queries": torch.zeros(B, 6)}, "queries must have 4 columns"),
    (SWEEPS, {"queries": torch.zeros(B, G, device="meta")}, "queries must be on cpu"),
    (
        SWEEPS,
        {"queries": torch.zeros(B, 3), "candidates": torch.zeros(N, 3)},
        "needs rows of pairs re, im; got 3 columns",
    ),
    (SWEEPS, {"bias": torch.zeros(5)}, r"bias must have shape \[6\]"),
    (SWEEPS, {"bias": torch.tensor([math.nan, 0, 0, 0, 0, 0])}, "bias: row 0 holds a NaN"),
    ((*RANKS, *SCORED), {"factor": torch.zeros(N, 2)}, "factor: score rotate takes none"),
    ((*RANKS, *SCORED), {"dims": []}, "dims must name at least one"),
    ((*RANKS, *SCORED), {"dims": [1, 3]}, r"dims\[1\] must be in 1 .. 2; got 3"),
    ((*RANKS, *SCORED), {"dims": [2, 2]}, r"dims must increase; dims\[1\] is 2"),
    ((*RANKS, *SCORED), {"dims": [0]}, r"dims\[0\] must be in 1 .. 2; got 0"),
    (RANKS, {"exclude_indptr": ids(0, 1, 1), "exclude_indices": ids(9)},
     r"exclude_indices\[0\] must be in 0 .. 5; got 9"),
    (RANKS, {"exclude_indptr": ids(0, 2, 1)}, "exclude_indptr must rise from 0"),
    (RANKS, {"exclude_indptr": ids(0, 0)}, r"exclude_indptr must have shape \[3\]"),
    (RANKS, {"candidate_ids": ids(4, 1, 4)},
     r"candidate_ids\[2\] must not repeat an earlier id; got 4 again"),
    (RANKS, {"candidate_ids": ids(4, -2)}, r"candidate_ids\[1\] must be in 0 .. 5; got -2"),
    (("topk",), {"exclude_indptr": None}, "given together"),
    (("topk",), {"k": 0}, "k must be at least 1; got 0"),
    (("rank_counts", *CROSS_ENTROPY), {"targets": ids(0, 1, 2)}, r"targets must have shape \[2\]"),
    (("rank_counts", *CROSS_ENTROPY), {"targets": ids(0, 6)},
     r"targets\[1\] must be in 0 .. 5; got 6"),
    (("indexed_scores",), {"index": ids(0, 1)}, r"index must have shape \[2, \*\]"),
    (("indexed_scores",), {"index": torch.zeros(B, 3, device="meta").long()},
     "index must be on cpu"),
    (("indexed_scores",), {"index": ids(0, 5, 1, 2, 6, 9).view(B, 3)},
     r"index\[1, 1\] must be in 0 .. 5; got 6"),
    (BCE, {"positive_indptr": ids(0, 0)}, r"positive_indptr must have shape \[3\]"),
    (BCE, {"positive_indptr": ids(0, 3, 2)}, "positive_indptr must rise from 0 to len"),
    (BCE, {"positive_indptr": ids(0, 2, 2)}, "positive_indptr: row 1 has no positives"),
    (BCE, {"positive_indices": ids(0, 6)}, r"positive_indices\[1\] must be in 0 .. 5; got 6"),
    (BCE, {"label_c": math.nan}, "label_c must be finite; got nan"),
    (CROSS_ENTROPY, {"label_smoothing": 1.0}, r"label_smoothing must be in \[0, 1\)"),
    (CROSS_ENTROPY, {"label_smoothing": -0.1}, r"in \[0, 1\); got -0.1"),
    (TOTALS, {"divisor": 0.0}, r"^divisor must be positive; got 0.0"),
    (TOTALS, {"divisor": math.nan}, "divisor must be finite; got nan"),
]  # fmt: skip
TYPES = [
    (SWEEPS, {"queries": torch.zeros(B, G).long()}, "queries must be float32"),
    (SWEEPS, {"candidates": torch.zeros(N, G).long()},
     "candidates must be float32, float16, bfloat16, float64"),
    (SWEEPS, {"bias": torch.zeros(N).long()}, "bias must be float32"),
    ((*RANKS, *SCORED), {"dims": [1.5]}, r"dims\[0\] must be an int"),
    (RANKS, {"exclude_indices": torch.ones(2)}, "exclude_indices must be int64"),
    (("topk",), {"k": 2.0}, "k must be an int"),
    (("topk",), {"k": True}, "k must be an int"),
    (("rank_counts", *CROSS_ENTROPY), {"targets": ids(0, 1).int()}, "targets must be int64"),
    (("indexed_scores",), {"index": [[0]]}, "index must be a tensor"),
    (("indexed_scores",), {"index": ids(0, 1)[:, None].int()}, "index must be int64"),
    (BCE, {"positive_indices": ids(0, 1).int()}, "positive_indices must be int64"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "error", "change", "message"),
    [(names, error, *case) for error, table in ((ValueError, VALUES), (TypeError, TYPES))
     for names, *case in table],
    ids=str,
)  # fmt: skip
def test_what_is_wrong_is_named(names, error, change, message):
    for name in names:
        refused(name, error, message, **change)


MOVED = [
    ({"queries": torch.zeros(B, 8)}, "queries must have 10 columns, query,"),
    ({"factor": None}, "queries must have 8 columns, query"),
    ({"factor": torch.zeros(5, 2)}, r"shape \[6, 2\]; got \[5"),
    ({"factor": torch.zeros(N, 1)}, r"must have shape \[6, 2\]"),
    ({"factor": torch.zeros(12)}, r"must have shape \[6, 2\]"),
    ({"factor": torch.full((N, 2), 2.0**12)}, r"angles up to 1.68e\+07 radians; at most 2\^20"),
]


@pytest.mark.parametrize("name", SCORED)
def test_what_is_wrong_with_moved_queries_is_named(name):
    rows = {"queries": torch.full((B, 10), 2.0**12), "factor": torch.zeros(N, 2)}
    rows["score"] = "rscf_rotate"
    for change, message in MOVED:
        refused(name, ValueError, message, **rows | change)
    integers = torch.zeros(N, 2).int()
    refused(name, TypeError, "factor must be float32", **rows | {"factor": integers})


@pytest.mark.parametrize("name", SWEEPS)
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
    rows = {"queries": torch.ones(B, 3 * G), "score": "rscf_l1"}
    for name in (*SCORED, *RANKS):
        refused(
            name, TypeError, "^factor must be dense", factor=torch.ones(N, G).to_sparse(), **rows
        )
    refused("pairwise_scores", TypeError, "^dims must be a sequence", dims=3)
    refused("rank_counts", TypeError, "^targets must be dense", targets=ids(0, 5).to_sparse())
    sparse = torch.ones(2, 1).long().to_sparse()
    refused("indexed_scores", TypeError, "^index must be dense", index=sparse)


@pytest.mark.parametrize(
    ("name", "argument"),
    [("bce", "label_a"), ("bce_total", "divisor"), ("cross_entropy", "label_smoothing")],
)
def test_numbers_are_named(name, argument):
    for value in ("x", [1.0], torch.ones(2)):
        refused(name, TypeError, f"^{argument} must be a number; got", **{argument: value})
    for value in (math.nan, math.inf, 10**400):
        refused(name, ValueError, f"^{argument} must be ", **{argument: value})
