"""Mutated data folders and configs: a dataset, or a line that names the file, and nothing else."""

import gzip
import shutil
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from fuzz.case import Case, expect
from kgfast import datasets
from kgfast.training import Config
from support import data_folders

ENTITIES = [f"entity_{number}" for number in range(30)]
RELATIONS = ["likes", "is in", "größer als"]
CONFIG = {
    "dataset": {"name": "wn18rr"},
    "model": {"name": "rotate", "base_dim": 80},
    "optim": {"lr": 1e-3, "betas": [0.9, 0.99]},
    "train": {"epochs": 1},
    "data": {"negatives": "shared", "neg_size": 16},
}
EXPECTED = (ValueError, TypeError, OSError, ImportError)
_SMALL = 320 << 20  # bytes of Python objects that reading a small file may take


def dataset(case: Case) -> None:
    """Change bytes of a folder of one of the layouts."""
    with scratch() as folder:
        layout = case.choice(["dgl-ke", *data_folders.LAYOUTS])
        case.note(layout=layout)
        _write(case, folder, layout)
        for _ in range(case.pick.randint(0, 3)):
            mutate(case, case.choice(sorted(folder.iterdir())), _TEXTS)
        named = f"{folder}/", f"{folder}:"
        found = _bounded(lambda: datasets.load(folder), folder, named)
        if found is None:
            return
        for split in (found.train, found.valid, found.test):
            hrt = split.hrt
            if len(hrt):
                most = hrt.max(0).values.tolist()
                sizes = [found.num_entities, found.num_relations, found.num_entities]
                expect(int(hrt.min()) >= 0, "a negative id")
                expect(
                    all(a < b for a, b in zip(most, sizes, strict=True)), f"ids {most} of {sizes}"
                )


def config(case: Case) -> None:
    """Change a config file."""
    with scratch() as folder:
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(CONFIG))
        mutations = case.pick.randint(0, 3)
        for _ in range(mutations):
            mutate(case, path, _YAMLS)
        overrides = [case.choice(_SETS) for _ in range(case.pick.randint(0, 2))]
        case.note(set=overrides)
        named = f"{path}:", "--set"
        found = _bounded(lambda: Config.from_yaml(path, overrides), folder, named, lines=40)
        if not mutations and overrides and set(overrides) <= _LENGTHS:
            both = {it.partition("=")[0] for it in overrides} == {"train.epochs", "train.steps"}
            expect((found is None) == both, "one of steps and epochs is set, or not refused")


def _bounded(call: Callable[[], Any], folder: Path, named: tuple[str, ...], lines: int = 1) -> Any:
    """Return the result, or None where it was refused as it should be: a line for each mistake.

    A line of a ValueError begins with the file, as one of ``named``.
    """
    tracemalloc.start()
    try:
        result = call()
    except EXPECTED as error:
        message, result = str(error), None
        expect(bool(message), f"{type(error).__name__} says nothing")
        found = message.split("\n")
        expect(len(found) <= lines, f"{len(found)} lines: {message[:300]!r}")
        expect(all(map(str.strip, found)), f"an empty line: {message[:300]!r}")
        expect(max(map(len, found)) <= 1500, f"{len(message)} characters: {message[:150]!r}")
        if isinstance(error, ValueError):
            expect(all(it.startswith(named) for it in found), f"names no file: {message[:300]!r}")
        expect("root:" not in message, f"quotes a file outside of the folder: {message[:300]!r}")
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    size = sum(it.stat().st_size for it in folder.rglob("*") if it.is_file())
    expect(peak <= _SMALL + 100 * size, f"took {peak >> 20} MiB for {size} bytes")
    return result


@contextmanager
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="kgfast-fuzz-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(case: Case, folder: Path, layout: str) -> None:
    """Write a random graph in a layout."""

    def some(names: list[str]) -> int:
        return case.pick.randrange(len(names))

    splits = {
        split: [
            (some(ENTITIES), some(RELATIONS), some(ENTITIES))
            for _ in range(case.pick.randint(1, 20))
        ]
        for split in ("train", "valid", "test")
    }
    if layout in data_folders.LAYOUTS:
        names = ENTITIES, RELATIONS
        data_folders.write(folder, data_folders.LAYOUTS[layout](splits, names))
        return
    named = {
        split: [(ENTITIES[h], RELATIONS[r], ENTITIES[t]) for h, r, t in rows]
        for split, rows in splits.items()
    }
    data_folders.write_dglke(folder, case.choice(data_folders.ORDERS), triples=named)


