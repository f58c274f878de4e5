"""Models of other libraries as folders of tables, and what the command line ranks with them."""

import json

import numpy as np
import pytest
import torch

import kgfast
from kgfast.adapters.convert import convert
from kgfast.adapters.dglke import load_dglke
from kgfast.adapters.libkge_checkpoints import load_libkge, read_libkge
from kgfast.adapters.official import load_official
from support import libkge_files
from support.commands import error_of, run

ENTITIES, RELATIONS, DIM = 20, 3, 4
NAMES = ([f"e{i}" for i in range(ENTITIES)], [f"r{i}" for i in range(RELATIONS)])
OTHERS = NAMES[0][::-1], NAMES[1]
TRIPLES = torch.tensor([(h, h % RELATIONS, (3 * h + 1) % ENTITIES) for h in range(ENTITIES)])


def arrays(entity_width, relation_width):
    generator = np.random.default_rng(0)
    sizes = ((ENTITIES, entity_width), (RELATIONS, relation_width))
    return [generator.normal(size=size).astype(np.float32) for size in sizes]


def official(folder):
    folder.mkdir()
    config = {"model": "RotatE", "hidden_dim": DIM, "gamma": 6.0, "double_entity_embedding": True}
    (folder / "config.json").write_text(json.dumps(config))
    for name, table in zip(("entity", "relation"), arrays(2 * DIM, DIM), strict=True):
        np.save(folder / f"{name}_embedding.npy", table)
    return folder


def dglke(folder):
    folder.mkdir()
    config = {"model_name": "TransE_l2", "hidden_dim": DIM, "gamma": 6.0, "dataset": "g"}
    (folder / "config.json").write_text(json.dumps(config))
    for name, table in zip(("entity", "relation"), arrays(DIM, DIM), strict=True):
        np.save(folder / f"g_TransE_l2_{name}.npy", table)
    return folder


def libkge(folder, model="rotate", names=NAMES, **options):
    folder.mkdir(exist_ok=True)
    tables = arrays(2 * DIM, DIM if model == "rotate" else 2 * DIM)
    return libkge_files.write(folder / "model.pt", model, tables, names, **options)


def data(folder, names=NAMES):
    folder.mkdir()
    for what, own in zip(("entities", "relations"), names, strict=True):
        (folder / f"{what}.dict").write_text("".join(f"{i}\t{it}\n" for i, it in enumerate(own)))
    rows = [(names[0][h], names[1][r], names[0][t]) for h, r, t in TRIPLES.tolist()]
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text("".join("\t".join(row) + "\n" for row in rows))
    return folder


