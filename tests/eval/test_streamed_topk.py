"""topk() of entities in files: the answers of the same table in memory, to the last bit."""

import pytest
import torch

import kgfast
from kgfast import MED, RSCF, Reciprocal, RotatE
from kgfast.eval import partial
from kgfast.graph import TypeConstraints
from support.ranked_models import MODELS
from support.streamed import KNOWN, SMALL, TRIPLES, D, N, R, in_file, rotate

HEADS, RELATIONS, TAILS = TRIPLES.T.contiguous()


def same(found, expected):
    assert torch.equal(found.ids, expected.ids)
    assert found.scores.dtype == expected.scores.dtype
    assert torch.equal(found.scores, expected.scores)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("side", ["head", "tail", "relation"])
def test_every_model(tmp_path, kind, side):
    model = MODELS[kind](N, R, D, 0)
    asked = {
        "head": {"tails": TAILS, "relations": RELATIONS},
        "tail": {"heads": HEADS, "relations": RELATIONS},
        "relation": {"heads": HEADS, "tails": TAILS},
    }[side]
    options = {**asked, "k": 3, "known": KNOWN, "pad": side == "relation"}
    found = kgfast.topk(in_file(model, tmp_path, [1, 1, 30]), max_memory=SMALL, **options)
    same(found, kgfast.topk(model, **options))


@pytest.mark.parametrize("k", [1, 10, N])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_ties_are_ordered_by_the_lowest_id(tmp_path, k, dtype):
    rows = RotatE.init(7, R, D, seed=1).entity.detach().to(dtype)[torch.arange(N) % 7]
    model = RotatE(rows.contiguous(), RotatE.init(N, R, D, seed=0).relation.to(dtype))
    options = {"heads": HEADS, "relations": RELATIONS, "k": k}
    same(
        kgfast.topk(in_file(model, tmp_path), max_memory=SMALL, **options),
        kgfast.topk(model, **options),
    )


def test_scores_that_round_to_one_number_keep_their_order(tmp_path):
    far = torch.full((N, 1), 1e4)
    far[[3, 50, 20], 0] = torch.tensor([4097.0, 4096.0, 4095.5])
    model = kgfast.TransE(far, torch.tensor([[2.0**-20]]), norm="l2")
    options = {"heads": [0, 1], "relations": 0, "k": 4}
    same(
        kgfast.topk(in_file(model, tmp_path), max_memory="1KiB", **options),
        kgfast.topk(model, **options),
    )


@pytest.mark.parametrize("kind", ["med", "rscf", "reciprocal"])
def test_models_around_models(tmp_path, kind):
    base = RotatE.init(N, R, D, seed=0)
    model = {
        "med": lambda: MED(base, [2, 6]),
        "rscf": lambda: RSCF(base, seed=1),
        "reciprocal": lambda: Reciprocal(RotatE.init(N, 2 * R, D, seed=0)),
    }[kind]()
    options = {"tails": TAILS, "relations": RELATIONS, "k": 5, "known": KNOWN}
    options |= {"dims": 2} if kind == "med" else {}
    same(
        kgfast.topk(in_file(model, tmp_path), max_memory=SMALL, **options),
        kgfast.topk(model, **options),
    )


@pytest.mark.parametrize("kind", ["one list", "lists", "constraints"])
def test_candidates_of_every_kind(tmp_path, kind):
    generator = torch.Generator().manual_seed(5)
    lists = torch.stack([torch.randperm(N, generator=generator)[:9] for _ in TRIPLES])
    lists[3, 4:] = -1
    given = {
        "one list": torch.randperm(N, generator=generator)[:17],
        "lists": lists,
        "constraints": TypeConstraints.from_triples(TRIPLES),
    }[kind]
    model, stored = rotate(tmp_path)
    options = {"heads": HEADS, "relations": RELATIONS, "known": KNOWN, "candidate_ids": given}
    options |= {"k": 6, "pad": True}
    same(kgfast.topk(stored, max_memory=SMALL, **options), kgfast.topk(model, **options))
    in_memory = model.with_entity(kgfast.tables.open(model.entity.detach()))
    for table, folder in ((stored, "of file"), (in_memory, "of memory")):
        found = kgfast.topk(table, max_memory=SMALL, partial=tmp_path / folder, **options)
        same(found, kgfast.topk(model, **options))
    for one in (stored, model):
        with pytest.raises(ValueError, match=r"k must be at most .* left to each query|k must be"):
            kgfast.topk(one, **options | {"k": 18, "pad": False})


