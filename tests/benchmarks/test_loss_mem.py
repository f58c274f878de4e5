"""The benchmark of losses, in its smoke-test sizes."""

import pytest


@pytest.mark.slow
def test_loss_mem_writes_what_it_measured(quick):
    found = quick("loss_mem", "--rounds", 1)
    races = {"pairwise", "indexed", "bce dot", "bce rotate"}
    assert {row["section"] for row in found.rows} == races | {"bce", "head", "top"}
    bce = [row for row in found.rows if row["section"] == "bce"]
    dense, rotate = ([row for row in bce if row["score"] == it] for it in ("dot", "rotate"))
    ours, theirs = (row["loss"] for row in dense)
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert dense[0]["formula"] == {"dense": 6_400}
    assert rotate[0]["formula"] == {"dense": 6_400, "tensor": 19_200}
    assert len(found.ratios) == 4


def test_peers_compute_the_same(load):
    peers = load("lib.peers.losses")
    for score in ("dot", "rotate"):
        work = peers.Work.random(score, 6, 20, 5, "cpu")
        ours = peers.kgfast_bce(work)()
        gradients = work.queries.grad.clone(), work.table.grad.clone()
        dense = peers.dense_bce(work) if score == "dot" else peers.chunk_of_rotate_bce(work)
        divisor = 1 if score == "dot" else 6 * 20  # of a chunk the loss is a sum
        assert dense() / divisor == pytest.approx(ours, rel=1e-5)
        for a, b in zip(gradients, (work.queries.grad, work.table.grad), strict=True):
            assert float((a - b / divisor).abs().max()) <= 1e-5 * float(a.abs().max())


def test_output_heads_are_the_same(load):
    peers = load("lib.peers.losses")
    work = peers.Work.random("dot", 7, 30, 4, "cpu")
    work.smoothing = 0.1
    ours = peers.kgfast_cross_entropy(work)
    assert ours() == pytest.approx(peers.head_rows(work)(), rel=1e-5)
    assert peers.kgfast_top(work)() == peers.top_rows(work)()


@pytest.mark.parametrize("per_query", [None, 3])
def test_sampled_scores_are_the_same(load, per_query):
    peers = load("lib.peers.losses")
    work = peers.Work.random("rotate", 6, 20, 5, "cpu")
    contenders = peers.sampled_contenders(work, per_query, compile=False)
    found = {}
    for name, contender in contenders.items():
        found[name] = (contender(), work.queries.grad.clone(), work.table.grad.clone())
    assert found["kgfast"][0] == pytest.approx(found["eager"][0], rel=1e-5)
    for a, b in zip(found["kgfast"][1:], found["eager"][1:], strict=True):
        assert float((a - b).abs().max()) <= 1e-5 * float(a.abs().max())
