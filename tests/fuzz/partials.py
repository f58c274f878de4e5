"""Folders of ``partial=`` that are stopped, damaged, or whose table changes: right, or refused."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

import kgfast
from fuzz.case import Case, expect
from fuzz.checkpoints import mutated
from fuzz.evaluations import drawn_graph
from fuzz.folders import scratch
from kgfast import tables
from kgfast.eval.partial import Partial

_MODELS = (kgfast.DistMult, kgfast.TransE, kgfast.ComplEx)
_TABLES = ("file", "tensor", "own", "mixed")
_ATTACKS = ("nothing", "rows", "rows in a pass", "bytes", "arrays", "fields", "gone", "left")
_VALUES = [0, -1, 1, 2.5, 10**30, True, None, "x", [], {}, [[]], "9" * 5000]
_ATTEMPTS = 12  # files that may have to be deleted one after the other


class Own:
    """A table of the user's own class."""

    def __init__(self, values: Tensor) -> None:
        self.values, self.dtype = values, values.dtype
        self.shape = (len(values), values.shape[1])

    def block(self, start: int, stop: int) -> Tensor:
        return self.values[start:stop]

    def rows(self, ids: Tensor) -> Tensor:
        return self.values[ids]


class _Stopped(BaseException):
    """Stands for a kill."""


