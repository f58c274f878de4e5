"""benchmarks/typed_ranks.py: ranks of runs among all entities and among type-correct ones."""

import json

import pytest

from kgfast.training import Config, Trainer

ENTITIES = [f"{kind}{number}" for kind in ("person", "city") for number in range(10)]


@pytest.fixture
def run(tmp_path):
    """Train a moment on people who live in cities, in a graph with types."""
    folder = tmp_path / "data" / "tiny"
    folder.mkdir(parents=True)
    lines = [f"person{i}\tlives_in\tcity{(i * i + j) % 10}\n" for i in range(10) for j in range(3)]
    for name, part in (("train", lines[6:]), ("valid", lines[:3]), ("test", lines[3:6])):
        (folder / f"{name}.txt").write_text("".join(part))
    (folder / "entity_types.tsv").write_text("".join(f"{it}\t{it[:4]}\n" for it in ENTITIES))
    config = Config.from_dict(
        {
            "dataset": {"name": "tiny", "root": str(tmp_path / "data")},
            "model": {"name": "distmult", "base_dim": 4},
            "train": {"steps": 2},
            "data": {"train_bs": 8, "neg_size": 4},
            "optim": {"lr": 0.01},
        }
    )
    Trainer(config, tmp_path / "tiny-run", progress=False).fit()
    return tmp_path / "tiny-run"


def test_a_run_is_ranked_both_ways_and_other_rows_stay(call, tmp_path, run):
    path = tmp_path / "rows.json"
    arguments = ("typed_ranks.py", "--run", run, "--data", tmp_path / "data", "--json", path)
    done = call(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(path.read_text())["rows"]
    assert (row["model"], row["entities"]) == ("distmult", 20)
    assert 7 < row["candidates"] < 10  # ten of each type, without known answers
    assert row["outside"] == 0
    assert row["typed"]["mr"] < row["all"]["mr"]
    assert row["typed"]["mrr"] > row["all"]["mrr"]
    path.write_text(json.dumps({"rows": [{**row, "run": "another"}, row]}))
    assert call(*arguments).returncode == 0
    assert [it["run"] for it in json.loads(path.read_text())["rows"]] == ["another", "tiny-run"]


def test_a_graph_without_types_is_named(call, tmp_path, run):
    (tmp_path / "data" / "tiny" / "entity_types.tsv").unlink()
    done = call("typed_ranks.py", "--run", run, "--data", tmp_path / "data", "--json", "rows.json")
    assert done.returncode == 1
    assert "none of entity2types.json, entity_types.tsv is in it" in done.stderr


@pytest.mark.parametrize("arguments", [(), ("--run", "a"), ("--quick", "--run", "a")])
def test_runs_need_their_data(call, arguments):
    done = call("typed_ranks.py", *arguments)
    assert done.returncode == 2
    assert "name --run RUN... and --data DIR, or --quick" in done.stderr


def test_its_smoke_test(call):
    assert call("typed_ranks.py", "--quick").returncode == 0
