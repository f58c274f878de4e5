"""eval_speed.py in its smoke-test size, and its peers."""

import json

import torch


def test_eval_speed_compares_the_same_integers(call, tmp_path):
    result = tmp_path / "speed.json"
    done = call("eval_speed.py", "--quick", "--json", result)
    assert done.returncode == 0, done.stderr
    content = json.loads(result.read_text())
    rows = content["rows"]
    assert {row["section"] for row in rows} >= {"rotate", "single", "dot", "whole"}
    ours = [row for row in rows if row["contender"] == "kgfast"]
    assert ours
    assert all(row["equals_reference"] for row in ours)
    for row in rows:
        assert row["seconds"]["min"] <= row["seconds"]["median"] <= row["seconds"]["max"]
        assert {"command", "machine", "versions", "date"} <= row.keys()
        if row["contender"].startswith("kgfast ") and row["section"] == "rotate":
            assert row["differing_queries"] == 0
    names = [line["what"] for line in content["ratios"]]
    assert "rotate, 128 queries, dim 16, random: kgfast against torch, in chunks" in names
    assert list(tmp_path.iterdir()) == [result]


def test_eager_chunks_count_every_row_once(load):
    peers, eval_speed = load("lib.peers.ranks"), load("eval_speed")
    generator = torch.Generator().manual_seed(1)
    work = peers.Work(
        torch.randn(5, 6, generator=generator),
        torch.randn(23, 6, generator=generator),
        torch.arange(5),
    )
    ours = eval_speed.kgfast_counts(work)
    for chunk in (1, 7, 23, 100):
        found = peers.Chunked(work, peers.count_block, chunk)()
        assert eval_speed.difference(found, ours)["differing_queries"] == 0
