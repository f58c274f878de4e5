"""``kgfast explain``."""

import csv
import json

import pytest

import kgfast
from kgfast.datasets import synthetic
from kgfast.extras.influence import tracin
from support.commands import run
from support.small_runs import trainer_of

GRAPH = synthetic(60, 3, 90, 10, 10)
TRIPLE = GRAPH.test.hrt[0]
NAMES = (
    GRAPH.entities.name(int(TRIPLE[0])),
    GRAPH.relations.name(int(TRIPLE[1])),
    GRAPH.entities.name(int(TRIPLE[2])),
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    sections = {
        "model": {"name": "distmult", "gamma": 12.0},
        "loss": {"name": "cross_entropy"},
        "train": {"steps": 12, "mode": "1vsall", "keep_every": 5},
    }
    trainer_of(folder, GRAPH, **sections).fit()
    return folder


def explained(*words, names=NAMES):
    head, relation, tail = names
    return run("explain", *words, "--head", head, "--relation", relation, "--tail", tail)


def test_the_names_and_values_are_those_of_tracin(trained):
    result = explained(trained, "--top", 3, "--side", "head", "--json")
    assert result.exit_code == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    found = tracin(trained, test=TRIPLE[None], k=3, side="head")
    columns = found.columns((GRAPH.entities, GRAPH.relations))
    del columns["test"]
    assert rows == [
        dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
    ]
    assert [row["kind"] for row in rows] == ["proponent"] * 3 + ["opponent"] * 3
    assert all((row["kind"] == "proponent") == (row["influence"] > 0) for row in rows)


def test_a_table_and_a_file(trained, tmp_path):
    shown = explained(trained, "--top", 2)
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.count("proponent") == shown.stdout.count("opponent") == 2
    assert "model_5.safetensors (rate 0.02)" in shown.stdout
    assert "Above 0, a step" in shown.stdout
    words = "--out", tmp_path / "a.csv", "--checkpoint", "best.safetensors"
    written = explained(trained, "--top", 2, *words)
    assert written.exit_code == 0, written.stderr
    with (tmp_path / "a.csv").open() as file:
        rows = list(csv.DictReader(file))
    best = tracin(trained / "best.safetensors", test=TRIPLE[None], k=2)
    assert [float(row["influence"]) for row in rows[:2]] == best.values[0].tolist()
    assert list(rows[0]) == ["kind", "influence", "head", "relation", "tail", "predicts"]


@pytest.mark.parametrize(
    ("words", "names", "message"),
    [
        ([], ("nobody", *NAMES[1:]), "--head: "),
        ([], (NAMES[0], "nothing", NAMES[2]), "--relation: "),
        (["--checkpoint", "none.safetensors"], NAMES, "no such checkpoint"),
        (["--out", "table.txt"], NAMES, ".csv"),
    ],
)
def test_mistakes_take_a_line(trained, words, names, message):
    result = explained(trained, *words, names=names)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.parametrize("entities", [None, ["ann", "bob", "eve"]])
def test_a_saved_model_was_not_trained_here(tmp_path, entities):
    """With names of entities or without: no triples and no loss are known of it."""
    model = kgfast.TransE.init(3, 2, dim=4, seed=0)
    kgfast.save(model, tmp_path / "saved", entities=entities)
    held = kgfast.load_run(tmp_path / "saved").vocabulary
    assert held == (None if entities is None else (kgfast.Vocabulary(entities), None))
    result = explained(tmp_path / "saved", names=("ann", 0, "bob"))
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert "saved: not the folder of a run" in line
