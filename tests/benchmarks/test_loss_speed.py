"""The benchmark of losses beside torch's own, in its smoke-test sizes."""

import pytest

import kgfast

WORKS = (
    *("bce dot", "bce rotate", "cross entropy dot", "smoothed cross entropy dot"),
    "1-vs-all, batch 9",
)


@pytest.mark.slow
def test_loss_speed_writes_what_it_measured(quick):
    found = quick("loss_speed", "--rounds", 1)
    assert {row["section"] for row in found.rows} == set(WORKS)
    for row in found.rows:
        if row["seconds"] is None:
            assert row["contender"] == "kgfast_bf16"
            assert "no bf16" in row["note"]
    assert found.ratios


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_peers_compute_the_same_cross_entropy(load, smoothing):
    peers = load("lib.peers.losses")
    work = peers.Work.random("dot", 7, 30, 4, "cpu")
    work.smoothing = smoothing
    ours = peers.kgfast_cross_entropy(work)()
    gradients = work.queries.grad.clone(), work.table.grad.clone()
    others = [peers.dense_cross_entropy(work)]
    if peers.has_linear_cross_entropy():
        others.append(peers.linear_cross_entropy(work))
    for other in others:
        assert other() == pytest.approx(ours, rel=1e-5)
        for a, b in zip(gradients, (work.queries.grad, work.table.grad), strict=True):
            assert float((a - b).abs().max()) <= 1e-5 * float(a.abs().max())


def test_a_contender_that_fails_leaves_the_others(load, monkeypatch):
    script, peers = load("loss_speed"), load("lib.peers.losses")

    def broken(work, compile=False):
        def run() -> float:
            raise RuntimeError("out of memory\nat line 3")

        return run

    monkeypatch.setattr(peers, "dense_cross_entropy", broken)
    options = script.BENCHMARK.parse(["--quick", "--rounds", "1"])
    rows = script.race("cross entropy dot", ("dot", 4, 20, 6, 0.0), options)
    found = {row["contender"]: row for row in rows}
    assert found["eager"]["seconds"] is None
    assert found["eager"]["note"] == "RuntimeError: out of memory"
    assert found["kgfast"]["seconds"]["median"] > 0
    assert ("linear" in found) == peers.has_linear_cross_entropy()


def test_a_step_is_held_against_its_matrix_products(load):
    script = load("loss_speed")
    options = script.BENCHMARK.parse(["--quick", "--rounds", "1"])
    rows = script.race("1-vs-all, batch 4", ("dot", 4, 20, 6, 0.0), options)
    names = ["kgfast", "products", "kgfast_bf16", "eager_bf16", "eager"]
    assert [row["contender"] for row in rows] == names
    found = {row["contender"]: row for row in rows}
    assert found["kgfast"]["loss"] == pytest.approx(found["eager"]["loss"])
    assert found["eager_bf16"]["loss"] == pytest.approx(found["eager"]["loss"], rel=0.01)
    has_bf16 = "bf16" in kgfast.info().precisions
    assert (found["kgfast_bf16"]["seconds"] is not None) == has_bf16
    if has_bf16:
        assert found["kgfast_bf16"]["loss"] == pytest.approx(found["eager"]["loss"], rel=0.01)
    lines = list(script.ratios(rows))
    assert len(lines) == 2 + 2 * has_bf16
    assert "three matrix products" in str(lines[0])
