"""Files of every reader, damaged: what their own library reads of them, or one line with the file.

Bytes are flipped, cut and repeated; JSON, within files too, gets other values; tensors are saved in
odd ways.
"""

import gzip
import json
import re
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import kgfast
from fuzz.case import Case, expect
from fuzz.folders import EXPECTED, scratch
from kgfast import KnownTriples, TypeConstraints, tables
from kgfast.adapters.convert import convert
from kgfast.adapters.dglke import load_dglke
from kgfast.adapters.libkge_checkpoints import read_libkge
from kgfast.adapters.official_runs import load_official
from kgfast.graph import Vocabulary
from kgfast.plots import plot
from kgfast.training.logs import read_rows
from support import libkge_files

ROWS, WIDTH = 6, 4
_VALUES = [
    None, 3, -1, 0, 1.5, True, "x", "é\n\x1b[2J", "9" * 400, [], {}, [1], [[]], {"a": 1}, 10**30,
    -(2**63), 2**62, float("inf"), float("nan"), 1e308, "../../etc/passwd", [3, 4], [-50, 8],
    [6.0, 4], ["a", "a"],
]  # fmt: skip
_BYTES = [b"", b"\0", b"\xff\xfe", b"\n", b"1" * 5000, b"-", b"[" * 3000, b"9" * 30, b"'", b'"']


class Reader(NamedTuple):
    """A kind of file: how it is written, how kgfast reads it, and how its own library does.

    ``write`` returns False where what it wrote may be refused as it is.
    """

    write: Callable[[Case, Path], Any]
    read: Callable[[Path], Any]
    oracle: Callable[[Path], Any] | None = None


def reader(case: Case) -> None:
    """Damage a file of a reader, or leave it whole."""
    name = case.choice(sorted(_READERS))
    own = _READERS[name]
    case.note(reader=name)
    with scratch() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        is_whole = own.write(case, folder) is not False
        before = {it: it.read_bytes() for it in folder.rglob("*") if it.is_file()}
        for _ in range(case.choice((0, 1, 1, 1, 2))):
            _damage(case, case.choice(sorted(before)))
        is_whole &= all(it.read_bytes() == raw for it, raw in before.items())
        try:
            found = own.read(folder)
        except EXPECTED as error:
            _check(str(error), folder)
            expect(not is_whole, f"refused: {str(error)[:500]}")
            return
        if own.oracle is None:
            return
        try:
            wanted = own.oracle(folder)
        except Exception:  # a library that checks more than kgfast does, such as checksums
            return
        expect(_same(found, wanted), f"{found!r:.200}, not {wanted!r:.200}")


def _check(message: str, folder: Path) -> None:
    expect(str(folder) in message, f"does not name the file: {message[:300]!r}")
    expect(message.isprintable(), f"not of one line: {message[:300]!r}")
    expect(len(message) <= 1500, f"{len(message)} characters: {message[:150]!r}")


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        bits = [it.contiguous().reshape(-1).view(torch.uint8) for it in (a, b)]
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(*bits)
    return bool(a == b)


def _damage(case: Case, path: Path) -> None:
    """Change some of a file: its bytes, or a value of its JSON, or of a JSON or a dict within."""
    raw = path.read_bytes()
    how = case.choice(("value", "value", "value", "flip", "byte", "insert", "cut", "repeat", "zip"))
    place = case.pick.randrange(len(raw) + 1)
    case.note(file=path.name, how=how, place=place)
    if how == "value":
        raw = _with_value(case, raw, path.name)
    elif how == "flip" and place < len(raw):
        bit = 1 << case.pick.randrange(8)
        raw = raw[:place] + bytes([raw[place] ^ bit]) + raw[place + 1 :]
    elif how == "byte":
        raw = raw[:place] + bytes([case.pick.randrange(256)]) + raw[place + 1 :]
    elif how == "insert":
        raw = raw[:place] + case.choice(_BYTES) + raw[place:]
    elif how == "cut":
        raw = raw[:place]
    elif how == "repeat":
        raw += raw[place:]
    elif how == "zip" and zipfile.is_zipfile(path):
        with suppress(Exception):  # no archive any more
            _pack_again(case, path)
        return
    path.write_bytes(raw)


