"""Files of another format are refused by name and version."""

import json
import shutil
import struct

import pytest
import torch

import kgfast
from kgfast.datasets import synthetic
from kgfast.training import Config, Trainer

CONFIG = {
    "threads": 1,
    "dataset": {"name": "synthetic"},
    "model": {"name": "rotate", "base_dim": 2, "gamma": 6.0},
    "optim": {"lr": 0.02},
    "train": {"steps": 2},
    "data": {"train_bs": 8, "neg_size": 4},
}


def model():
    rows = torch.arange(12 * 4, dtype=torch.float32).reshape(12, 4)
    return kgfast.TransE(rows * 7 % 11, rows[:2] % 3)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return a folder with a file of each format."""
    folder = tmp_path_factory.mktemp("formats")
    kgfast.save(model(), folder / "tables")
    kgfast.KnownTriples([(0, 1, 2)]).save(folder / "known")
    graph = synthetic(20, 2, 60, 6, 6)
    Trainer(Config.from_dict(CONFIG), folder / "run", dataset=graph, progress=False).fit()
    return folder


# Files, the text of their version, who reads them, the error for version 9.
FORMATS = [
    (
        "run/best.safetensors",
        ("kgfast", '"version": {}', 1),
        lambda folder: kgfast.load_run(folder / "run", False),
        "best.safetensors: format version 9; this kgfast reads 1: train again",
    ),
    (
        "tables/config.json",
        ("", '"format": {}', 1),
        lambda folder: kgfast.load_run(folder / "tables"),
        "config.json: format must be 1; got 9",
    ),
    (
        "known/known.json",
        ("", '"version": {}', 1),
        lambda folder: kgfast.KnownTriples.open(folder / "known"),
        "known.json: this kgfast reads 'kgfast known triples' of version 1, not .*9.: build the",
    ),
]


@pytest.mark.parametrize(
    ("name", "version", "read", "error"), FORMATS, ids=[it[0] for it in FORMATS]
)
def test_another_version_is_refused_by_name(written, tmp_path, name, version, read, error):
    folder = tmp_path / "files"
    shutil.copytree(written, folder)
    read(folder)
    path, (key, text, number) = folder / name, version
    old, new = text.format(number), text.format(9)
    raw = path.read_bytes()
    if path.suffix == ".json":
        assert raw.count(old.encode()) == 1
        path.write_bytes(raw.replace(old.encode(), new.encode()))
    else:
        (size,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + size])
        assert header["__metadata__"][key].count(old) == 1
        header["__metadata__"][key] = header["__metadata__"][key].replace(old, new)
        changed = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(changed)) + changed + raw[8 + size :])
    with pytest.raises(ValueError, match=error):
        read(folder)
