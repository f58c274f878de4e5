"""Ranks of tkgl-* data sets: py-tgb's evaluation, written as loops, and py-tgb itself."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import kgfast
from kgfast.adapters import tgb
from support.overlay import run_tests_with

N, R, STAMPS = 15, 3, (20100101, 20100102, 20100105, 20100110, 20100111)


def source_of(seed=0):
    """Return what py-tgb's LinkPropPredDataset holds: quads, then their inverses, and masks."""
    generator = np.random.default_rng(seed)
    count = 120
    heads, tails = generator.integers(0, N, (2, count))
    relations = np.concatenate([np.arange(R), generator.integers(0, R, count - R)])
    ids = {}  # nodes are numbered as they come
    for ends in zip(heads.tolist(), tails.tolist(), strict=True):
        for end in ends:
            ids.setdefault(end, len(ids))
    heads, tails = (np.array([ids[end] for end in ends.tolist()]) for ends in (heads, tails))
    assert len(ids) == N
    stamps = np.repeat(STAMPS, [40, 25, 25, 15, 15])
    full_data = {
        "sources": np.concatenate([heads, tails]),
        "destinations": np.concatenate([tails, heads]),
        "timestamps": np.concatenate([stamps, stamps]),
        "edge_type": np.concatenate([relations, relations + R]),
    }
    stamps = full_data["timestamps"]
    first, last = np.quantile(stamps, [0.7, 0.85])
    masks = {"train_mask": stamps <= first, "test_mask": stamps > last}
    masks["val_mask"] = ~(masks["train_mask"] | masks["test_mask"])
    return SimpleNamespace(full_data=full_data, **masks)


def model_of(seed=0):
    """Return a model with inverse relations and equal rows, so that scores tie."""
    model = kgfast.TNTComplEx.init(N, 2 * R, 2, num_times=len(STAMPS), seed=seed)
    with torch.no_grad():
        model.entity[5:9] = model.entity[5]
    return kgfast.Reciprocal(model, "appended")


def scores_of(model, head, relation, time):
    """Return the scores of all tails, of a relation or an inverse."""
    pair = torch.tensor([relation * len(STAMPS) + time])
    queries = model.model.queries(torch.tensor([head]), pair, "tail").double()
    return (queries * model.model.entity.double()).sum(1).detach().numpy()


def evaluated(source, mask, rank_of):
    """Return realistic ranks of the quads of a mask, in py-tgb's order of quads and inverses."""
    data = source.full_data
    columns = ("sources", "edge_type", "destinations", "timestamps")
    return [
        rank_of(*row) for row in zip(*(data[name][mask].tolist() for name in columns), strict=True)
    ]


@pytest.mark.parametrize("split", ["valid", "test"])
def test_ranks_are_those_of_a_loop(split, tmp_path):
    source, model = source_of(), model_of()
    folder = write_csv(tmp_path / "tkgl_icews", source).parent
    mask = source.val_mask if split == "valid" else source.test_mask
    answers = {}
    evaluated(source, mask, lambda h, r, t, at: answers.setdefault((h, r, at), set()).add(t))

    def rank_of(head, relation, tail, stamp):
        scores = scores_of(model, head, relation, STAMPS.index(stamp))
        others = [scores[it] for it in range(N) if it not in answers[head, relation, stamp]]
        greater = sum(it > scores[tail] for it in others)
        return 1 + greater + sum(it == scores[tail] for it in others) / 2

    tails, heads = np.split(np.array(evaluated(source, mask, rank_of)), 2)
    ranks = tgb.evaluate(model, folder, split)
    assert ranks.side("tail").realistic[:, 0].tolist() == tails.tolist()
    assert ranks.side("head").realistic[:, 0].tolist() == heads.tolist()
    assert (ranks.realistic % 1 == 0.5).any()
    assert list(ranks.by("time")) == [str(STAMPS[3 if split == "valid" else 4])]
    by_name = tgb.evaluate(model, SimpleNamespace(root=str(folder)), split)
    assert torch.equal(by_name.greater, ranks.greater)
    data = kgfast.datasets.load(folder)
    same = kgfast.rank(model, data.split(split), known=data.known())
    assert torch.equal(same.greater, ranks.greater)