def _pack_again(case: Case, path: Path) -> None:
    """Write the records of an archive anew: in another order, compressed, some of them changed."""
    with zipfile.ZipFile(path) as old:
        records = [(it.filename, old.read(it)) for it in old.infolist()]
    case.pick.shuffle(records)
    kind = case.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(path, "w", kind) as new:
        for name, raw in records:
            new.writestr(name, case.choice((raw, raw, raw, raw[::-1], b"big")))


def _with_value(case: Case, raw: bytes, name: str) -> bytes:
    """Replace one value of a file's JSON, or of the header of an array or of safetensors."""
    if name.endswith(".safetensors"):
        size = int.from_bytes(raw[:8], "little")
        header = _replaced(case, raw[8 : 8 + size])
        return len(header).to_bytes(8, "little") + header + raw[8 + size :]
    if name.endswith(".npy") and len(raw) >= 128:
        start = raw.find(b"{")
        new = str(case.choice([*_VALUES, (-50, 8), (6, 4), (6, -4), (2**62, 4), (6, 2**62), (), 6]))
        old = rb"\([^)]*\)" if case.chance(0.6) else rb"'<[^']*'"
        header = re.sub(old, lambda _: new.encode("utf-8", "replace"), raw[start:128], count=1)
        return raw[:start] + header[: 127 - start].ljust(127 - start) + b"\n" + raw[128:]
    if name.endswith((".json", ".jsonl")):
        first, _, rest = raw.partition(b"\n") if name.endswith(".jsonl") else (raw, b"", b"")
        return _replaced(case, first) + (b"\n" + rest if rest else b"")
    if name.endswith((".txt", ".tsv")):
        fields = re.split(rb"(\s)", raw)
        fields[case.pick.randrange(len(fields))] = str(case.choice(_VALUES)).encode()
        return b"".join(fields)
    return raw


def _replaced(case: Case, raw: bytes) -> bytes:
    """Replace or delete one value of JSON."""
    try:
        whole = json.loads(raw)
    except ValueError:
        return raw
    root = {"": whole}
    owner: Any = root
    place: Any = ""
    while isinstance(owner[place], dict | list) and owner[place] and case.chance(0.8):
        owner = owner[place]
        keys = list(owner) if isinstance(owner, dict) else list(range(len(owner)))
        place = case.choice(keys)
    value = case.choice(_VALUES)
    if isinstance(owner[place], str) and owner[place][:1] == "{":  # JSON within
        value = _replaced(case, owner[place].encode()).decode()
    case.note(key=place, value=repr(value)[:60])
    if case.chance(0.2):
        del owner[place]
    else:
        owner[place] = value
    return json.dumps(root.get("", {})).encode()


def _rows(case: Case, count: int = ROWS, width: int = WIDTH) -> Tensor:
    return case.normal(count, width).float()


def _of_table(ending: str) -> Callable[[Path], Tensor]:
    def read(folder: Path) -> Tensor:
        table = tables.open(folder / f"e{ending}")
        return table.block(0, min(len(table), 100))

    return read


def _npy(case: Case, folder: Path) -> None:
    np.save(folder / "e.npy", _rows(case).numpy())


def _safetensors(case: Case, folder: Path) -> None:
    save_file({"entity": _rows(case)}, folder / "e.safetensors")


def _oracle_npy(folder: Path) -> Tensor:
    return torch.from_numpy(np.load(folder / "e.npy"))


def _oracle_safetensors(folder: Path) -> Tensor:
    return next(iter(load_file(folder / "e.safetensors").values()))


