"""OGB's protocols, on data of the same format: against its definition, and its own evaluator."""

import numpy as np
import pytest
import torch

from kgfast import KnownTriples, RotatE, TransE, rank, tables
from kgfast.adapters import ogb, ogb_splits

T, K, R = 30, 9, 3
NUM_NODES = {"disease": 7, "drug": 11, "protein": 6}
N = sum(NUM_NODES.values())


def model():
    """Whole numbers, so that float32 scores are exact and tie often."""
    generator = torch.Generator().manual_seed(0)
    return TransE(
        *(torch.randint(-2, 3, (rows, 2), generator=generator).float() for rows in (N, R))
    )


def wikikg2(seed=0, num_negatives=K):
    """Make a split of ogbl-wikikg2; negatives repeat, and hold the positive."""
    rng = np.random.default_rng(seed)
    return {
        "head": rng.integers(N, size=T),
        "relation": rng.integers(R, size=T),
        "tail": rng.integers(N, size=T),
        "head_neg": rng.integers(N, size=(T, num_negatives)),
        "tail_neg": rng.integers(N, size=(T, num_negatives)),
    }


def biokg(seed=0):
    """Make a split of ogbl-biokg, with ids local to the type, and one with rows of the model."""
    rng = np.random.default_rng(seed)
    kinds, starts = list(NUM_NODES), dict(zip(NUM_NODES, [0, 7, 18], strict=True))
    relation = rng.integers(R, size=T)
    split: dict = {"relation": relation}
    rows: dict = {"relation": relation}
    for side, kind in (("head", (0, 1, 2)), ("tail", (1, 1, 0))):
        types = [kinds[kind[it]] for it in relation]
        size = np.array([NUM_NODES[it] for it in types])
        offset = np.array([starts[it] for it in types])
        split[side] = rng.integers(1000, size=T) % size
        split[f"{side}_neg"] = rng.integers(1000, size=(T, K)) % size[:, None]
        split[f"{side}_type"] = types
        rows[side] = split[side] + offset
        rows[f"{side}_neg"] = split[f"{side}_neg"] + offset[:, None]
    return split, rows


def scores_of(split):
    """Return scores of a baseline: positives ``[2 T]`` and negatives ``[2 T, K]``, heads first."""
    own = model()
    h, r, t = (torch.as_tensor(split[it]) for it in ("head", "relation", "tail"))
    parts = []
    for heads, tails in (
        (torch.as_tensor(split["head_neg"]), t[:, None]),
        (h[:, None], torch.as_tensor(split["tail_neg"])),
        (h[:, None], t[:, None]),
    ):
        difference = own.entity[heads] + own.relation[r][:, None] - own.entity[tails]
        parts.append(-difference.abs().sum(-1).detach())
    heads, tails, both = parts
    return both[:, 0].repeat(2), torch.cat([heads, tails])


def defined(positive, negative):
    """Return (number greater + number greater or equal) / 2 + 1."""
    above = (negative > positive[:, None]).sum(1)
    return 0.5 * (above + (negative >= positive[:, None]).sum(1)) + 1


def test_the_synthetic_negatives_are_hard_enough():
    split = wikikg2()
    assert (split["tail_neg"] == split["tail"][:, None]).any(), "no positive among its negatives"
    assert any(len(set(row)) < K for row in split["head_neg"].tolist()), "no id is repeated"


@pytest.mark.parametrize("pairs", [1 << 20, 60])
def test_wikikg2_is_ranked_as_ogb_defines_it(backend, pairs, monkeypatch):
    monkeypatch.setattr(ogb_splits, "_PAIRS", pairs)
    found = ogb.evaluate(model(), wikikg2())
    expected = defined(*scores_of(wikikg2()))
    assert torch.equal(found.sampled.realistic.T.flatten(), expected.double())
    assert (found.sampled.num_candidates == K + 1).all()
    assert found.full is None
    assert found.metrics()["mrr"] == pytest.approx(float((1 / expected).mean()))
    lists = found.lists()
    assert torch.equal(lists["mrr_list"], 1 / expected)
    assert torch.equal(lists["hits@3_list"], (expected <= 3).float())


