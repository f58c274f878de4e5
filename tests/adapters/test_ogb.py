"""OGB's protocols, on data of the same format: against its definition, and its own evaluator."""

import numpy as np
import pytest
import torch

from kgfast import TransE, tables
from kgfast.adapters import ogb

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


@pytest.mark.parametrize("pairs", [1 << 20, 60])
def test_wikikg2_is_ranked_as_ogb_defines_it(backend, pairs, monkeypatch):
    monkeypatch.setattr(ogb, "_PAIRS", pairs)
    found = ogb.evaluate(model(), wikikg2())
    expected = defined(*scores_of(wikikg2()))
    assert torch.equal(found.realistic.T.flatten(), expected.double())
    assert (found.num_candidates == K + 1).all()
    assert found.metrics()["mrr"] == pytest.approx(float((1 / expected).mean()))
    lists = ogb.lists(found)
    assert torch.equal(lists["mrr_list"], 1 / expected)
    assert torch.equal(lists["hits@3_list"], (expected <= 3).float())


def test_biokg_counts_ids_within_their_type(backend):
    split, rows = biokg()
    found = ogb.evaluate(model(), split, num_nodes=NUM_NODES)
    expected = defined(*scores_of(rows))
    assert torch.equal(found.realistic.T.flatten(), expected.double())
    assert found.triples[:, 0].tolist() == rows["head"].tolist()


def test_files_are_read_by_block(tmp_path, monkeypatch):
    """No block of memory-mapped negatives, int64 [T, 500], reads more than its rows."""
    split = wikikg2()
    expected = ogb.evaluate(model(), split)
    for name in ("head_neg", "tail_neg"):
        np.save(tmp_path / f"{name}.npy", split[name])
        split[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    monkeypatch.setattr(ogb, "_PAIRS", 7 * 2 * K)
    found = ogb.evaluate(model(), split, progress=False)
    assert torch.equal(found.realistic, expected.realistic)


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
        ({"tail": np.full(T, N)}, ValueError, r"tail\[0\] must be in 0 .. 23, as the model"),
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


def test_empty_and_no_splits_are_named():
    with pytest.raises(ValueError, match="head is empty: there is nothing to rank"):
        ogb.evaluate(model(), {name: ids[:0] for name, ids in wikikg2().items()})
    for split in (None, [1, 2], "x"):
        with pytest.raises(ValueError, match="split must be a mapping"):
            ogb.evaluate(model(), split)
    for counts in (3, {"drug": "x"}, {"drug": -1}, ["drug"]):
        with pytest.raises(ValueError, match="num_nodes must map names of types to numbers"):
            ogb.evaluate(model(), biokg()[0], num_nodes=counts)
    for types in (None, 3, [["drug"]] * T):
        with pytest.raises(ValueError, match="head_type"):
            ogb.evaluate(model(), biokg()[0] | {"head_type": types}, num_nodes=NUM_NODES)


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
    found = ogb.lists(ogb.evaluate(model(), split, **options))
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert torch.equal(found[key], values), key


def test_of_a_table_in_a_file(tmp_path):
    np.save(tmp_path / "e.npy", model().entity.detach().numpy())
    stored = model().with_entity(tables.open(tmp_path / "e.npy"))
    found, expected = (ogb.evaluate(it, wikikg2()) for it in (stored, model()))
    assert torch.equal(found.greater, expected.greater)