def test_bad_input(tmp_path):
    model, stored = rotate(tmp_path)
    with pytest.raises(ValueError, match="k must be at most the number of candidates, 61"):
        kgfast.topk(stored, heads=HEADS, relations=RELATIONS, k=N + 1)
    with pytest.raises(ValueError, match="tensors are read in place"):
        kgfast.topk(model, heads=HEADS, relations=RELATIONS, k=1, max_memory="1GiB")
    model.entity.data[47, 3] = torch.nan
    stored = in_file(model, tmp_path)
    with pytest.raises(ValueError, match=r"e\.npy: row 47 holds a NaN"):
        kgfast.topk(stored, heads=[1], relations=[0], k=1, max_memory=SMALL)
    with pytest.raises(ValueError, match=r"heads\[1\] = 47 with relation 0: the query holds a NaN"):
        kgfast.topk(stored, heads=[1, 47], relations=0, k=1, max_memory=SMALL)
    lists = torch.tensor([[1, 47]])
    with pytest.raises(ValueError, match=r"e\.npy: row 47 holds a NaN"):
        kgfast.topk(stored, heads=[1], relations=[0], k=1, candidate_ids=lists)


def test_relations_of_which_some_are_left_out(tmp_path):
    model, stored = rotate(tmp_path)
    options = {"heads": HEADS, "tails": TAILS, "k": R, "exclude": [1], "pad": True}
    same(kgfast.topk(stored, **options), kgfast.topk(model, **options))


def test_no_queries(tmp_path):
    model, stored = rotate(tmp_path)
    options = {"heads": HEADS[:0], "relations": RELATIONS[:0], "k": 2}
    same(kgfast.topk(stored, **options), kgfast.topk(model, **options))


def test_a_run_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    model, stored = rotate(tmp_path)
    options = {"heads": HEADS, "relations": RELATIONS, "k": 4, "known": KNOWN}
    files = {"max_memory": SMALL, "partial": tmp_path / "top"}
    save, kept = partial.Partial.save, []

    def stopped(self, *args):
        if len(kept) == 3:
            raise KeyboardInterrupt
        kept.append(args)
        save(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(partial.Partial, "save", stopped)
        with pytest.raises(KeyboardInterrupt):
            kgfast.topk(stored, **options, **files)
    same(kgfast.topk(stored, **options, **files), kgfast.topk(model, **options))
    for change in ({"k": 5}, {"known": None}, {"heads": HEADS.flip(0)}):
        with pytest.raises(ValueError, match="is of another call"):
            kgfast.topk(stored, **options | change, **files)
    one = {"heads": 3, "relations": 0, "k": 2}
    same(kgfast.topk(stored, **one, partial=tmp_path / "one"), kgfast.topk(model, **one))
    with pytest.raises(ValueError, match="is of another call"):
        kgfast.rank(stored, TRIPLES, **files)


def test_what_is_finished_has_the_dtype_of_the_scores(tmp_path):
    model = MODELS["rotate"](N, R, D, 0).double()
    stored = in_file(model, tmp_path)
    options = {"heads": HEADS, "relations": RELATIONS, "k": 4}
    for _ in range(2):  # the second call reads what the first one kept
        found = kgfast.topk(stored, **options, partial=tmp_path / "top")
        same(found, kgfast.topk(model, **options))
