"""rank_rows() and topk_rows(): every score in float64, sorted."""

import re

import numpy as np
import pytest
import torch

import kgfast
from kgfast import rank_rows, tables, topk_rows

B, N, D, K = 9, 60, 5, 7


def numbers(*shape, seed=0):
    """Return small integers: scores are exact in any order of sums, and many are equal."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator).float()


QUERIES, ROWS, BIAS = numbers(B, D), numbers(N, D, seed=1), numbers(N, seed=2)
TARGETS = torch.arange(B) * 5 + 2
LISTS = [torch.arange(row % 4) * 9 + row for row in range(B)]
CSR = torch.tensor([0, *map(len, LISTS)]).cumsum(0), torch.cat(LISTS)
LEFT_OUT = [torch.arange(row % 3) * 4 + 2 for row in range(B)]
EXCLUDE = torch.tensor([0, *map(len, LEFT_OUT)]).cumsum(0), torch.cat(LEFT_OUT)
EACH = torch.stack([torch.arange(N)[row : row + 20] for row in range(B)])


def unit(values):
    lengths = values.square().sum(1, keepdim=True).sqrt()
    return torch.where(lengths > 0, values / lengths, 0.0).float().double()


def dense(score, bias=None):
    queries, rows = QUERIES.double(), ROWS.double()
    if score == "cosine":
        queries, rows = unit(queries), unit(rows)
    difference = queries[:, None] - rows
    scores = {
        "l1": lambda: -difference.abs().sum(-1),
        "l2": lambda: -difference.square().sum(-1).sqrt(),
    }.get(score, lambda: (queries[:, None] * rows).sum(-1))()
    return scores if bias is None else scores + bias


def is_left(exclude):
    """Return a mask of the rows that ``exclude`` leaves to each query."""
    mask = torch.ones(B, N, dtype=torch.bool)
    if isinstance(exclude, list):
        mask[:, exclude] = False
    elif exclude is not None:
        for row, ids in enumerate(LEFT_OUT):
            mask[row, ids] = False
    return mask


def counts(scores, mask, query, target):
    others = scores[query][mask[query] & (torch.arange(N) != target)]
    own = scores[query, target]
    return int((others > own).sum()), int((others == own).sum())


def in_file(tmp_path):
    np.save(tmp_path / "rows.npy", ROWS.numpy())
    return tables.open(tmp_path / "rows.npy")


@pytest.mark.parametrize("exclude", [None, [3, 17, 2], EXCLUDE], ids=["", "ids", "csr"])
@pytest.mark.parametrize("candidates", [None, torch.arange(3, 50), EACH], ids=["", "ids", "each"])
@pytest.mark.parametrize("targets", [TARGETS, CSR], ids=["one", "csr"])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("home", ["memory", "file"])
def test_ranks_are_those_of_sorted_scores(home, has_bias, targets, candidates, exclude, tmp_path):
    rows, bias = ROWS if home == "memory" else in_file(tmp_path), BIAS if has_bias else None
    options = {"exclude": exclude, "candidate_ids": candidates, "bias": bias}
    ranks = rank_rows(QUERIES, rows, targets, **options, batch_size=4)
    scores, listed = dense("dot", bias), torch.zeros(B, N, dtype=torch.bool)
    lists = LISTS if targets is CSR else TARGETS[:, None]
    if candidates is None:
        listed[:] = True
    else:
        listed.scatter_(1, candidates.expand(B, -1), True)
    pairs = [(query, int(id)) for query, ids in enumerate(lists) for id in ids]
    assert list(zip(ranks.queries.tolist(), ranks.targets.tolist(), strict=True)) == pairs
    for row, (query, target) in enumerate(pairs):
        left = listed & is_left(exclude)
        raw = counts(scores, listed, query, target)
        left[query, lists[query]] = False
        filtered = counts(scores, left, query, target)
        assert (int(ranks.greater[row]), int(ranks.equal[row])) == filtered
        assert (int(ranks.raw.greater[row]), int(ranks.raw.equal[row])) == raw


@pytest.mark.parametrize("home", ["memory", "file"])
@pytest.mark.parametrize("score", ["dot", "cosine", "l1", "l2"])
def test_scores(score, home, tmp_path, backend):
    rows, scores = ROWS if home == "memory" else in_file(tmp_path), dense(score)
    if score == "cosine":  # sums of rounded numbers: neighbours in float64 may change places
        top = topk_rows(QUERIES, rows, K, score=score)[0].double()
        torch.testing.assert_close(top, scores.sort(descending=True).values[:, :K])
        zero = torch.zeros(1, D)
        assert torch.equal(topk_rows(zero, rows, 3, score=score)[1][0], torch.arange(3))
        return
    ranks = rank_rows(QUERIES.numpy(), rows, TARGETS.tolist(), score=score)
    every = torch.ones(B, N, dtype=torch.bool)
    for query, target in enumerate(TARGETS.tolist()):
        both = int(ranks.greater[query]), int(ranks.equal[query])
        assert both == counts(scores, every, query, target)
    for exclude in (None, [3, 17, 2], EXCLUDE):
        left = scores.masked_fill(~is_left(exclude), -torch.inf)
        best = left.sort(dim=1, descending=True, stable=True)
        values, ids = topk_rows(QUERIES, rows, K, score=score, exclude=exclude, batch_size=2)
        assert torch.equal(ids, best.indices[:, :K])
        assert torch.equal(values, best.values[:, :K].float())
    for candidates in (torch.arange(3, 50), EACH):
        ids = topk_rows(QUERIES, rows, 60, score=score, candidate_ids=candidates, pad=True)[1]
        for row, listed in enumerate(candidates.expand(B, -1)):
            order = scores[row, listed].sort(descending=True, stable=True).indices
            assert ids[row][ids[row] >= 0].tolist() == listed[order].tolist()


def test_metrics_of_open_clip():
    """Sort all texts and find the place of the right one, as its get_clip_metrics does."""
    images, texts = torch.randn(40, 8), torch.randn(40, 8)
    order = (images.double() @ texts.double().T).argsort(descending=True)
    places = (order == torch.arange(40)[:, None]).nonzero()[:, 1].numpy()
    ranks = rank_rows(images, texts, torch.arange(40))
    metrics = ranks.metrics(hits=[1, 5, 10])
    assert metrics["mr"] == pytest.approx(places.mean() + 1)
    assert np.floor(metrics["median_rank"]) == np.floor(np.median(places)) + 1
    for k in (1, 5, 10):
        assert metrics[f"hits@{k}"] == pytest.approx((places < k).mean())
    assert repr(ranks).startswith("Ranks of 40 targets, raw, realistic")
    pytest.importorskip("pandas")
    frame = ranks.to_frame()
    assert frame["target"].tolist() == frame["query"].tolist() == list(range(40))
    indptr = torch.arange(0, 41, 4)
    of_several = rank_rows(images[:10], texts, (indptr, torch.arange(40))).best()
    best = (order[:10] // 4 == torch.arange(10)[:, None]).long().argmax(1)
    assert of_several.queries.tolist() == list(range(10))
    assert torch.equal(of_several.optimistic[:, 0], best + 1)


def test_no_queries_and_half_precision():
    ranks = rank_rows(QUERIES[:0], ROWS, [])
    assert len(ranks) == 0
    assert topk_rows(QUERIES[:0], ROWS, 3)[1].shape == (0, 3)
    half = rank_rows(QUERIES.half(), ROWS.bfloat16(), TARGETS)
    assert torch.equal(half.greater, rank_rows(QUERIES, ROWS, TARGETS).greater)


def spoiled(values):
    values = values.clone()
    values[4, 1] = torch.nan
    return values


MISTAKES = [
    ({"targets": TARGETS + 30}, "targets[6] must be in 0 .. 59; got 62"),
    ({"targets": TARGETS[:4]}, "targets must have shape [9]; got [4]"),
    ({"targets": (CSR[0][1:], CSR[1])}, "targets: indptr must have shape [10], and rise from 0"),
    ({"targets": (CSR[0], CSR[1] + 40)}, "targets: ids[5] must be in 0 .. 59; got 61"),
    ({"exclude": (EXCLUDE[0][:5], EXCLUDE[1])}, "exclude: indptr must have shape [10]"),
    ({"exclude": "anchor"}, "exclude must be ids of rows, or (indptr, ids); got 'anchor'"),
    ({"exclude": [60]}, "exclude[0] must be in 0 .. 59; got 60"),
    ({"queries": QUERIES[:, 1:]}, "queries must have 5 columns, as rows of candidates do; got 4"),
    ({"queries": QUERIES.long()}, "queries must be float32, float64; got torch.int64"),
    ({"queries": spoiled(QUERIES)}, "queries: row 4 holds a NaN or an infinity"),
    ({"rows": spoiled(ROWS)}, "rows: row 4 holds a NaN or an infinity"),
    ({"rows": ROWS.long()}, "rows must be float32, float16, bfloat16, float64; got torch.int64"),
    ({"rows": ROWS[:0]}, "rows must hold at least one row; got shape [0, 5]"),
    ({"rows": [1.0]}, "rows must be a tensor or an array; got list"),
    ({"bias": BIAS[:3]}, "bias must have shape [60]; got [3]"),
    ({"score": "rotate"}, "score must be one of dot, cosine, l1, l2; got 'rotate'"),
    ({"candidate_ids": EACH + 40, "targets": CSR}, "candidate_ids[1, 19] must be in 0 .. 59"),
    ({"candidate_ids": EACH[:3], "targets": CSR}, "candidate_ids must have shape [9, *]"),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_are_named(change, message):
    arguments = {"queries": QUERIES, "rows": ROWS, "targets": TARGETS} | change
    with pytest.raises((TypeError, ValueError), match=re.escape(message)) as raised:
        rank_rows(**arguments)
    assert not re.search("triple|relation|worst", str(raised.value))
    if "targets" not in change:
        arguments.pop("targets")
        with pytest.raises((TypeError, ValueError), match=re.escape(message)):
            topk_rows(**arguments, k=3)


def test_too_few_rows_are_named():
    lists = EACH.clone()
    lists[5, 4:] = -1
    with pytest.raises(ValueError, match=re.escape("queries[5] has 4, k is 6 (pad=True")):
        topk_rows(QUERIES, ROWS, 6, candidate_ids=lists)
    with pytest.raises(ValueError, match="grouping must be one of none; got 'relation'"):
        kgfast.rank_rows(QUERIES, ROWS, TARGETS).by("relation")
