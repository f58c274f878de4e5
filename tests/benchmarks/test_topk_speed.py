"""benchmarks/topk_speed.py in its smoke-test size, and its peers."""

import json

import pytest
import torch


def test_topk_speed_compares_the_same_ids(measured, tmp_path):
    rows = measured("topk_speed.py")
    assert {row["section"] for row in rows} == {"rotate", "head", "outputs", "prediction"}
    assert {row["benchmark"] for row in rows} == {"topk_speed"}
    for row in rows:
        assert row["seconds"]
        if row["contender"] == "kgfast" and row["section"] != "prediction":
            assert row["equals_reference"]
        if row["contender"] == "eager":
            assert row["differing_queries"] == 0
    (result,) = tmp_path.iterdir()
    names = [line["what"] for line in json.loads(result.read_text())["ratios"]]
    assert "rotate, 128 queries, dim 16, random: kgfast against rank_counts, in time" in names


def test_it_writes_only_what_it_is_told_to(call):
    done = call("topk_speed.py", "--quick", "--peers", "--tables", "random", "-k", 3)
    assert done.returncode == 0, done.stderr
    assert "the 3 best of 128 queries" in done.stdout


@pytest.mark.parametrize("chunk", [1, 7, 23, 100])
def test_chunks_of_rows_find_the_best_of_all(load, chunk):
    peers = load("lib.peers.topk")
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(5, 6, generator=generator)
    table = torch.randn(23, 6, generator=generator)
    search = peers.Search(queries, table, 4)
    for block in (peers.score_block, peers.dot_block):
        expected = block(queries, table).topk(4)
        scores, ids = peers.ChunkedRows(search, block, chunk)()
        assert torch.equal(ids, expected.indices)
        assert torch.allclose(scores, expected.values)
    assert torch.equal(peers.ChunkedQueries(search, chunk)()[1], ids)


def test_pykeen_answers_the_same_query(load):
    pytest.importorskip("pykeen")
    import kgfast

    peers, bench = load("lib.peers.topk"), load("lib.bench")
    graph = kgfast.datasets.synthetic(60, 3, 150, 10, 10)
    pykeen = peers.PyKEEN(graph, *bench.embeddings(graph, "planted", 4), "cpu")
    top = kgfast.topk(pykeen.by_kgfast(), heads=7, relations=1, k=5)
    assert peers.predict_target(pykeen, 7, 1, 5) == top.ids[0].tolist()