def _pt(case: Case, folder: Path) -> bool:
    """Save a tensor as torch saves it; False for kinds that may be refused."""
    rows = _rows(case)
    kinds: dict[str, Callable[[], Any]] = {
        "plain": lambda: rows,
        "part": lambda: rows[2:],
        "parameter": lambda: torch.nn.Parameter(rows),
        "complex": lambda: torch.view_as_complex(rows.view(ROWS, -1, 2)),
        "odd: conjugated": lambda: torch.view_as_complex(rows.view(ROWS, -1, 2)).conj(),
        "odd: negated": lambda: torch._neg_view(rows),
        "odd: turned": lambda: rows.T,
        "odd: sparse": lambda: rows.to_sparse(),
        "odd: repeated": lambda: rows[:1].expand(ROWS, WIDTH),
        "odd: meta": lambda: rows.to("meta"),
        "odd: counts": lambda: rows.long(),
        "odd: columns": lambda: rows[:, 1:],
    }
    kind = case.choice(sorted(kinds))
    case.note(saved=kind)
    content = {"other": torch.ones(3), "entity": kinds[kind](), "last": rows[:, :2].clone()}
    torch.save(content, folder / "e.pt")
    return not kind.startswith("odd")


def _read_pt(folder: Path) -> Tensor:
    table = tables.open(f"{folder / 'e.pt'}:entity")
    return table.block(0, len(table))


def _oracle_pt(folder: Path) -> Tensor:
    found = torch.load(folder / "e.pt", weights_only=True)["entity"].detach()
    found = found.resolve_conj().resolve_neg()
    return torch.view_as_real(found).flatten(1) if found.is_complex() else found


def _known(case: Case, folder: Path) -> None:
    np.save(folder / "train.npy", np.stack([case.ids(it, 30).numpy() for it in (ROWS, 2, ROWS)], 1))
    KnownTriples.build(folder / "train.npy", folder / "known", relations=case.chance(0.5))
    (folder / "train.npy").unlink()


def _read_known(folder: Path) -> Any:
    known = KnownTriples.open(folder / "known")
    ids, relations = torch.arange(ROWS).repeat(2), torch.arange(2).repeat_interleave(ROWS)
    for side in ("tail", "head"):
        known.exclude(ids, relations, side, within=(1, 4))
        known.exclude(ids, relations, side)
    known.contains([[0, 0, 1], [5, 1, 2]])
    known.relation_cardinalities()
    return known.entity_frequency()


def _verify_known(folder: Path) -> Any:
    KnownTriples.open(folder / "known", verify=True)  # damaged files are refused
    return _read_known(folder)


def _ids_text(case: Case, folder: Path) -> None:
    rows = [" ".join(str(case.pick.randrange(9)) for _ in "hrt") for _ in range(9)]
    (folder / "train.txt").write_text("\n".join(rows) + "\n")


def _ids_npy(case: Case, folder: Path) -> None:
    np.save(folder / "train.npy", case.ids(9, 9, 3).numpy())


def _build(folder: Path) -> Any:
    return len(KnownTriples.build([*folder.iterdir()], folder / "known"))


def _exported(case: Case, folder: Path) -> None:
    """Write a folder of tables, as ``kgfast export`` does."""
    entity, relation = _rows(case), _rows(case, 2, WIDTH)
    model = kgfast.TransE(entity, relation)
    facts = {"format": 1, "model": "TransE", "wrappers": [], "score": "l1", "norm": "l1"}
    facts |= {"gamma": 6.0, "dim": WIDTH}
    facts |= {"num_entities": model.num_entities, "num_relations": model.num_relations}
    (folder / "config.json").write_text(json.dumps(facts))
    (folder / "entities.json").write_text(json.dumps([f"e{it}" for it in range(ROWS)]))
    if case.chance(0.5):
        save_file({"entity": entity, "relation": relation}, folder / "model.safetensors")
        return
    for name, rows in (("entity", entity), ("relation", relation)):
        np.save(folder / f"{name}.npy", rows.numpy())


