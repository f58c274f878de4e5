"""neighbours(): the closest rows, as sorting the scores of all pairs gives them."""

import numpy as np
import pytest
import torch

import kgfast
from kgfast import Vocabulary, neighbours
from kgfast.tables.protocol import TensorTable
from kgfast.tables.views import UnitRows
from support import oracles

METRICS = ("cosine", "dot", "l1", "l2")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def rows_with_twins(count, width, seed=0, dtype=torch.float32):
    """Rows of small numbers, so that scores tie; some rows are equal, some multiples of others."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(-3, 4, (count, width), generator=generator).to(dtype)
    rows[:, 0] += 4  # no zeros
    rows[count // 2] = rows[1]
    rows[count // 3] = 2 * rows[0]
    return rows


def of(rows):
    return kgfast.TransE(rows, torch.zeros(1, rows.shape[1]))


def expected(rows, ids, k, metric):
    """Neighbours by float64 scores, the lowest id among equals."""
    table = rows.double()
    if metric == "cosine":
        table, metric = torch.from_numpy(oracles.unit_rows(rows)), "dot"
    scores = oracles.canonical_scores(table[ids], table, metric)
    best, values = oracles.best(scores, k, [[int(it)] for it in ids])
    dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
    return torch.tensor(best), torch.tensor(np.array(values)).to(dtype)


def assert_nearest(found, rows, ids, metric):
    best, scores = expected(rows, ids, found.k, metric)
    assert torch.equal(found.ids, best)
    assert torch.equal(found.scores, scores)
    assert torch.equal(found.entities, torch.as_tensor(ids))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("metric", METRICS)
def test_neighbours_are_the_best_of_all_pairs(backend, metric, dtype):
    rows, ids = rows_with_twins(60, 5, dtype=dtype), [7, 0, 30, 7, 1]
    assert_nearest(neighbours(of(rows), ids, 12, metric=metric), rows, ids, metric)
    every = torch.arange(60)
    assert_nearest(neighbours(of(rows), every, 59, metric=metric), rows, every, metric)


@pytest.mark.parametrize("metric", METRICS)
def test_tables_in_files_and_shards_give_the_same(tmp_path, monkeypatch, metric):
    """Blocks of a few rows, so that results are merged."""
    monkeypatch.setattr("kgfast.eval.driver.BLOCK_BYTES", 200)
    monkeypatch.setattr("kgfast.tables.views._PIECE", {"cpu": 12})
    rows, ids = rows_with_twins(50, 5), torch.arange(50)
    np.save(tmp_path / "entity.npy", rows.numpy())
    halves = [rows[a:b] for a, b in ((0, 20), (20, 50))]
    for table in (kgfast.tables.open(tmp_path / "entity.npy"), kgfast.tables.open(halves)):
        model = of(table)
        assert_nearest(neighbours(model, ids, 9, metric=metric), rows, ids, metric)
        with torch.inference_mode():
            assert_nearest(neighbours(model, ids, 9, metric=metric), rows, ids, metric)


def test_only_the_entity_itself_is_left_out():
    rows = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0], [1.0, 2.0]])
    for metric in METRICS:
        found = neighbours(of(rows), [2, 0], 3, metric=metric)
        assert found.ids.tolist() == [[0, 3, 1], [2, 3, 1]]
        best = {"cosine": 1.0, "dot": 5.0}.get(metric, 0.0)
        assert found.scores[:, :2].tolist() == [[pytest.approx(best)] * 2] * 2


@pytest.mark.parametrize("width", [1, 2, 3, 7, 130])
@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1.0, 1e200])
def test_unit_rows_are_unit_rows(width, scale):
    """Not even where squares overflow or vanish; and alone as among others, to the last bit."""
    rows = torch.randn(40, width, dtype=torch.float64) * scale
    view = UnitRows(TensorTable(rows))
    lengths = view.block(0, 40).square().sum(1)
    torch.testing.assert_close(lengths, torch.ones(40, dtype=torch.float64), atol=1e-12, rtol=0)
    ids = torch.tensor([3, 39, 3])
    assert torch.equal(view.rows(ids), view.block(0, 40)[ids])
    assert torch.equal(view.block(5, 6), view.block(0, 40)[5:6])
    wide = UnitRows(TensorTable(torch.randn(3, 70_000)))
    assert torch.equal(wide.block(1, 2), wide.block(0, 3)[1:2])


def test_names_are_taken_and_shown():
    names = Vocabulary(["ann", "bob", "eve"]).labelled({"eve": "Eva"}), ["knows"]
    found = neighbours(of(torch.tensor([[1.0, 0], [0, 1], [3, 4]])), ["bob"], 2, vocabulary=names)
    assert repr(found) == "Neighbours of 1 entity by cosine, k = 2\nbob  eve (Eva) 0.8, ann 0"
    assert found[0] == [("eve", pytest.approx(0.8)), ("ann", 0.0)]
    columns = found.columns()
    assert columns["entity"] == ["bob", "bob"]
    assert columns["neighbour"] == ["eve", "ann"]
    assert columns["neighbour_label"] == ["Eva", None]
    assert columns["rank"] == [1, 2]
    assert found.named(None)[:1].to("cpu").columns()["neighbour"] == [2, 0]


BAD = rows_with_twins(9, 3)
ZERO, NAN = (BAD.index_fill(0, torch.tensor([5]), value) for value in (0.0, torch.nan))


@pytest.mark.parametrize(
    ("rows", "asked", "error", "message"),
    [
        (ZERO, {"ids": 1}, ValueError, "entity table: row 5 is zero: .* no cosine"),
        (ZERO, {"ids": [5, 1]}, ValueError, "entity table: row 5 is zero"),
        (NAN, {"ids": 1}, ValueError, "row 5 holds a NaN"),
        (NAN, {"ids": [1, 5]}, ValueError, r"ids\[1\] = 5: the row holds a NaN or an infinity"),
        (NAN, {"ids": [1, 5], "metric": "l2"}, ValueError, r"ids\[1\] = 5: the row holds a NaN"),
        (NAN, {"ids": 1, "metric": "l2"}, ValueError, "candidates.* 5.* NaN"),
        (BAD, {"ids": [1, 9]}, ValueError, r"ids\[1\] must be in 0 .. 8; got 9"),
        (BAD, {"ids": 0.5}, TypeError, "ids must be integers"),
        (BAD, {"ids": 1, "k": 9}, ValueError, "k must be at most .* other entities, 8; got 9"),
        (BAD, {"ids": 1, "k": 0}, ValueError, "k must be at least 1"),
        (BAD, {"ids": 1, "metric": "euclid"}, ValueError, "metric must be one of .* 'euclid'"),
        (BAD, {"ids": "ann", "vocabulary": (["ann"], None)}, ValueError, "1 names of entities"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(rows, asked, error, message):
    with pytest.raises(error, match=message):
        neighbours(of(rows), **{"k": 2, **asked})


def test_models_without_a_table_are_refused():
    scorer = kgfast.BlockScorer(lambda *asked: torch.zeros(1), 9, 1)
    with pytest.raises(TypeError, match="model must have a table of entities"):
        neighbours(scorer, 1, 2)
