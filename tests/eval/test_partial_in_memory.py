"""A pass over rows in memory that is stopped and goes on, and rows that change meanwhile."""

import re

import numpy as np
import pytest
import torch

import kgfast
from kgfast import RotatE, tables
from kgfast.eval import partial
from support.engines import assert_same
from support.partial import ask, stop_after
from support.ranked_models import MODELS
from support.streamed import TRIPLES, D, N, R

MANY = 1000
SAMPLE = torch.arange(64) * MANY // 64  # rows that stood for a table once


class OwnTable:
    """Rows of a class that kgfast knows nothing of."""

    def __init__(self, values):
        self.values, self.shape, self.dtype = values, tuple(values.shape), values.dtype

    def block(self, start, stop):
        return self.values[start:stop]

    def rows(self, ids):
        return self.values[ids]


def in_memory(how, rows, path):
    """Return a table that reads a tensor, which may change."""
    if how == "own":
        return OwnTable(rows)
    if how == "shard":
        return tables.Shard(rows, start=0, total_rows=MANY)
    if how == "tensor":
        return tables.open(rows)
    np.save(path / "first.npy", rows[:300].numpy())
    device = "cpu" if how == "device" else None
    return tables.open([path / "first.npy", rows[300:]], device=device)


def call_of(kind, model, folder):
    """Ask for rows of the sample alone; return the answers as one tensor."""
    options = {"partial": folder, "max_memory": 16_000}
    if kind == "topk":
        top = kgfast.topk(model, heads=SAMPLE[:20], relations=1, k=5, **options)
        return torch.cat([top.ids.double(), top.scores.double()])
    triples = torch.stack([SAMPLE[:20], torch.ones(20, dtype=torch.int64), SAMPLE[20:40]], 1)
    ranks = kgfast.rank(model, triples, **options)
    return torch.stack([ranks.greater, ranks.equal])


@pytest.mark.parametrize("how", ["tensor", "shard", "mixed", "device", "own"])
@pytest.mark.parametrize("kind", ["rank", "topk"])
def test_rows_in_memory_that_changed_are_named(tmp_path, how, kind):
    model = RotatE.init(MANY, R, 4, seed=0)
    rows = model.entity.detach().clone()
    stored = model.with_entity(in_memory(how, rows, tmp_path))
    first = call_of(kind, stored, tmp_path / "kept")
    assert torch.equal(call_of(kind, stored, tmp_path / "kept"), first)
    was = rows.clone()
    for changed in (
        [777],  # one row, or all that no sample holds
        [it for it in range(300, MANY) if it not in SAMPLE.tolist()],
    ):
        rows[changed] += 1
        with pytest.raises(ValueError, match=r"is of another call: rows .* have changed") as error:
            call_of(kind, stored, tmp_path / "kept")
        start, stop = map(int, re.search(r"rows (\d+) \.\. (\d+) of", str(error.value)).groups())
        assert 0 <= start <= min(it for it in changed) <= stop < start + 200
        rows.copy_(was)
    rows[500, 0] = -rows[500, 0]
    fresh = call_of(kind, stored, tmp_path / "fresh")
    assert torch.equal(
        fresh, call_of(kind, model.with_entity(tables.open(rows)), tmp_path / "other")
    )
    rows.copy_(was)
    assert torch.equal(call_of(kind, stored, tmp_path / "kept"), first)


@pytest.mark.parametrize("how", ["tensor", "own"])
@pytest.mark.parametrize("kind", ["rank", "topk"])
def test_rows_in_memory_that_change_in_a_pass_are_named(tmp_path, monkeypatch, how, kind):
    model = RotatE.init(MANY, R, 4, seed=0)
    rows = model.entity.detach().clone()
    stored, save = model.with_entity(in_memory(how, rows, tmp_path)), partial.Partial.save
    expected = call_of(kind, stored, tmp_path / "whole")

    def changing(self, parts, next_row):
        save(self, parts, next_row)
        if (self.number, next_row) == (1, 2 * self.reader.block_rows):
            rows[-1] += 1

    with monkeypatch.context() as patch:
        patch.setattr(partial.Partial, "save", changing)
        with pytest.raises(
            ValueError, match=rf"rows \d+ \.\. {MANY - 1} of the entity table, .*ha"
        ):
            call_of(kind, stored, tmp_path / "kept")
    kept = sorted(path.name for path in (tmp_path / "kept").glob("*.safetensors"))
    assert kept == ["pass-0.safetensors", "pass-1.safetensors"]
    rows[-1] -= 1
    assert torch.equal(rows, model.entity)
    assert torch.equal(call_of(kind, stored, tmp_path / "kept"), expected)


