"""A small file of each format that kgfast writes, and files_of_0_1.zip, written by version 0.1.

``PYTHONPATH=tests python -m support.stored_files`` writes the archive anew: once a version.
"""

import io
import json
import struct
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import kgfast
from kgfast.datasets import synthetic
from kgfast.training import Config, Trainer
from kgfast.training.checkpoint.shard_files import ShardFiles

ARCHIVE = Path(__file__).with_name("files_of_0_1.zip")
ENTITIES, RELATIONS = [f"e{i}" for i in range(12)], ["knows", "likes"]
TRIPLES = torch.tensor([[i, i % 2, (5 * i + 1) % 12] for i in range(12)])
GRAPH = synthetic(20, 2, 60, 6, 6)
SHARDS = ShardFiles(kind="model", step=2, size=2, total=12, names=["model.entity"])
CONFIG = {
    "threads": 1,
    "dataset": {"name": "synthetic"},
    "model": {"name": "rotate", "base_dim": 2, "gamma": 6.0},
    "optim": {"lr": 0.02},
    "train": {"steps": 2},
    "data": {"train_bs": 8, "neg_size": 4},
}


def model() -> kgfast.TransE:
    """Return the model of the stored tables, whose rows are whole numbers."""
    rows = torch.arange(12 * 4, dtype=torch.float32).reshape(12, 4)
    return kgfast.TransE(rows * 7 % 11, rows[:2] % 3)


def constraints() -> kgfast.TypeConstraints:
    """Return the stored type constraints."""
    mapping = {name: ([0, 3], [1, 4, 5]) for name in range(2)}
    return kgfast.TypeConstraints.from_mapping(mapping, vocabulary=(ENTITIES, RELATIONS))


def write(folder: Path) -> None:
    """Write a file of each format."""
    names = {"entities": ENTITIES, "relations": RELATIONS}
    kgfast.save(model(), folder / "tables", **names, known=TRIPLES)
    kgfast.KnownTriples(TRIPLES).save(folder / "known")
    constraints().save(folder / "types.safetensors")
    kgfast.Index(model()).save(folder / "index.safetensors")
    for rank in range(SHARDS.size):
        SHARDS.save_rows(
            folder / "sharded", rank, {"model.entity": model().entity[rank :: SHARDS.size]}
        )
    Trainer(Config.from_dict(CONFIG), folder / "run", dataset=GRAPH, progress=False).fit()


def unpack(folder: Path) -> Path:
    """Unpack the files of 0.1 and return their folder."""
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(folder)
    return folder


def with_metadata(path: Path, key: str, old: str, new: str) -> None:
    """Replace text in the metadata of a safetensors file."""
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    assert header["__metadata__"][key].count(old) == 1
    header["__metadata__"][key] = header["__metadata__"][key].replace(old, new)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size :])


def main() -> None:
    """Write the archive, with the same bytes for the same files."""
    with TemporaryDirectory() as folder:
        write(Path(folder))
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for path in sorted(it for it in Path(folder).rglob("*") if it.is_file()):
                info = zipfile.ZipInfo(path.relative_to(folder).as_posix())
                archive.writestr(info, path.read_bytes(), zipfile.ZIP_DEFLATED)
    ARCHIVE.write_bytes(packed.getvalue())


if __name__ == "__main__":
    main()