def write_csv(folder, source, header="timestamp"):
    """Write the file of which py-tgb makes such a source: quads without inverses."""
    folder.mkdir()
    names = ("timestamps", "sources", "destinations", "edge_type")
    rows = zip(*(source.full_data[name][:120].tolist() for name in names), strict=True)
    lines = [f"{header},head,tail,relation_type", *(",".join(map(str, row)) for row in rows)]
    file = folder / "tkgl-icews_edgelist.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_a_file_of_edges_has_the_ids_and_splits_of_the_data_set(tmp_path):
    source = source_of()
    file = write_csv(tmp_path / "tkgl_icews", source, "date")
    read, data = kgfast.datasets.load(file.parent), source.full_data
    columns = [data[name][:120] for name in ("sources", "edge_type", "destinations", "timestamps")]
    columns[3] = np.searchsorted(STAMPS, columns[3])
    quads = torch.from_numpy(np.stack(columns, 1))
    masks = {"train": source.train_mask, "valid": source.val_mask, "test": source.test_mask}
    for split, mask in masks.items():
        assert torch.equal(read.split(split).quads, quads[torch.from_numpy(mask[:120])])
    assert read.relations.columns[1].names == tuple(map(str, STAMPS))
    text = file.read_text()
    bad = {text + f"{stamp},1,2,3\n": ":122: expected timestamp" for stamp in ("--5", "9" * 20)}
    for content, message in (bad | {text.splitlines()[0]: "holds no quads"}).items():
        file.write_text(content)
        with pytest.raises(ValueError, match=f"edgelist.csv.*{message}"):
            kgfast.datasets.load(file.parent)
    file.write_text(text + "20110101,3,4\n")
    with pytest.raises(
        ValueError, match=r"csv:122: expected timestamp, head, tail and relation_ty"
    ):
        kgfast.datasets.load(file.parent)


def test_other_objects_are_refused(tmp_path):
    with pytest.raises(TypeError, match="must be a tgb LinkPropPredDataset; got dict"):
        tgb.evaluate(model_of(), {})
    (tmp_path / "tkgl-wikidata_edgelist.csv").touch()
    with pytest.raises(NotImplementedError, match="draws candidates of tkgl-wikidata"):
        tgb.evaluate(model_of(), tmp_path)


@pytest.mark.parametrize("seed", [0, 1])
def test_real_tgb_has_the_same_metrics(seed, tmp_path):
    """py-tgb's own sampler of negatives and evaluator, on the quads of a split."""
    pytest.importorskip("tgb")
    from tgb.linkproppred.evaluate import Evaluator
    from tgb.linkproppred.tkg_negative_sampler import TKGNegativeEdgeSampler
    from tgb.utils.utils import save_pkl

    source, model = source_of(seed=seed), model_of(seed)
    mask, data = source.test_mask, source.full_data
    answers = {}
    evaluated(source, mask, lambda h, r, t, at: answers.setdefault((at, h, r), {}).setdefault(t))
    file = str(tmp_path / "tkgl-icews_test_ns.pkl")
    save_pkl({key: np.array(list(tails)) for key, tails in answers.items()}, file)
    ends = int(data["destinations"].min()), int(data["destinations"].max())
    sampler, evaluator = TKGNegativeEdgeSampler("tkgl-icews", *ends), Evaluator("tkgl-icews")
    sampler.load_eval_set(file, "test")

    def result_of(head, relation, tail, stamp):
        query = (np.array([value]) for value in (head, tail, stamp, relation))
        (negatives,) = sampler.query_batch(*query, split_mode="test")
        scores = scores_of(model, head, relation, STAMPS.index(stamp))
        both = {"y_pred_pos": scores[[tail]], "y_pred_neg": scores[negatives]}
        return evaluator.eval({**both, "eval_metric": ["mrr", "hits@"]})

    results = evaluated(source, mask, result_of)
    ranks = tgb.evaluate(model, write_csv(tmp_path / "tkgl_icews", source).parent)
    assert ranks.mrr == pytest.approx(np.mean([it["mrr"] for it in results]), rel=1e-6)
    hits = np.mean([it["hits@10"] for it in results])
    assert ranks.hits(10) == pytest.approx(hits, rel=1e-6)


def test_real_tgb_reads_the_same_ids(tmp_path):
    pytest.importorskip("tgb")
    from tgb.utils.pre_process import csv_to_tkg_data

    file = write_csv(tmp_path / "tkgl_icews", source_of(seed=2))
    frame = csv_to_tkg_data(str(file))[0]
    theirs = [frame[name].astype(int).to_numpy() for name in ("u", "edge_type", "i", "ts")]
    read = kgfast.datasets.load(file.parent)
    quads = torch.cat([read.train.quads, read.valid.quads, read.test.quads]).numpy()
    theirs[3] = np.unique(theirs[3], return_inverse=True)[1]
    assert sorted(map(tuple, quads.tolist())) == sorted(
        zip(*map(np.ndarray.tolist, theirs), strict=True)
    )


@pytest.mark.slow  # installs py-tgb into an environment of its own
def test_with_tgb_itself(tmp_path):
    run_tests_with(tmp_path / "environment", "tests/adapters/test_tgb.py", "py-tgb==2.3.0")
