"""The benchmark of losses, in its smoke-test sizes."""

import pytest


@pytest.mark.slow
def test_loss_mem_writes_what_it_measured(measured, load, tmp_path):
    rows = measured("loss_mem.py", "--rounds", 1)
    assert {row["section"] for row in rows} == {*load("loss_mem").RACES, "bce"}
    for row in rows:
        assert row["seconds"] is not None
    dense = [row for row in rows if row["section"] == "bce"]
    ours, theirs = (row["loss"] for row in dense)
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert dense[0]["formula"] == {"dense": 6_400}
    text = (tmp_path / "found.json").read_text()
    assert str(tmp_path) not in text


def assert_near(gradients, others, divisor=1):
    for one, other in zip(gradients, others, strict=True):
        assert float((one - other / divisor).abs().max()) <= 1e-5 * float(one.abs().max())


def test_peers_compute_the_same(load):
    peers = load("lib.peers.losses")
    for score in ("dot", "rotate"):
        work = peers.Work.random(score, 6, 20, 5, "cpu")
        ours = peers.kgfast_bce(work)()
        gradients = work.queries.grad.clone(), work.table.grad.clone()
        dense = peers.dense_bce(work) if score == "dot" else peers.part_of_rotate_bce(work, 7)
        divisor = 1 if score == "dot" else 6 * 20  # a part's loss is a sum
        assert dense() / divisor == pytest.approx(ours, rel=1e-5)
        assert_near(gradients, (work.queries.grad, work.table.grad), divisor)


@pytest.mark.parametrize("per_query", [None, 3])
def test_sampled_scores_are_the_same(load, per_query, monkeypatch):
    peers = load("lib.peers.losses")
    work = peers.Work.random("rotate", 6, 20, 5, "cpu")
    found = {}
    for size in (1, 4, 6):  # chunks that are equal, uneven, or the whole
        monkeypatch.setattr(peers, "QUERY_CHUNKS", (size,))
        for name, contender in peers.sampled_contenders(work, per_query, compile=False).items():
            own = contender(), work.queries.grad.clone(), work.table.grad.clone()
            first = found.setdefault("kgfast", own)
            assert own[0] == pytest.approx(first[0], rel=1e-5), (name, size)
            assert_near(first[1:], own[1:])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_peers_compute_the_same_cross_entropy(load, smoothing):
    peers = load("lib.peers.losses")
    work = peers.Work.random("dot", 7, 30, 4, "cpu")
    work.smoothing = smoothing
    ours = peers.kgfast_cross_entropy(work)()
    gradients = work.queries.grad.clone(), work.table.grad.clone()
    others = [peers.dense_cross_entropy(work)]
    if hasattr(peers.functional, "linear_cross_entropy"):
        others.append(peers.linear_cross_entropy(work))
    for other in others:
        assert other() == pytest.approx(ours, rel=1e-5)
        assert_near(gradients, (work.queries.grad, work.table.grad))


def test_a_contender_that_fails_leaves_the_others(load, monkeypatch):
    script, peers = load("loss_mem"), load("lib.peers.losses")

    def broken(work, compile=False):
        def run():
            raise RuntimeError("out of memory\nat line 3")

        return run

    monkeypatch.setattr(peers, "dense_cross_entropy", broken)
    options = script.BENCHMARK.parse(["--quick", "--rounds", "1"])
    rows = script.race("cross entropy dot", ("dot", 4, 20, 6, None), options)
    found = {row["contender"]: row for row in rows}
    assert found["eager"]["seconds"] is None
    assert found["eager"]["note"] == "RuntimeError: out of memory"
    assert found["kgfast"]["seconds"]["median"] > 0
    assert ("linear" in found) == hasattr(peers.functional, "linear_cross_entropy")


def test_a_step_is_held_against_its_matrix_products(load):
    script = load("loss_mem")
    options = script.BENCHMARK.parse(["--quick", "--rounds", "1"])
    rows = script.race("1-vs-all, batch 4", ("dot", 4, 20, 6, None), options)
    names = ["kgfast", "products", "eager_bf16", "eager"]
    assert [row["contender"] for row in rows] == names
    found = {row["contender"]: row for row in rows}
    assert found["kgfast"]["loss"] == pytest.approx(found["eager"]["loss"])
    assert found["eager_bf16"]["loss"] == pytest.approx(found["eager"]["loss"], rel=0.01)
