"""``kgfast evaluate --classify`` and ``--types``, on a small run."""

import json
import shutil

import pytest

import kgfast
from kgfast.eval.classification import class_table
from support.commands import error_of, run
from support.small_runs import write_ring

NEGATIVES = [("e0", "next", "e5"), ("e3", "previous", "e9"), ("e4", "next", "e2")]


@pytest.fixture
def data(tmp_path):
    folder = write_ring(tmp_path / "ring")
    text = "".join("\t".join(row) + "\r\n" for row in NEGATIVES)
    for split in ("valid", "test"):
        (folder / f"{split}_negatives.txt").write_text(text)
    return folder


def test_as_in_python(trained, data):
    loaded = kgfast.load_run(trained, data)
    found = loaded.classify(data)
    assert found.test.triples == len(loaded.dataset.test) + len(NEGATIVES)
    for folder in (data, data.parent):  # the dataset, or the folder that holds it
        result = run("evaluate", trained, "--classify", "--data", folder)
        assert result.exit_code == 0, result.stderr
        assert result.stdout.partition("\n")[2].strip() == repr(found)
    result = run("evaluate", trained, "--classify", "--data", data, "--per-relation")
    assert result.stdout.partition("\n")[2].rstrip() == class_table(found.by_relation())


def test_the_data_of_the_config(trained, root, data):
    """Without ``--data``, negatives are looked for where the config has its data."""
    assert "no valid_negatives.txt" in error_of("evaluate", trained, "--classify")
    for split in ("valid", "test"):
        shutil.copy(data / f"{split}_negatives.txt", root / "ring")
    result = run("evaluate", trained, "--classify")
    assert result.exit_code == 0, result.stderr


def test_a_bad_line_is_named(trained, data):
    (data / "test_negatives.txt").write_text("e0\tnext\te5\ne0\tnext\tnobody\n")
    line = error_of("evaluate", trained, "--classify", "--data", data)
    assert "test_negatives.txt:2: " in line
    assert "'nobody'" in line


@pytest.mark.parametrize("suffix", [".tsv", ".json"])
def test_ranks_among_entities_of_a_type(trained, tmp_path, suffix):
    types = {f"e{i}": ["even" if i % 2 == 0 else "odd"] for i in range(5)} | {"stranger": ["odd"]}
    path = tmp_path / f"types{suffix}"
    path.write_text(
        json.dumps(types)
        if suffix == ".json"
        else "".join(f"{name}\t{kind}\n" for name, (kind,) in types.items())
    )
    loaded = kgfast.load_run(trained)
    allowed = loaded.type_constraints(path)
    rows = [(name, kind) for name, (kind,) in types.items()]
    assert allowed == kgfast.TypeConstraints.from_types(loaded.dataset.train, rows)
    expected = loaded.ranks(candidate_ids=allowed)
    result = run("evaluate", trained, "--types", path)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.partition("\n")[2].strip() == repr(expected)


def test_relations_without_types_are_counted_and_not_ranked(trained, tmp_path):
    path = tmp_path / "types.json"
    every = [f"e{i}" for i in range(5)]
    path.write_text(json.dumps({"next": [every, every]}))
    loaded = kgfast.load_run(trained)
    test = loaded.dataset.test
    others = int((test.relation_ids != loaded.dataset.relations["next"]).sum())
    assert others
    result = run("evaluate", trained, "--types", path)
    assert f"warning: candidate_ids: {others} of {len(test)} triples have no" in result.stderr
    assert f"; {others} without candidates left out\n" in result.stdout