def test_biokg_counts_ids_within_their_type(backend):
    split, rows = biokg()
    found = ogb.evaluate(model(), split, num_nodes=NUM_NODES, full=True)
    expected = defined(*scores_of(rows))
    assert torch.equal(found.sampled.realistic.T.flatten(), expected.double())
    assert found.sampled.triples[:, 0].tolist() == rows["head"].tolist()


def test_full_ranks_are_those_of_rank():
    split = wikikg2()
    known = ogb.known_triples(wikikg2(1), split)
    found = ogb.evaluate(model(), split, full=True, known=known)
    expected = rank(model(), found.sampled.triples, known=known)
    assert found.full is not None
    for one, other in ((found.full, expected), (found.full.raw, expected.raw)):
        assert torch.equal(one.greater, other.greater)
        assert torch.equal(one.equal, other.equal)
        assert torch.equal(one.num_candidates, other.num_candidates)


def test_full_ranks_of_biokg_are_among_the_type():
    split, rows = biokg()
    known = ogb.known_triples(split, num_nodes=NUM_NODES)
    found = ogb.evaluate(model(), split, num_nodes=NUM_NODES, full=True, known=known)
    assert found.full is not None
    sizes = [NUM_NODES[kind] for kind in split["tail_type"]]
    assert found.full.raw.num_candidates[:, 1].tolist() == sizes
    starts = dict(zip(NUM_NODES, [0, 7, 18], strict=True))
    for row, kind in enumerate(split["tail_type"]):
        ids = torch.arange(starts[kind], starts[kind] + NUM_NODES[kind])
        hrt = [[int(rows[it][row]) for it in ("head", "relation", "tail")]]
        alone = rank(model(), hrt, known=known, sides=("tail",), candidate_ids=ids)
        assert found.full.greater[row, 1] == alone.greater[0, 0]
        assert found.full.num_candidates[row, 1] == alone.num_candidates[0, 0]


