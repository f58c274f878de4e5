"""The table of metrics: a new line of it reaches every front."""

import pytest
import torch

import kgfast
from kgfast.eval import metrics
from kgfast.eval.metrics import Chance, Metric, hits_at, metric_named, moments_of_ranks
from kgfast.extras.report import write_report
from support.commands import run
from support.small_runs import GRAPH, config_of, trainer_of

# One metric of each kind, and hits@5 beside the default k.
NEW = (
    Metric("mean_square", lambda ranks: ranks.square(), lower_is_better=True, decimals=0),
    Metric(
        "half_amr", torch.clone, Chance(moments_of_ranks, lambda mean, random, _: mean / random / 2)
    ),
    hits_at(5),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run"
    trainer_of(path, train={"steps": 4, "eval_every": 2}).fit()
    return path


def test_a_new_line_reaches_every_front(folder, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(metrics, "METRICS", (*metrics.METRICS, *NEW))
    names = [metric.name for metric in NEW]
    loaded = kgfast.load_run(folder, GRAPH)
    ranks = kgfast.rank(loaded.model, GRAPH.test, known=GRAPH.known())
    values = ranks.metrics()
    cells = ranks.realistic.flatten()
    assert values["mean_square"] == pytest.approx(float(cells.square().mean()))
    assert values["half_amr"] == pytest.approx(values["amr"] / 2)
    assert values["hits@5"] == ranks.hits(5)
    assert ranks.metrics(hits=(k for k in (5,)))["hits@5"] == ranks.hits(5)
    intervals = ranks.intervals(samples=20)
    assert list(intervals) == list(metrics.in_tables(values))
    for name in names:
        assert intervals[name].value == values[name]
        assert intervals[name].low < intervals[name].high
        assert name in ranks.by("relation").macro()
        assert all(name in of for of in ranks.by("relation").metrics().values())
        assert name in repr(ranks.by("relation"))
        assert name in repr(ranks)
        train = config_of(train={"save_best_metric": name}).train
        assert train.save_best_metric == name
    compared = kgfast.compare(ranks, ranks, samples=20)
    assert {"mean_square", "hits@5"} <= set(compared)
    assert metric_named("mean_square").lower_is_better
    page = write_report(folder, data=GRAPH, samples=20).read_text()
    shown = run("evaluate", folder).stdout
    for name in names:
        assert f"<th>{name}</th>" in page
        assert name in shown


def test_hits_of_any_k_and_names_that_are_none():
    names = [metric.name for metric in metrics.metrics_with((7,))]
    assert names[3:] == ["hits@7", "amr", "amri", "amrr", "ahits@7", "z_mr", "z_mrr", "z_hits@7"]
    assert not metric_named("hits@7").lower_is_better
    for name in ("hits@0", "hits@x", "mmr", ""):
        with pytest.raises(ValueError, match=r"must be mrr, mr, .* or hits@K, such as hits@10"):
            metric_named(name)