MAKERS = {
    "official": (official, lambda e, r: kgfast.RotatE(e, r, gamma=6.0)),
    "dglke": (dglke, lambda e, r: kgfast.TransE(e, r, norm="l2")),
    "libkge": (libkge, lambda e, r: kgfast.RotatE(e, r, relation_format="phase")),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_folder_ranks_as_the_model(name, tmp_path):
    make, expected = MAKERS[name]
    files = convert(make(tmp_path / "theirs"), tmp_path / "ours")
    assert {"config.json", "model.safetensors"} <= {path.name for path in files}
    widths = (DIM, DIM) if name == "dglke" else (2 * DIM, DIM)
    model = expected(*(torch.from_numpy(table) for table in arrays(*widths)))
    found = kgfast.rank(kgfast.load_run(tmp_path / "ours").model, TRIPLES)
    assert torch.equal(found.greater, kgfast.rank(model, TRIPLES).greater)


def test_models_with_inverse_relations(tmp_path):
    path = libkge(tmp_path, "complex", reciprocal=True)
    convert(path, tmp_path / "ours")
    tables = kgfast.load_run(tmp_path / "ours")
    assert type(tables.model) is kgfast.Reciprocal
    assert (tables.model.num_relations, len(tables.vocabulary[1])) == (RELATIONS, RELATIONS)
    expected = kgfast.rank(load_libkge(path), TRIPLES)
    assert torch.equal(kgfast.rank(tables.model, TRIPLES).greater, expected.greater)
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    config["layers"][0]["order"] = "odd"
    (tmp_path / "ours" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"ours: config.json .*: order must be one of"):
        kgfast.load_run(tmp_path / "ours")


def test_the_commands(tmp_path):
    source, out = official(tmp_path / "theirs"), tmp_path / "ours"
    folder = data(tmp_path / "graph")
    done = run("convert", source, "--out", out, "--data", folder)
    assert done.exit_code == 0, done.output
    assert json.loads((out / "entities.json").read_text()) == NAMES[0]
    done = run("evaluate", out, "--data", folder)
    assert done.exit_code == 0, done.output
    dataset = kgfast.datasets.load(folder)
    ranks = kgfast.rank(kgfast.load_run(out).model, dataset.test, known=dataset.known())
    assert f"{ranks.mrr:.4f}" in done.output
    convert(source, tmp_path / "unnamed")
    said = run("evaluate", tmp_path / "unnamed", "--data", folder).output
    assert "unnamed has no names of entities, by which data are read" in said
    assert "is there already" in error_of("convert", source, "--out", out)
    line = error_of("convert", out, "--out", tmp_path / "again")
    assert "is a folder of tables already" in line


def test_a_checkpoint_of_training_holds_the_version_of_torch(tmp_path):
    trace = {"type": "train", "valid_trace": [{"torch_version": torch.__version__, "mrr": 0.5}]}
    path = libkge_files.write(
        tmp_path / "model.pt", "complex", arrays(2 * DIM, 2 * DIM), None, also=trace
    )
    assert type(load_libkge(path)) is kgfast.ComplEx


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: convert(path / "nowhere", path / "out"), "nowhere: no such file or folder"),
        (lambda path: convert(path, path / "out"), "config.json .* is not there"),
        (lambda path: convert(libkge(path, "transh"), path / "out"), "model 'transh' is not avail"),
        (lambda path: convert(libkge(path, l_norm=3.0), path / "out"), "l_norm must be 1 or 2"),
        (lambda path: convert(libkge(path, l_norm=None), path / "out"), "l_norm must be 1 or 2"),
        (
            lambda path: convert(libkge(path, names=(NAMES[0][1:], NAMES[1])), path / "out"),
            "19 names in entity_ids, but 20 rows",
        ),
        (
            lambda path: convert(libkge(path, names=None), path / "out",
                                 data=data(path / "graph", (NAMES[0] + ["new"], NAMES[1]))),
            "21 names of entities, but .* has 20 rows",
        ),
        (lambda path: convert(libkge(path), path / "out", data=data(path / "graph", OTHERS)),
         "entities have other ids than in"),
        (lambda path: convert(libkge(path), path / "out", format="other"), "format must be one of"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named_and_nothing_is_written(tmp_path, make, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        make(tmp_path)
    assert not list(tmp_path.glob("*out*"))


ODD = {
    "a list": ({"dataset": {"meta": ["x"]}}, r"meta of dataset must be a mapping; got \['x'\]"),
    "a text": ({"dataset": "x"}, "dataset must be a mapping; got 'x'"),
    "a name": ({"dataset": {"meta": {"entity_ids": 3}}}, "entity_ids must be a list .*; got 3"),
    "names": ({"dataset": {"meta": {"entity_ids": [3] * 20}}}, "entity_ids must be a list of"),
    "one twice": (
        {"dataset": {"meta": {"entity_ids": ["a"] * 20}}},
        r"entity_ids: names\[19\] = 'a' is a duplicate",
    ),
    "options": ({"config": libkge_files._config({"model": ["rotate"]})}, "TypeError: unhashable"),
    "a list of options": (
        {"config": libkge_files._config({"model": "rotate", "rotate": [1]})},
        r"options of 'rotate' must be a mapping; got \[1\]",
    ),
    "another base": (
        {"config": libkge_files._config({"model": "reciprocal_relations_model",
                                         "reciprocal_relations_model": {"base_model": 3}})},
        "base_model must be a mapping; got 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_checkpoints_with_something_odd_in_them_are_named(tmp_path, name):
    also, message = ODD[name]
    with pytest.raises(ValueError, match=rf"model\.pt: .*{message}"):
        read_libkge(libkge(tmp_path, names=None, also=also))


def test_tables_of_another_kind_are_named(tmp_path):
    """A model's error about its tables names the folder."""
    made = dglke(tmp_path / "dglke"), official(tmp_path / "official")
    for folder, file, load in zip(
        made,
        ("g_TransE_l2_entity.npy", "entity_embedding.npy"),
        (load_dglke, load_official),
        strict=True,
    ):
        table = np.load(folder / file)
        np.save(folder / file, table.astype(np.int64))
        with pytest.raises(ValueError, match=rf"{folder}.*must be floating point"):
            load(folder)
        (folder / file).write_bytes(b"PK\3\4" + b"x" * 100)  # to numpy an archive
        with pytest.raises(ValueError, match=rf"{folder / file}: not a NumPy table"):
            load(folder)


def test_a_checkpoint_runs_nothing(tmp_path):
    torch.save({"type": "train", "config": libkge_files.Bomb(tmp_path / "ran")}, tmp_path / "x.pt")
    with pytest.raises(ValueError, match="holds something else than tensors"):
        load_libkge(tmp_path / "x.pt")
    assert not (tmp_path / "ran").exists()
    torch.save({"type": "search"}, tmp_path / "x.pt")
    with pytest.raises(ValueError, match="not a checkpoint of a training job"):
        load_libkge(tmp_path / "x.pt")
