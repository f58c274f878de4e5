"""train_speed.py in its smoke-test size: equal work, equal losses, what it writes and refuses."""

import json

import pytest
import torch

from support.sampled import threads


@pytest.mark.slow
def test_train_speed_writes_what_it_measured(call, load, monkeypatch, tmp_path):
    train_speed = load("train_speed")
    result = tmp_path / "train.json"
    words = ["--quick", "--threads", "1", "--json", result]
    in_child = train_speed.in_child

    def measured(function, name, *rest):
        """Only kgfast's memory in a process of its own: a start takes seconds."""
        return in_child(function, name, *rest) if name == "kgfast" else function(name, *rest)

    monkeypatch.setattr(train_speed, "in_child", measured)
    with threads(1):
        assert call("train_speed.py", *words).returncode == 0
    both = json.loads(result.read_text())["rows"]
    rows = [row for row in both if row["benchmark"] == "train_speed"]
    assert len(rows) == 8
    for row in rows:
        assert row["loss_difference"] < 1e-4
    ran = [row for row in rows if row["seconds"]]
    assert {row["contender"] for row in ran} >= {"kgfast", "plain torch"}
    for row in ran:
        assert row["triples_per_s"] == pytest.approx(64 * row["steps_per_s"])
        if not row["contender"].endswith("compiled"):
            assert (row["contender"] == "kgfast") <= row["memory"]["bytes"] < 500e6
    epochs = [row for row in both if row["benchmark"] == "epoch_speed"]
    assert len(epochs) == 8
    for row in epochs:
        assert row["loss_difference"] < 1e-4
    # LCWA asks equal pairs once
    assert epochs[-2]["queries"] == epochs[-1]["queries"] < epochs[0]["queries"] == 2 * 1200


def test_rows_of_other_sections_stay_in_the_file(load, tmp_path):
    benchmark, result = load("train_speed").BENCHMARK, tmp_path / "train.json"
    old, new = {"benchmark": "train_speed", "old": True}, {"benchmark": "epoch_speed"}
    words = ["--quick", "--json", str(result), "--sections"]
    for sections, stays in ((["epochs"], [old]), (["epochs", "negatives"], [])):
        result.write_text(json.dumps({"rows": [old, new | {"old": True}]}))
        benchmark._write(benchmark.parse([*words, *sections]), [new])
        assert json.loads(result.read_text())["rows"] == [*stays, new]


def test_peers_of_an_epoch_have_the_same_losses(load):
    peers = load("lib.peers.epochs")
    work = peers.Work((60, 4, 150, 0, 0), 8, 32)
    assert peers.loss_difference(work) < 1e-5
    dense = peers.Dense(work)
    first, second = (dense.batches.batch(number) for number in (0, 1))
    before = dense.loss(first).item()
    dense.steps(1)
    assert dense.loss(first).item() < before
    assert max(first.relations.max(), second.relations.max()) >= 4, "no inverses"


def test_parts_of_a_batch_are_the_batch(load):
    peers = load("lib.peers.steps")
    work = peers.Work((60, 4, 150, 0, 0), 8, 32, 16)
    whole, parts = peers.Plain(work, 32), peers.Plain(work, 5, is_tuned=True)
    assert parts.backward(1) == pytest.approx(whole.backward(1), rel=1e-5)
    for name in ("entity", "relation"):  # tuned: gradients of rows
        sparse, dense = (getattr(it.model, name).grad for it in (parts, whole))
        torch.testing.assert_close(sparse.to_dense(), dense)
