"""The example of path-star graphs: the family, the GPT with the head, training, the bench."""

import json
import subprocess
import sys
from itertools import pairwise

import pytest
import torch

from support.examples import PATH_STAR, load
from support.paths import ROOT

star, gpt, train = (load(f"path_star.{name}") for name in ("star", "gpt", "train"))
SMALL = *PATH_STAR, "max_batches=6"


def config_of(*changes):
    return train.read_config(train.CONFIG, [*SMALL, *changes])


def test_the_config_is_the_report_as_it_was():
    config = train.read_config(train.CONFIG, [])
    assert (config.graph_d, config.graph_vocab_size, config.n_embd) == (5000, 10_000_000, 64)
    paths = config.graph_d * (1 - config.graph_holdout_percentage)
    assert paths * config.graph_replicas == 40_000


class TestStar:
    made = star.Star.make(7, 4, 1000, 0.3, seed=2)

    def test_its_nodes(self):
        arms = self.made.arms
        assert arms.shape == (7, 4)
        assert len(arms[:, 0].unique()) == 1
        assert len(self.made.nodes) == 7 * (4 - 1) + 1
        assert self.made.asks not in self.made.nodes
        assert 0 <= int(self.made.nodes[0]) <= int(self.made.nodes[-1]) < 1000

    def test_its_samples(self):
        shown, held = (self.made.paths(held_out=it) for it in (False, True))
        assert (len(shown), len(held)) == (5, 2)
        for paths in (shown, held):
            assert torch.equal(paths[:, 0], paths[:, -1])
            assert (paths[:, 1] == self.made.asks).all()
        both = torch.cat([shown, held])[:, 2:]
        assert sorted(both.tolist()) == sorted(self.made.arms.tolist())

    def test_its_edges(self):
        expected = set()
        for arm in self.made.arms.tolist():
            for a, b in pairwise(arm):
                expected |= {(a, b), (b, a)}
        edges = [tuple(it) for it in self.made.edges().tolist()]
        assert len(edges) == len(set(edges)) == 2 * 7 * 3
        assert set(edges) == expected

    def test_it_is_a_function_of_its_seed(self):
        same, other = (star.Star.make(7, 4, 1000, 0.3, seed=it) for it in (2, 3))
        assert torch.equal(self.made.arms, same.arms)
        assert torch.equal(self.made.held_out, same.held_out)
        assert not torch.equal(self.made.arms, other.arms)

    def test_a_vocabulary_of_exactly_its_tokens(self):
        full = star.Star.make(7, 4, 23, 0.0, seed=0)
        assert len(full.nodes) == 22
        assert not full.held_out.any()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((0, 4, 99, 0.5), "graph_d and graph_l must be at least 1 and 2"),
            ((3, 1, 99, 0.5), "graph_d and graph_l must be at least 1 and 2"),
            ((7, 4, 22, 0.5), "graph_vocab_size must be above 22"),
            ((7, 4, 99, 1.0), "graph_holdout_percentage must be in"),
            ((1, 4, 99, 0.9), "graph_holdout_percentage must be in"),
        ],
    )
    def test_stars_that_cannot_be(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            star.Star.make(*arguments, seed=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("graph_depth=3", "graph_depth: no such key"),
        ("loss=softmax", "loss must be one of nodes, sampled, full"),
        ("n_embd=0", "n_embd must be above 0; got 0"),
        ("graph_d=2.5", "graph_d must be a number of its kind; got 2.5"),
    ],
)
def test_configs_that_do_not_fit(change, message):
    with pytest.raises(ValueError, match=message):
        config_of(change)


def test_the_trunk_is_causal_and_generation_is_step_by_step():
    config = config_of()
    graph, model = config.star(), config.model()
    samples = graph.paths(held_out=False)
    hidden = model(samples[:, :4])
    torch.testing.assert_close(hidden[:, :2], model(samples[:, :2]))
    torch.testing.assert_close(hidden[:, -1].detach(), model.last_hidden(samples[:, :4]))
    found = model.generate(samples[:, :2], 4, candidate_ids=graph.nodes)
    assert found.shape == samples.shape
    assert torch.isin(found[:, 2:], graph.nodes).all()
    for place in range(2, 6):
        scores = model(found[:, :place])[:, -1] @ model.head.weight[graph.nodes].T
        assert torch.equal(graph.nodes[scores.argmax(1)], found[:, place])
    drawn = model.generate(samples[:, :2], 4, temperature=1.0, top_k=9, seed=5)
    assert torch.equal(drawn, model.generate(samples[:, :2], 4, temperature=1.0, top_k=9, seed=5))
    assert not torch.equal(drawn, found)


@pytest.mark.parametrize("loss", ["nodes", "sampled", "full"])
def test_training_lowers_the_loss(loss):
    config = config_of(f"loss={loss}", "max_batches=25", "learning_rate=0.01")
    losses = list(train.train(config.model(), config.star(), config))
    assert len(losses) == 25
    assert sum(losses[-6:]) < 0.8 * sum(losses[:6])


def test_paths_that_were_shown_are_learned(capsys, tmp_path):
    changes = ["graph_d=4", "max_batches=120", "learning_rate=0.01"]
    arguments = [word for it in (*SMALL, *changes) for word in ("--set", it)]
    assert train.main([*arguments, "--json", str(tmp_path / "run.json")]) == 0
    run = json.loads((tmp_path / "run.json").read_text())["rows"][0]
    assert [it["batch"] for it in run["curve"]] == [100, 120]
    assert run["curve"][1]["loss"] < run["curve"][0]["loss"]
    assert [(it["of"], it["paths"]) for it in run["shares"]] == [("training", 4), ("held out", 2)]
    printed = capsys.readouterr().out
    assert "13 nodes, 400 tokens x 16" in printed
    assert "training: 100.00% of 4 paths are right" in printed
    assert "held out: " in printed


def test_the_command_names_what_is_wrong(capsys):
    with pytest.raises(SystemExit):
        train.main(["--set", "graph_d=99999999"])
    assert "graph_vocab_size must be above" in capsys.readouterr().err


@pytest.mark.slow
def test_the_bench_runs(tmp_path):
    path = tmp_path / "rows.json"
    written = []
    for more in ([], ["--all", "160"], ["--all", "160"]):
        command = ["-m", "examples.path_star.bench", "--quick", "--json", str(path), *more]
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr
        written.append(json.loads(path.read_text())["rows"])
    rows = written[0]
    steps = {f"step, {loss}" for loss in ("nodes", "sampled", "full")}
    assert {row["section"] for row in rows} == {"greedy", "sample", "generate"} | steps
    assert all(row["bytes"] >= 0 and row["seconds"] > 0 for row in rows)
    assert rows[0]["command"] == "python -m examples.path_star.bench --quick --json rows.json"
    assert [row["section"] for row in rows[:2]] == ["greedy", "sample"]
    for more in written[1:]:  # rows measured anew are there once, all others stay
        assert more[:-2] == rows[2:]
        assert [(row["section"], row["samples"]) for row in more[-2:]] == [
            ("greedy", 160),
            ("sample", 160),
        ]