def test_files_are_read_by_block(tmp_path, monkeypatch):
    """No block of memory-mapped negatives, int64 [T, 500], reads more than its rows."""
    split = wikikg2()
    expected = ogb.evaluate(model(), split)
    for name in ("head_neg", "tail_neg"):
        np.save(tmp_path / f"{name}.npy", split[name])
        split[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    monkeypatch.setattr(ogb_splits, "_PAIRS", 7 * 2 * K)
    found = ogb.evaluate(model(), split, progress=False)
    assert torch.equal(found.sampled.realistic, expected.sampled.realistic)


def test_tensors_serve_as_well_as_arrays():
    split = {name: torch.as_tensor(value) for name, value in wikikg2().items()}
    found = ogb.evaluate(model(), split)
    expected = ogb.evaluate(model(), wikikg2())
    assert torch.equal(found.sampled.realistic, expected.sampled.realistic)


def test_top10_of_wikikg90m(tmp_path):
    generator = torch.Generator().manual_seed(0)
    own = RotatE(torch.randn(40, 6, generator=generator), torch.randn(2, 3, generator=generator))
    hr = np.stack([np.arange(20), np.arange(20) % 2], 1)
    np.save(tmp_path / "val_hr.npy", hr)
    predicted = ogb.predict_top10(own, np.load(tmp_path / "val_hr.npy", mmap_mode="r"))
    assert predicted.shape == (20, 10)
    assert predicted.dtype == np.int32
    tails = torch.arange(20) * 2
    hrt = torch.tensor(np.concatenate([hr, tails[:, None]], 1))
    ranks = rank(own, hrt, sides=("tail",)).realistic[:, 0]
    expected = torch.where(ranks <= 10, 1 / ranks, 0.0).mean()
    assert ogb.top10_mrr(tails, predicted) == pytest.approx(float(expected))
    known = KnownTriples(np.concatenate([hr, predicted[:, :1]], 1))
    assert np.array_equal(ogb.predict_top10(own, hr, known=known)[:, :9], predicted[:, 1:])
    path = ogb.save_submission(predicted, tmp_path / "out", "valid")
    assert np.array_equal(np.load(path)["t_pred_top10"], predicted)
    assert [it.name for it in path.parent.iterdir()] == ["t_pred_wikikg90m-v2_valid.npz"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"tail_neg": None}, KeyError, "the split lacks 'tail_neg', and has head"),
        (
            {"tail_neg": np.zeros((3, 2), int)},
            ValueError,
            "tail_neg must have a row for each of 30",
        ),
        ({"tail_neg": np.zeros((T, 2))}, TypeError, "tail_neg must be integers"),
        ({"tail_neg": np.full((T, 2), N)}, ValueError, r"tail_neg\[0, 0\] must be in 0 .. 23"),
        ({"head_neg": np.full((T, 2), -1)}, ValueError, r"head_neg\[0, 0\] must be in 0 .. 23"),
        ({"tail": np.zeros(3, int)}, ValueError, "tail must have one id for each of 30"),
        ({"tail": np.full(T, N)}, ValueError, "must be in 0..23"),
        ({"head_type": ["drug"] * T}, ValueError, "the split has head_type.*num_nodes="),
        ({"head": np.zeros((1, T), int)}, ValueError, r"head must have one axis; .*\[1, 30\]"),
        ({"relation": np.array(0)}, ValueError, r"relation must have one axis; got shape \[\]"),
        ({"head_neg": [[1], [2, 3]] * 15}, ValueError, "head_neg must have a row for each of 30"),
        ({"head_neg": np.zeros(T, int)}, ValueError, "head_neg must have a row for each of 30"),
    ],
)
def test_splits_that_are_refused(change, error, message):
    split = {name: it for name, it in (wikikg2() | change).items() if it is not None}
    with pytest.raises(error, match=message):
        ogb.evaluate(model(), split)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_type": ["gene"] * T}, r"head_type\[0\] must be one of disease, .* 'gene'"),
        ({"head_type": ["drug"]}, "head_type must name a type for each of 30"),
        ({"tail": np.full(T, 15)}, r"tail\[0\] must be in 0 .. 10, as type 'drug'"),
        ({"tail_neg": np.full((T, 2), 15)}, r"tail_neg\[0, 0\] must be in 0 .. 10, as type"),
    ],
)
def test_types_that_are_refused(change, message):
    split = biokg()[0]
    split["relation"][0], split["head"][0], split["tail_type"][0] = 0, 0, "drug"
    split["head_type"][0] = "disease"
    with pytest.raises(ValueError, match=message):
        ogb.evaluate(model(), split | change, num_nodes=NUM_NODES)


@pytest.mark.parametrize("name", ["head", "relation", "tail"])
def test_ids_that_are_none_are_named(name):
    with pytest.raises(ValueError, match=f"{name} must be ids of one axis; got None"):
        ogb.evaluate(model(), wikikg2() | {name: None})


@pytest.mark.parametrize("full", [False, True])
def test_an_empty_split_is_named(full):
    empty = {name: ids[:0] for name, ids in wikikg2().items()}
    with pytest.raises(ValueError, match="head is empty: there is nothing to rank"):
        ogb.evaluate(model(), empty, full=full)
    assert len(ogb.known_triples(empty)) == 0


def test_no_splits_are_named():
    for split in (None, [1, 2], "x"):
        for call in (lambda it: ogb.evaluate(model(), it), ogb.known_triples):
            with pytest.raises(ValueError, match="split must be a mapping"):
                call(split)
    for counts in (3, {"drug": "x"}, {"drug": -1}, ["drug"]):
        with pytest.raises(ValueError, match="num_nodes must map names of types to numbers"):
            ogb.evaluate(model(), biokg()[0], num_nodes=counts)
    for types in (None, 3, [["drug"]] * T):
        with pytest.raises(ValueError, match="head_type"):
            ogb.evaluate(model(), biokg()[0] | {"head_type": types}, num_nodes=NUM_NODES)