class Doubled(kgfast.DistMult):
    """A model that holds more than tensors."""

    by = 2.0

    def _queries(self, *asked):
        return super()._queries(*asked) * self.by


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("kind", ["topk", "facts"])
def test_tables_in_memory_go_on_where_they_were_stopped(tmp_path, monkeypatch, kind, count, dtype):
    model = MODELS["distmult"](N, R, D, 0).to(dtype)
    model.entity.data = model.entity.data[torch.arange(N) % 9].contiguous()  # ties
    expected, options = ask(kind, model), {"batch_size": 5, "partial": tmp_path / "kept"}
    saves = {"topk": 8, "facts": 61}[kind]  # 40 queries; 61 heads with all relations
    for last, left in ((count, saves), (saves, saves - count), (0, 0)):  # the third call only reads
        with monkeypatch.context() as patch:
            kept = stop_after(patch, last)
            if last < left:
                with pytest.raises(KeyboardInterrupt):
                    ask(kind, model, **options)
            else:
                assert_same(ask(kind, model, **options), expected)
        assert len(kept) == min(last, left)


@pytest.mark.parametrize("kind", ["topk", "facts"])
def test_another_call_or_model_in_memory_is_refused(tmp_path, kind):
    model = Doubled.init(N, R, D, seed=0)
    options = {"partial": tmp_path / "kept"}
    expected = ask(kind, model, **options)
    some = torch.arange(30)
    own = {
        "topk": [{"heads": 1}, {"candidate_ids": some}, {"dims": 3}],
        "facts": [{"heads": some}, {"relations": [0]}, {"tails": some}],
    }[kind]
    for change in ({"known": None}, {"k": 3}, {"batch_size": 5}, *own):
        with pytest.raises(ValueError, match="is of another call"):
            ask(kind, model, **options | change)
    for tensor in (model.entity.data, model.relation.data):
        before, tensor[-1, -1] = tensor[-1, -1].clone(), 7
        with pytest.raises(ValueError, match="is of another call"):
            ask(kind, model, **options)
        tensor[-1, -1] = before
    model.by = 3.0
    with pytest.raises(ValueError, match="is of another call"):
        ask(kind, model, **options)
    model.by = 2.0
    assert_same(ask(kind, model, **options), expected)


def test_ids_and_lists_of_each_query_in_memory(tmp_path):
    """Answers restricted by relation or by query are kept in the order of the call."""
    model, types = MODELS["rotate"](N, R, D, 0), kgfast.TypeConstraints.from_triples(TRIPLES)
    lists = torch.arange(0, 200).reshape(40, 5) % N
    for number, given in enumerate((types, lists)):
        options = {"candidate_ids": given, "pad": True, "batch_size": 7}
        expected, folder = ask("topk", model, **options), tmp_path / str(number)
        for _ in range(2):
            assert_same(ask("topk", model, **options, partial=folder), expected)
        for other in (None, lists.flip(0)):
            with pytest.raises(ValueError, match="is of another call"):
                ask("topk", model, **options | {"candidate_ids": other}, partial=folder)


def test_functions_that_score_are_not_kept(tmp_path):
    def scores(heads, relations, tails):
        return (heads + relations - tails).float()

    scorer = kgfast.BlockScorer(scores, N, R)
    for kind in ("topk", "facts"):
        with pytest.raises(ValueError, match="partial: scores come from a function"):
            ask(kind, scorer, partial=tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


class Stretched(kgfast.DistMult):
    """A model whose candidates are made of more than tensors."""

    by = 1.0

    def candidates(self, side, dims=None):
        return kgfast.Candidates(self.entity * self.by)


def test_all_tensors_and_some_candidates_are_compared_in_memory(tmp_path):
    model, options = Stretched.init(1000, R, D, seed=0), {"known": None, "partial": tmp_path / "k"}
    expected = ask("topk", model, **options)
    model.by = 2.0
    with pytest.raises(ValueError, match="is of another call"):
        ask("topk", model, **options)
    model.by = 1.0
    assert_same(ask("topk", model, **options), expected)
    model.entity.data[107] += 1  # no anchor, and no row of a sample
    with pytest.raises(ValueError, match="is of another call"):
        ask("topk", model, **options)
