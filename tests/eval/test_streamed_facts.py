"""top_facts() of entities in files: the facts of the same table in memory, to the last bit."""

import pytest
import torch

from kgfast import top_facts
from kgfast.eval import partial
from support.ranked_models import MODELS
from support.streamed import KNOWN, SMALL, D, N, R, in_file


@pytest.mark.parametrize("limit", [SMALL, "1GiB"])
@pytest.mark.parametrize("kind", ["rotate", "distmult"])
def test_of_a_table_in_a_file(tmp_path, kind, limit):
    model = MODELS[kind](N, R, D, 0)
    model.entity.data = model.entity.data[torch.arange(N) % 9].contiguous()  # ties
    stored = in_file(model, tmp_path)
    for options in (
        {"k": 70, "known": KNOWN},
        {"k": 5, "heads": [3, 50, 7], "relations": [2], "tails": [0, 9, 18, 60]},
        {"k": 40, "heads": [1], "relations": 0, "tails": [0, 9]},
        {"k": 3, "heads": []},
    ):
        found = top_facts(stored, max_memory=limit, **options)
        expected = top_facts(model, **options)
        assert torch.equal(found.triples, expected.triples)
        assert torch.equal(found.scores, expected.scores)


def test_of_a_table_with_a_nan(tmp_path):
    model = MODELS["rotate"](N, R, D, 0)
    model.entity.data[47, 3] = torch.nan
    stored = in_file(model, tmp_path)
    with pytest.raises(ValueError, match=r"e\.npy: row 47 holds a NaN"):
        top_facts(stored, k=3, heads=[1], max_memory=SMALL)
    with pytest.raises(ValueError, match="head 47 with relation 0: the query holds a NaN"):
        top_facts(stored, k=3, heads=[47], max_memory=SMALL)
    with pytest.raises(ValueError, match="tensors are read in place"):
        top_facts(model, k=3, max_memory=SMALL)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_search_goes_on_where_it_was_stopped(tmp_path, monkeypatch, count, dtype):
    model = MODELS["distmult"](N, R, D, 0).to(dtype)
    model.entity.data = model.entity.data[torch.arange(N) % 9].contiguous()  # ties
    stored, save, kept = in_file(model, tmp_path), partial.Partial.save, []
    options = {"k": 70, "known": KNOWN}
    files = {"max_memory": SMALL, "partial": tmp_path / "facts"}

    def stopped(self, *args):
        if len(kept) == count:
            raise KeyboardInterrupt
        kept.append(args[0])
        save(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(partial.Partial, "save", stopped)
        with pytest.raises(KeyboardInterrupt):
            top_facts(stored, **options, **files)
    expected = top_facts(model, **options)
    for _ in range(2):  # goes on; and reads what is finished
        found = top_facts(stored, **options, **files | {"max_memory": "1GiB"})
        assert torch.equal(found.triples, expected.triples)
        assert torch.equal(found.scores, expected.scores)
        assert found.scores.dtype == expected.scores.dtype
    assert len(list((tmp_path / "facts").glob("pass-*.npz"))) > 2
    for change in ({"k": 69}, {"known": None}, {"heads": [1]}, {"tails": [1, 2]}):
        with pytest.raises(ValueError, match="is of another call"):
            top_facts(stored, **options | change, **files)
