"""Files of 0.x are read, and files of another format are refused by name and version."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import kgfast
from kgfast.datasets import Dataset
from kgfast.graph import TypeConstraints
from kgfast.training import RunGraph
from support import stored_files
from support.stored_files import SHARDS, TRIPLES, constraints, model, with_metadata
from support.streamed import KNOWN, SMALL, rotate
from support.streamed import TRIPLES as MANY


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the files that version 0.1 wrote."""
    return stored_files.unpack(tmp_path / "stored")


def assert_same_ranks(found: kgfast.Ranks, expected: kgfast.Ranks) -> None:
    assert torch.equal(found.greater, expected.greater)
    assert torch.equal(found.equal, expected.equal)


def test_tables_of_0_1(folder):
    run = kgfast.load_run(folder / "tables")
    assert torch.equal(run.model.entity, model().entity)
    assert run.vocabulary.entities.names == tuple(stored_files.ENTITIES)
    assert torch.equal(run.known().contains(TRIPLES), torch.ones(12, dtype=torch.bool))
    known = kgfast.KnownTriples(TRIPLES)
    found = kgfast.rank(run.model, TRIPLES, known=run.known())
    assert_same_ranks(found, kgfast.rank(model(), TRIPLES, known=known))


def test_known_triples_of_0_1(folder):
    found = kgfast.KnownTriples.open(folder / "known", verify=True)
    assert found.checksum == kgfast.KnownTriples(TRIPLES).checksum


def test_type_constraints_of_0_1(folder):
    assert TypeConstraints.load(folder / "types.safetensors") == constraints()


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")  # a machine with other panels packs again
def test_an_index_of_0_1(folder):
    own = model()
    index = kgfast.Index.load(folder / "index.safetensors", own)
    asked = {"heads": [1, 2], "relations": [0, 1], "k": 12}
    found, expected = kgfast.topk(own, **asked, index=index), kgfast.topk(own, **asked)
    assert torch.equal(found.ids, expected.ids)
    assert torch.equal(found.scores, expected.scores)


def test_a_run_of_0_1(folder):
    """Ranks of its checkpoint are those that its result holds."""
    result = json.loads((folder / "run/result.json").read_text())
    graph = RunGraph.load(folder / "run/graph.safetensors")  # `synthetic` makes another one now
    names = graph.entities, graph.relations
    splits = (
        kgfast.Triples(hrt, entities=names[0], relations=names[1]) for hrt in graph.splits.values()
    )
    run = kgfast.load_run(folder / "run", Dataset("synthetic", *splits, *names))
    assert run.step == result["tested_step"]
    assert run.ranks("test").metrics() == pytest.approx(result["test"], abs=1e-12)


def test_rows_of_shards_of_0_1(folder):
    (rows,) = SHARDS.read_rows(folder / "sharded").values()
    assert torch.equal(rows, model().entity)


def partial(folder: Path) -> None:
    """Begin a call and go on with its results."""
    folder.mkdir(exist_ok=True)
    table = folder / "table"
    table.mkdir(exist_ok=True)
    _, stored = rotate(table)
    kgfast.rank(stored, MANY[:5], known=KNOWN, max_memory=SMALL, partial=folder / "partial")


# Each format has a file, the text of its version and of another, who reads it, the error.
OTHERS = {
    "checkpoints, and rows of shards": [
        (
            "run/best.safetensors",
            ('"version": 2', '"version": 9'),
            lambda folder: kgfast.load_run(folder / "run", False),
            "best.safetensors: format version 9; this kgfast reads up to 2: update kgfast",
        ),
        (
            "sharded/shards/model_2.1-of-2.safetensors",
            ('"version": 2', '"version": 9'),
            lambda folder: SHARDS.read_rows(folder / "sharded"),
            "1-of-2.safetensors: format version 9; this kgfast reads up to 2: update kgfast",
        ),
    ],
    "folders of kgfast.save": [
        (
            "tables/config.json",
            ('"format": 1', '"format": 9'),
            lambda folder: kgfast.load_run(folder / "tables"),
            "config.json: format 9; this kgfast reads 1: update kgfast",
        )
    ],
    "folders of KnownTriples.build and save": [
        (
            "known/known.json",
            ('"version": 1', f'"version": {number}'),
            lambda folder: kgfast.KnownTriples.open(folder / "known"),
            f"known.json: of version {number}; this kgfast reads version 1: build the folder again",
        )
        for number in (0, 9)
    ],
    "files of Index.save": [
        (
            "index.safetensors",
            ('"version": 1', f'"version": {number}'),
            lambda folder: kgfast.Index.load(folder / "index.safetensors", model()),
            f"index.safetensors: an index of version {number}; this kgfast reads 1: make the index",
        )
        for number in (0, 9)
    ],
    "files of TypeConstraints.save": [
        (
            "types.safetensors",
            ("constraints 1", f"constraints {number}"),
            lambda folder: TypeConstraints.load(folder / "types.safetensors"),
            f"types.safetensors: type constraints of version '{number}'; this kgfast reads 1: save "
            "the constraints again",
        )
        for number in (0, 9)
    ],
    "folders of partial=": [
        (
            "partial/call.json",
            ('"format": 2', f'"format": {number}'),
            partial,
            f"call.json: format {number}; this kgfast goes on with format 2: choose another folder",
        )
        for number in (1, 9)
    ],
}
KEYS = {"run": "kgfast", "sharded": "kgfast", "index": "kgfast_index", "types": "format"}


@pytest.mark.parametrize(
    ("name", "change", "read", "error"),
    [pytest.param(*case, id=f"{case[0]} {case[1][1]}") for own in OTHERS.values() for case in own],
)
def test_another_version_is_refused_by_name(folder, name, change, read, error):
    if read is partial:
        partial(folder)
    path = folder / name
    if path.suffix == ".json":
        text = path.read_text()
        assert text.count(change[0]) == 1
        path.write_text(text.replace(*change))
    else:
        with_metadata(path, KEYS[name.partition("/")[0].partition(".")[0]], *change)
    with pytest.raises(ValueError, match=error):
        read(folder)


def test_a_folder_of_partial_is_finished_after_the_error(folder):
    partial(folder)
    path = folder / "partial/call.json"
    path.write_text(path.read_text().replace('"format": 2', '"format": 3'))
    with pytest.raises(ValueError, match="format 3"):
        partial(folder)
    shutil.rmtree(folder / "partial")
    partial(folder)