def test_arrays_of_negative_strides():
    split = wikikg2()
    turned = {name: np.asarray(ids)[::-1] for name, ids in split.items()}
    expected, found = (ogb.evaluate(model(), it).sampled for it in (split, turned))
    assert torch.equal(found.greater, expected.greater.flip(0))
    hr = np.stack([np.arange(9), np.zeros(9, int)], 1)
    first = ogb.predict_top10(model(), hr)
    assert np.array_equal(ogb.predict_top10(model(), hr[::-1]), first[::-1])
    tails = np.arange(9)
    assert ogb.top10_mrr(tails[::-1], first[::-1]) == ogb.top10_mrr(tails, first)


def test_nodes_of_another_graph_are_refused():
    with pytest.raises(ValueError, match="12 nodes of all types, but the model has 24 entities"):
        ogb.evaluate(model(), biokg()[0], num_nodes={"drug": 12})


def test_submissions_that_are_refused(tmp_path):
    good = np.tile(np.arange(10), (4, 1))
    for predictions, mode, message in (
        (good, "test", "mode must be one of valid, test-dev"),
        (good, "test-dev", "test-dev has 15,000 queries; got predictions of 4"),
        (good[:, :9], "valid", r"must have shape \[T, 10\]"),
        (np.zeros((4, 10), int), "valid", r"predictions\[0\] repeat an id"),
    ):
        with pytest.raises(ValueError, match=message):
            ogb.save_submission(predictions, tmp_path, mode)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match=r"tails must have shape \[4\]"):
        ogb.top10_mrr([1], good)
    with pytest.raises(ValueError, match=r"hr must have shape \[T, 2\]"):
        ogb.predict_top10(model(), [1, 2])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ogbl-wikikg2", "ogbl-biokg"])
def test_the_evaluator_of_ogb_agrees(name):
    evaluator = pytest.importorskip("ogb.linkproppred").Evaluator(name=name)
    split, options = wikikg2(num_negatives=500), {}
    rows = split
    if name == "ogbl-biokg":
        (split, rows), options = biokg(), {"num_nodes": NUM_NODES}
    positive, negative = scores_of(rows)
    expected = evaluator.eval({"y_pred_pos": positive, "y_pred_neg": negative})
    found = ogb.evaluate(model(), split, **options).lists()
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert torch.equal(found[key], values), key


@pytest.mark.slow
def test_the_evaluator_of_wikikg90m_agrees(tmp_path):
    lsc = pytest.importorskip("ogb.lsc")
    predicted, tails = (
        ogb.predict_top10(model(), np.stack([np.arange(N), np.arange(N) % R], 1)),
        None,
    )
    tails = torch.arange(N).flip(0)
    given = {"h,r->t": {"t_pred_top10": predicted, "t": tails}}
    expected = lsc.WikiKG90Mv2Evaluator().eval(given)["mrr"]
    assert ogb.top10_mrr(tails, predicted) == pytest.approx(expected, rel=1e-6)
    many = np.tile(predicted[:1], (15_000, 1))
    lsc.WikiKG90Mv2Evaluator().save_test_submission(
        {"h,r->t": {"t_pred_top10": many}}, str(tmp_path / "theirs"), "test-dev"
    )
    path = ogb.save_submission(many, tmp_path / "ours", "test-dev")
    theirs = tmp_path / "theirs" / path.name
    assert np.array_equal(np.load(theirs)["t_pred_top10"], np.load(path)["t_pred_top10"])


def test_of_a_table_in_a_file(tmp_path):
    own, split = model(), wikikg2()
    np.save(tmp_path / "e.npy", own.entity.detach().numpy())
    stored = own.with_entity(tables.open(tmp_path / "e.npy"))
    found, expected = (ogb.evaluate(it, split, full=True) for it in (stored, own))
    for kind in ("sampled", "full"):
        assert torch.equal(getattr(found, kind).greater, getattr(expected, kind).greater)
    hr = np.stack([split["head"], split["relation"]], 1)
    limits = {"max_memory": "8 KiB", "partial": tmp_path / "top"}
    assert np.array_equal(ogb.predict_top10(stored, hr, **limits), ogb.predict_top10(own, hr))
