"""benchmarks/lists_speed.py in its smoke-test size."""

import json


def test_lists_speed_compares_the_same_counts(call, tmp_path):
    result = tmp_path / "lists.json"
    done = call("lists_speed.py", "--quick", "--json", result)
    assert done.returncode == 0, done.stderr
    rows = json.loads(result.read_text())["rows"]
    assert [row["contender"] for row in rows] == ["kgfast", "official", "lean"]
    assert rows[0]["equals_reference"]
    for row in rows:
        assert row["seconds"]["min"] <= row["seconds"]["median"] <= row["seconds"]["max"]
        assert {"command", "machine", "versions", "date"} <= row.keys()
    assert [row["differing_queries"] for row in rows[1:]] == [0, 0]


def test_peers_count_as_kgfast_does(load):
    script = load("lists_speed")
    work = script.Work.random(script.BENCHMARK.parse(["--quick", "--queries", "33"]))
    work.ids[0, 3] = work.targets[0]
    ours = script.by_kgfast(work)
    for lean in (False, True):
        theirs = script.by_gathering(work, lean=lean)
        assert [(a != b).sum() for a, b in zip(ours, theirs, strict=True)] == [0, 0]