def _official(case: Case, folder: Path) -> None:
    """Write a run of the official RotatE code, its tables in one of the two places."""
    config = {"model": "TransE", "hidden_dim": WIDTH, "gamma": 6.0, "nentity": ROWS, "nrelation": 2}
    (folder / "config.json").write_text(json.dumps(config))
    state = {"entity_embedding": _rows(case), "relation_embedding": _rows(case, 2)}
    if case.chance(0.5):
        torch.save({"step": 3, "model_state_dict": state}, folder / "checkpoint")
        return
    for name, rows in state.items():
        np.save(folder / name, rows.numpy())


def _dglke(case: Case, folder: Path) -> None:
    config = {"model_name": "TransE_l2", "dataset": "d", "hidden_dim": WIDTH, "gamma": 6.0}
    (folder / "config.json").write_text(json.dumps(config))
    for name, count in (("entity", ROWS), ("relation", 2)):
        np.save(folder / f"d_TransE_l2_{name}", _rows(case, count).numpy())


def _libkge(case: Case, folder: Path) -> bool:
    """Write a package of LibKGE, with something odd in it."""
    model = case.choice(("rotate", "transe", "distmult", "complex", "simple", "cp", "rescal"))
    widths = {"rotate": WIDTH // 2, "cp": WIDTH // 2, "rescal": WIDTH * WIDTH}
    entity, relation = _rows(case), _rows(case, 2, widths.get(model, WIDTH))
    names = [f"e{it}" for it in range(ROWS)], ["r", "s"]
    also: dict[str, Any] = {}
    how = case.choice(("plain", "plain", "meta", "dataset", "names", "width", "options"))
    value = case.choice(_VALUES)
    case.note(model=model, oddly=how, value=repr(value)[:60])
    if how == "width":
        entity, relation = _rows(case, ROWS, 3), _rows(case, 2, case.choice((2, 3, 5)))
    also |= {"dataset": {"meta": value}} if how == "meta" else {}
    also |= {"dataset": value} if how == "dataset" else {}
    also |= {"dataset": {"meta": {"entity_ids": value}}} if how == "names" else {}
    libkge_files.write(
        folder / "model.pt", model, (entity.numpy(), relation.numpy()),
        names if how == "plain" else None, l_norm=value if how == "options" else 1.0, also=also,
    )  # fmt: skip
    return how == "plain"


def _index(case: Case, folder: Path) -> None:
    kgfast.Index(_model()).save(folder / "index.safetensors")


def _read_index(folder: Path) -> Any:
    model = _model()
    index = kgfast.Index.load(folder / "index.safetensors", model)
    found = kgfast.topk(model, heads=[0, 1], relations=0, k=3, index=index)
    return found.ids


def _model() -> kgfast.DistMult:
    generator = torch.Generator().manual_seed(0)
    entity, relation = (torch.randn(it, 16, generator=generator) for it in (70, 2))
    return kgfast.DistMult(entity, relation)


def _constraints(case: Case, folder: Path) -> None:
    names = Vocabulary([f"é{it}" for it in range(9)]), Vocabulary(["r", "s"])
    allowed = TypeConstraints.from_triples(case.ids(2, 9, 3), vocabulary=names)
    allowed.save(folder / "c.safetensors")


def _openke(case: Case, folder: Path) -> None:
    (folder / "type_constrain.txt").write_text("2\n0 2 0 1\n0 1 2\n1 0\n1 1 3\n")


def _run(case: Case, folder: Path) -> None:
    rows = [{"step": it, "loss": 1.0 / it, "lr": 0.1} for it in range(1, 5)]
    rows.append({"step": 4, "split": "valid", "mrr": 0.25, "dim": None})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(it) + "\n" for it in rows))
    result = {"steps": 4, "best_step": 4, "test": {"mrr": 0.5}, "seconds_training": 1.5}
    (folder / "result.json").write_text(json.dumps(result))