class _Call:
    """One call of ``rank`` or ``topk``, and its table, which may change."""

    def __init__(self, case: Case, path: Path) -> None:
        self.case, self.path, self.folder = case, path, path / "kept"
        entities, relations = case.pick.randint(2, 400), case.pick.randint(1, 4)
        self.kind, self.how = case.choice(("rank", "topk")), case.choice(_TABLES)
        model = case.choice(_MODELS).init(
            entities, relations, case.choice((2, 3, 8)), seed=case.pick.randrange(99)
        )
        self.model = model.to(case.choice((torch.float32, torch.float64)))
        self.rows: Tensor = self.model.entity.detach().clone()
        self.hrt, self.known, _ = drawn_graph(case, entities, relations)
        self.k, self.limit = case.pick.randint(1, min(40, entities)), case.pick.randint(6, 60) << 10
        self.writes = 0
        self._write()
        case.note(call=self.kind, table=self.how, entities=entities, triples=len(self.hrt))

    def truth(self) -> Tensor:
        return self._ask(self.rows, {})

    def __call__(self) -> Tensor:
        """Ask with the folder."""
        table: Any = self.rows
        if self.how == "file":
            table = tables.open(self.path / "0.npy")
        elif self.how == "mixed":
            table = tables.open([self.path / "0.npy", self.rows[len(self.rows) // 2 :]])
        elif self.how == "own":
            table = Own(self.rows)
        else:
            table = tables.open(self.rows)
        return self._ask(table, {"max_memory": self.limit, "partial": self.folder})

    def change(self) -> None:
        first = len(self.rows) // 2 if self.how == "mixed" else 0
        count = self.case.pick.randint(1, len(self.rows) - first)
        places = first + torch.randperm(len(self.rows) - first, generator=self.case.generator)
        self.rows[places[:count]] *= -1.5
        self._write()

    def _write(self) -> None:
        """Write the rows of a file, at a later time than before."""
        if self.how in ("file", "mixed"):
            count = len(self.rows) // (1 + (self.how == "mixed"))
            np.save(self.path / "0.npy", self.rows[:count].numpy())
            if self.how == "file":
                self.writes += 1
            os.utime(self.path / "0.npy", ns=(0, self.writes * 10**9))

    def _ask(self, table: Any, options: dict[str, Any]) -> Tensor:
        model, known = self.model.with_entity(table), self.known
        if self.kind == "rank":
            ranks = kgfast.rank(model, self.hrt, known=known, **options)
            return torch.stack([ranks.greater, ranks.equal, ranks.num_candidates]).double()
        given = {"heads": self.hrt[:, 0], "relations": self.hrt[:, 1], "k": self.k, "pad": True}
        top = kgfast.topk(model, known=known, **given, **options)
        return torch.cat([top.ids.double(), top.scores.double()])


def folder(case: Case) -> None:
    """Stop a call with a folder, attack the folder once, then call until the answer is right."""
    with scratch() as path:
        call, attack = _Call(case, path), case.choice(_ATTACKS)
        stop, changes = case.pick.randint(1, 12), attack == "rows in a pass" and case.chance(0.9)
        case.note(attack=attack, stop=stop)
        truth = call.truth()

        def at_save() -> None:
            if not changes:
                raise _Stopped
            if call.how != "file":
                call.change()

        _stopped(call, truth, stop, at_save, may_refuse=changes)
        if attack == "rows":
            call.change()
        elif (call.folder / "call.json").exists():
            _attack(case, attack, call.folder)
        _until_right(call, call.truth())


def _stopped(
    call: _Call, truth: Tensor, stop: int, at_save: Callable[[], None], *, may_refuse: bool
) -> None:
    """Call, and let ``at_save`` happen once ``stop`` ranges are saved."""
    save, saved = Partial.save, []

    def watched(self: Partial, *given: Any) -> None:
        save(self, *given)
        saved.append(given)
        if len(saved) == stop:
            at_save()

    with mock.patch.object(Partial, "save", watched):
        try:
            message = _right_or_refused(call, truth)
        except _Stopped:
            return
    expect(message is None or may_refuse, f"a new folder is refused: {message!r:.300}")
    expect(message is None or "have changed" in message, f"another error: {message!r:.300}")


def _until_right(call: _Call, truth: Tensor) -> None:
    """Call, and delete what an error says to delete, until the answer is right."""
    for _ in range(_ATTEMPTS):
        message = _right_or_refused(call, truth)
        if message is None:
            left = [it.name for it in call.folder.iterdir() if it.name.startswith(".")]
            expect(left == [".lock"], f"files are left: {left}")
            return
        files = [it for it in call.folder.iterdir() if message.startswith(f"{it}: damaged: ")]
        for file in files:
            expect(
                message.endswith("; delete the file"), f"what to do is not said: {message!r:.300}"
            )
            file.unlink()
        if not files:
            is_known = "is of another call" in message or "goes on with format" in message
            expect(is_known, f"another error: {message!r:.300}")
            shutil.rmtree(call.folder)
    expect(False, "it is refused again and again")


def _right_or_refused(call: _Call, truth: Tensor) -> str | None:
    """Return the message of an error; None where the answer is right."""
    try:
        found = call()
    except ValueError as error:
        message = str(error)
        expect("\n" not in message, f"several lines: {message[:300]!r}")
        expect(len(message) <= 1500, f"{len(message)} characters: {message[:100]!r}")
        return message
    expect(torch.equal(found, truth), "the answer is not that of the table in memory")
    return None


def _attack(case: Case, attack: str, path: Path) -> None:
    """Damage the folder of a call."""
    files = sorted(path.glob("*.*"))
    file, passes = case.choice(files), sorted(path.glob("pass-*.npz"))
    if attack == "bytes" and file.stat().st_size:
        file.write_bytes(mutated(case, file.read_bytes()))
    elif attack == "arrays" and passes:
        _change_array(case, case.choice(passes))
    elif attack == "fields":
        _change_field(case, path / "call.json")
    elif attack == "gone":
        file.unlink()
    elif attack == "left":
        number = case.pick.randrange(1, 10**6)
        name = case.choice((f".call-{number}.json", f".pass-3-{number}.npz"))
        (path / name).write_bytes(case.choice((b"", b"{", b"x" * 1000)))
        if case.chance(0.5):
            (path / "call.json").unlink()


def _change_array(case: Case, path: Path) -> None:
    with np.load(path) as found:
        arrays: dict[str, Any] = dict(found)
    name = case.choice(sorted(arrays))
    array, number = arrays[name], case.pick.randrange(100)
    how = case.choice(("gone", "dtype", "shape", "one", "value", "more"))
    case.note(array=name, how=how)
    if how == "gone":
        del arrays[name]
    elif how == "more":
        arrays[f"values_{number}"] = array
    elif how == "value":
        arrays[name] = array.copy()
        arrays[name].reshape(-1)[number % max(1, array.size) : 1 + number] += 1
    else:
        arrays[name] = {
            "dtype": lambda: array.astype(case.choice((np.float32, np.int32, np.uint64))),
            "shape": lambda: array.reshape(-1)[:-1],
            "one": lambda: np.full((), number, array.dtype),
        }[how]()
    np.savez(path, **arrays)


def _change_field(case: Case, path: Path) -> None:
    found = json.loads(path.read_text())
    name, value = case.choice(sorted(found)), case.choice(_VALUES)
    case.note(field=name, value=repr(value)[:40])
    path.write_text(json.dumps(found | {name: value}))