_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{one}: &{one} [{', '.join([f'*{two}'] * 9)}]\n"
    for two, one in zip("abcdefghijklm", "bcdefghijklmn", strict=True)
)
_COMMON = [
    b"", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\r\n", b"\n\n\n", b"\t\t\t", b"1" * 5000, b"-1",
    b"9" * 30, b"1e400", b"nan", b"x" * 1_000_000, "\u202e\u2028\x1b[2J".encode(), b"#", b"'", b'"',
    b"\t", b"\n", b"\r", b" ", b"0", b"+1", b"1.5", b"[", b"{", b": ", b"*a", b"&a ", b"!!int ",
    b"\xff", b"\x85", b"\x0b", b"\xe2\x80\xa8",
]  # fmt: skip
_TEXTS = [
    *_COMMON,
    b"99\tentity_99\n",
    b"a\tb\n",
    b"a\tb\tc\td\n",
    b"dataset: {files: {train: {filename: /etc/passwd}}}\n",
    b"dataset.files.train.filename: ../../../../etc/passwd\n",
    b"dataset: {files: {entity_ids: {filename: [a, b]}}}\n",
    _BOMB.encode(),
    b"? [a, b]\n: c\n",
    b"[" * 3000,
    b"{a: " * 3000,
]
_YAMLS = [
    *_COMMON,
    _BOMB.encode(),
    b"? [a, b]\n: c\n",
    b"[" * 3000,
    b"{a: " * 3000,
    b"&a [*a]\n",
    b"!!python/object/apply:os.system [id]\n",
    b"model: &m {name: rotate}\noptim: *m\n",
    b"model:\n  base_dim: 1e999\n",
    b"seed: 2024-01-01\n",
    b"train: {steps: 0x7fffffffffffffffffff}\n",
    b"'dataset.name.x.y': 3\n",
    b"<<: {a: 1}\n",
    b"%YAML 9.9\n---\n",
    b"--- 1\n--- 2\n",
    b"model: null\n",
    b"med: {dims: [1, 2, .inf]}\n",
]
_SETS = [
    "", "=", "a", "optim.lr=1e-3", "optim.lr=.nan", "model.name=[[[[", "model=3", "a.b.c.d=1",
    "optim.betas=[1,2,3]", "med.dims=[" + "1," * 2000 + "]", "model.name=" + "x" * 100_000,
    "optim.lr=&a [*a]", "train.steps=" + "9" * 5000, "." * 3000 + "=1",
    "seed=-1", "x" * 9000 + "=1", "train.steps=300", "train.epochs=3", "train={steps: 3}",
    "train=3", "model.init_std=0.1",
]  # fmt: skip
_LENGTHS = {"train.steps=300", "train.epochs=3"}


def mutate(case: Case, path: Path, words: list[bytes]) -> None:
    """Change a file: bytes, lines, its length, its compression, or what stands under its name."""
    raw = path.read_bytes() if path.is_file() else b""
    how = case.choice(
        ("flip", "insert", "insert", "replace", "cut", "drop", "repeat", "gzip", "gone")
    )
    case.note(mutation=(path.name, how))
    place = case.pick.randrange(len(raw) + 1)
    if how == "flip":
        raw = raw[:place] + bytes([case.pick.randrange(256)]) + raw[place + 1 :]
    elif how == "insert":
        place = case.choice((place, 0, len(raw), raw.find(b"\n") + 1))
        raw = raw[:place] + case.choice(words) + raw[place:]
    elif how == "replace":
        raw = case.choice(words)
    elif how == "cut":
        raw = raw[:place]
    elif how == "drop":
        lines = raw.split(b"\n")
        del lines[case.pick.randrange(len(lines))]
        raw = b"\n".join(lines)
    elif how == "repeat":
        raw = raw + raw[place:]
    elif how == "gzip":
        _gzip(case, path, raw)
        return
    elif how == "gone":
        _remove(path)
        if case.chance(0.4):
            path.mkdir()
        return
    if path.is_file():
        path.write_bytes(raw)


def _gzip(case: Case, path: Path, raw: bytes) -> None:
    kind = case.choice(("whole", "whole", "cut", "cut", "bomb", "not", "not"))
    packed = _bomb() if kind == "bomb" else gzip.compress(raw)
    if kind == "cut":
        packed = packed[: max(1, len(packed) - 9)]
    _remove(path)
    path.with_name(path.name + ".gz").write_bytes(raw if kind == "not" else packed)


@cache
def _bomb() -> bytes:
    return gzip.compress(b"a\tb\tc\n" * 20_000_000, 1)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
