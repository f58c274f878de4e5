"""benchmarks/peers_speed.py in its smoke-test size; its peers, and the bare loop."""

import pytest
import torch

import kgfast

FAST = ("torch", "faiss Flat", "faiss Panorama", "NumKong")
SLOW = [pytest.param(it, marks=pytest.mark.slow) for it in ("torch.compile", "KeOps")]


def test_the_best_are_those_of_peers(measured):
    rows = measured("peers_speed.py", "--threads", 1, "--batches", 16, "--peers", *FAST)
    assert [row["score"] for row in rows] == ["dot", "l2", "rotate"]
    for row in rows:
        assert row["equal"]
        assert row["wrong"] == 0
        assert row["best_peer"] in row["options"]
        assert row["seconds"].keys() >= {"index", "table", row["best_peer"]}
        assert {*row["options"], *row["missing"], *row["slow"]} >= {*FAST}
    assert rows[2]["missing"]["faiss Flat"] == "no score rotate"


@pytest.mark.parametrize("score", ["dot", "l2", "rotate"])
@pytest.mark.parametrize("name", [*FAST, *SLOW])
def test_every_way_of_a_peer_finds_the_best(load, name, score):
    nearest, topk = load("lib.peers.nearest"), load("lib.peers.nearest")
    generator = torch.Generator().manual_seed(0)
    search = topk.Search(*(torch.randn(n, 32, generator=generator) for n in (5, 700)), 4)
    block = topk.score_block if score == "rotate" else topk.dot_block
    scores = block(search.queries, search.table)
    if score == "l2":
        scores = -torch.cdist(search.queries, search.table)
    expected = scores.topk(4).indices
    try:
        ways = list(nearest.PEERS[name](search.table, score, 4))
    except load("lib.peers").Missing:
        pytest.skip(f"{name}: not here, or no score {score}")
    assert ways
    for way in ways:
        assert torch.equal(way(search.queries), expected), way.options
    assert torch.tensor(1e-38) * 1e-3 != 0, "a peer left denormals flushed to zero"
    wrong = expected.clone()
    wrong[2, 3] = scores[2].argmin()
    assert nearest.different_scores(search, score, expected, wrong) == 1


@pytest.mark.parametrize("score", ["dot", "l1", "l2", "rotate"])
def test_the_bare_loop_counts_as_the_specification(load, score):
    bare, bench = load("lib.peers.bare"), load("eval_speed")
    generator = torch.Generator().manual_seed(0)
    queries, table = (torch.randn(n, 24, generator=generator) for n in (6, 333))
    work = load("lib.peers.ranks").Work(queries, table, torch.arange(6))
    try:
        loop = bare.Loop(work, score)
    except load("lib.peers").Missing as error:
        pytest.skip(str(error))
    (greater, equal), (expected, _) = loop(), bench.kgfast_counts(work, score)
    assert (greater - expected).abs().max() <= 1  # roots are estimates
    assert equal.max() == 0


@pytest.mark.parametrize("is_compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_products_of_matrices_rank_by_the_l2_norm(load, monkeypatch, is_compiled):
    if not is_compiled:
        monkeypatch.setattr(torch, "compile", lambda block, **_: block)
    generator = torch.Generator().manual_seed(0)
    entity, relation = (torch.randint(-9, 9, (n, 6), generator=generator).float() for n in (41, 3))
    model = kgfast.TransE(entity, relation, norm="l2")
    hrt = torch.stack([torch.randint(n, (50,), generator=generator) for n in (41, 3, 41)], 1)
    known = kgfast.KnownTriples(hrt)
    greater, equal = load("lib.peers.ranks").products_of_l2(model, hrt, known)()
    ours = kgfast.rank(model, hrt, known=known)
    assert torch.equal(greater.reshape(2, -1).T, ours.greater)
    assert torch.equal(equal.reshape(2, -1).T, ours.equal)