def _read_run(folder: Path) -> Any:
    found = len(read_rows(folder))
    if found < 100:
        plot(folder, folder / "picture.png")
    return found


def _nt(case: Case, folder: Path) -> None:
    lines = [f"<a:{case.pick.randrange(9)}> <b:é> <a:{it}> .\n" for it in range(9)]
    (folder / "train.nt").write_text("".join(lines), encoding="utf-8")
    if case.chance(0.3):
        raw = (folder / "train.nt").read_bytes()
        (folder / "train.nt").unlink()
        (folder / "train.nt.gz").write_bytes(gzip.compress(raw))


def _hdf5(case: Case, folder: Path) -> bool:
    """Write a dataset whose rows lie in the file, in chunks of it, or in another file."""
    import h5py

    rows, kind = (
        _rows(case).numpy(),
        case.choice(("plain", "chunks", "external", "virtual", "link")),
    )
    case.note(saved=kind)
    with h5py.File(folder / "e.h5", "w") as file:
        if kind in ("plain", "chunks"):
            file.create_dataset(
                "embeddings", data=rows, chunks=(2, WIDTH) if kind == "chunks" else None
            )
            return True
        other = str(folder / "other.h5")
        with h5py.File(other, "w") as elsewhere:
            elsewhere["embeddings"] = rows
        if kind == "external":
            file.create_dataset("embeddings", rows.shape, "f4", external=[(other, 0, rows.nbytes)])
        elif kind == "virtual":
            layout = h5py.VirtualLayout(rows.shape, "f4")
            layout[:] = h5py.VirtualSource(other, "embeddings", rows.shape)
            file.create_virtual_dataset("embeddings", layout)
        else:
            file["embeddings"] = h5py.ExternalLink(other, "embeddings")
    return False


def _parquet(case: Case, folder: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    columns = {name: case.ids(9, 9).numpy() for name in ("head", "relation", "tail")}
    parquet.write_table(pyarrow.table(columns), folder / "train.parquet")


_READERS: dict[str, Reader] = {
    "table .npy": Reader(_npy, _of_table(".npy"), _oracle_npy),
    "table .safetensors": Reader(_safetensors, _of_table(".safetensors"), _oracle_safetensors),
    "table .pt": Reader(_pt, _read_pt, _oracle_pt),
    "known": Reader(_known, _read_known),
    "known, verified": Reader(_known, _verify_known),
    "ids in text": Reader(_ids_text, _build),
    "ids in .npy": Reader(_ids_npy, _build),
    "tables of kgfast": Reader(_exported, kgfast.load_run),
    "tables of kgfast in files": Reader(_exported, lambda it: kgfast.load_run(it, as_table=True)),
    "official": Reader(_official, load_official),
    "official in files": Reader(_official, lambda it: load_official(it, as_table=True)),
    "dglke": Reader(_dglke, load_dglke),
    "converted": Reader(_dglke, lambda it: convert(it, it / "out")),
    "libkge": Reader(_libkge, lambda it: read_libkge(it / "model.pt")),
    "index": Reader(_index, _read_index),
    "constraints": Reader(_constraints, lambda it: TypeConstraints.load(it / "c.safetensors")),
    "openke": Reader(_openke, TypeConstraints.from_openke),
    "logs": Reader(_run, _read_run),
    "ntriples": Reader(_nt, kgfast.datasets.load),
}
_OF_PACKAGES = {
    "h5py": {"table .h5": Reader(_hdf5, _of_table(".h5"))},
    "pyarrow": {
        "ids in Parquet": Reader(_parquet, _build),
        "triples in Parquet": Reader(_parquet, kgfast.datasets.load),
    },
}
for _package, _own in _OF_PACKAGES.items():
    if find_spec(_package) is not None:
        _READERS |= _own
