"""Mutated checkpoints: the state that was saved, the one before, or one line that says why not."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fuzz.case import Case, expect
from fuzz.folders import scratch
from kgfast.datasets import synthetic
from kgfast.training import Config, RunFolder, Trainer
from kgfast.training.checkpoint import load, save

State = tuple[dict[str, Tensor], dict[str, Any]]
_GRAPH = (40, 3, 120, 10, 10)
_BAD_META = [
    None, 3, "x", [], True, -1, 1.5, {}, {"a": 1}, [[]], 10**30, "9" * 5000, float("1e308"),
]  # fmt: skip


def file(case: Case) -> None:
    """Change bytes of a file: it holds what was saved, or is refused."""
    with scratch() as folder:
        path, state = folder / "a.safetensors", _state(case)
        save(path, *state)
        raw = path.read_bytes()
        changed = mutated(case, raw)
        path.write_bytes(changed)
        found = _loaded(path)
        if changed == raw:
            expect(found is not None, "a whole file is refused")
        if found is not None:
            _expect_same(found, state)


def folder(case: Case) -> None:
    """Break the newest state of a folder: the one before is read, or all are refused."""
    with scratch() as path:
        run, states = RunFolder(path), [_state(case, step) for step in (1, 2)]
        for state in states:
            run.save_last(*state)
        how = case.choice(("bytes", "bytes", "folder", "meta", "gone"))
        case.note(how=how)
        if how == "bytes":
            run.last.write_bytes(mutated(case, run.last.read_bytes()))
        elif how == "meta":
            run.last.write_bytes(_with_header(run.last.read_bytes(), _bad_header(case)))
        else:
            run.last.unlink()
            if how == "folder":
                run.last.mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = run.load_last()
        expect(found is not None, "nothing is found")
        assert found is not None
        wanted = states[0] if found[1].get("step") == 1 else states[1]
        _expect_same(found, wanted)


def resume(case: Case) -> None:
    """Resume a run whose state was tampered with: from the state before, or it says why not."""
    with scratch() as path:
        config = _config(case)
        _trainer(config, path).fit()
        before = load(path / "last.safetensors")
        tensors, meta = {name: it.clone() for name, it in before[0].items()}, dict(before[1])
        if case.chance(0.6):
            _tamper(case, tensors)
        else:
            key = case.choice(sorted(meta))
            where, value = meta, case.choice(_BAD_META)
            if isinstance(meta[key], dict) and meta[key] and case.chance(0.6):
                where = meta[key] = dict(meta[key])
                key = case.choice(sorted(where))
            case.note(meta=key, value=repr(value)[:60])
            if case.chance(0.3):
                del where[key]
            else:
                where[key] = value
        save(path / "last.safetensors", tensors, meta)
        for name in case.pick.sample(
            ["result.json", "best.safetensors", "previous.safetensors"], 2
        ):
            (path / name).unlink(missing_ok=True)
        trainer = _trainer(config, path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                trainer.fit(resume=True)
            except (ValueError, TypeError, OSError) as error:
                expect("\n" not in str(error), f"several lines: {str(error)[:300]!r}")
                expect(len(str(error)) <= 2000, f"{len(str(error))} characters")
                return
        for name, tensor in trainer.model.state_dict().items():
            expect(bool(tensor.isfinite().all()), f"{name} is not finite")


def _state(case: Case, step: int = 3) -> State:
    tensors = {
        f"{case.choice('abc')}.{place}": torch.full((case.pick.randint(0, 9), 4), float(step))
        for place in range(case.pick.randint(1, 4))
    }
    return tensors, {"step": step, "name": "größer", "values": [1.5, None, True]}


def _loaded(path: Path) -> State | None:
    try:
        return load(path)
    except (ValueError, OSError) as error:
        message = str(error)
    expect(str(path) in message, f"does not name the file: {message[:300]!r}")
    expect("\n" not in message, f"several lines: {message[:300]!r}")
    expect(len(message) <= 1500, f"{len(message)} characters: {message[:100]!r}")
    return None


def _expect_same(found: State, wanted: State) -> None:
    expect(found[1] == wanted[1], f"meta {found[1]!r:.200}, not {wanted[1]!r:.200}")
    expect(found[0].keys() == wanted[0].keys(), f"tensors {sorted(found[0])}")
    for name, tensor in wanted[0].items():
        same = found[0][name].dtype == tensor.dtype and torch.equal(found[0][name], tensor)
        expect(same, f"{name} differs")


def mutated(case: Case, raw: bytes) -> bytes:
    how = case.choice(
        ("flip", "flip", "flip", "byte", "cut", "add", "swap", "zero", "nothing", "header")
    )
    place = case.pick.randrange(len(raw))
    case.note(bytes=how, place=place, of=len(raw))
    if how == "flip":
        return raw[:place] + bytes([raw[place] ^ (1 << case.pick.randrange(8))]) + raw[place + 1 :]
    if how == "byte":
        return raw[:place] + bytes([case.pick.randrange(256)]) + raw[place + 1 :]
    if how == "cut":
        return raw[:place]
    if how == "add":
        return raw[:place] + case.choice((b"\0", b"x" * 9, raw[:40])) + raw[place:]
    if how == "swap":
        return raw[place:] + raw[:place] if place else raw[::-1]
    if how == "zero":
        return raw[:place] + b"\0" * min(64, len(raw) - place) + raw[place + 64 :]
    if how == "header":
        return _with_header(raw, _bad_header(case))
    return raw


def _bad_header(case: Case) -> bytes:
    return case.choice(
        (
            b"{}", b"[]", b"null", b"{" * 5000, b"[" * 100_000, b'{"__metadata__":{"kgfast":"[]"}}',
            b'{"__metadata__":{"kgfast":"{}"}}', b'{"__metadata__":3}',
            b'{"__metadata__":{"kgfast":"' + b"[" * 50_000 + b'"}}',
            b'{"__metadata__":{"kgfast":"{\\"version\\": \\"x\\", \\"meta\\": 3}"}}',
            b'{"__metadata__":{"kgfast":"{\\"version\\": 1, \\"meta\\": [1, 2]}"}}',
            b'{"__metadata__":{"kgfast":"{\\"version\\": 1e400, \\"meta\\": {}}"}}',
            b'{"x":{"dtype":"F32","shape":[9223372036854775807,4],"data_offsets":[0,0]}}',
        )
    )  # fmt: skip


def _with_header(raw: bytes, header: bytes) -> bytes:
    size = int.from_bytes(raw[:8], "little")
    return len(header).to_bytes(8, "little") + header + raw[8 + size :]


def _tamper(case: Case, tensors: dict[str, Tensor]) -> None:
    """Change one tensor: its shape, its dtype, its name, or whether it is there."""
    name = case.choice(sorted(tensors))
    tensor = tensors[name]
    how = case.choice(("one", "rows", "dtype", "gone", "more", "flat", "empty", "nan"))
    case.note(tensor=name, how=how)
    if how == "gone":
        del tensors[name]
    elif how == "more":
        tensors[name + ".more"] = tensor.clone()
    else:
        tensors[name] = {
            "one": lambda: torch.ones(1),
            "rows": lambda: torch.cat([tensor, tensor]) if tensor.ndim else tensor[None],
            "dtype": lambda: tensor.to(case.choice((torch.float64, torch.int32, torch.float16))),
            "flat": lambda: tensor.reshape(-1)[:-1].clone(),
            "empty": lambda: tensor.new_empty(0),
            "nan": lambda: torch.full_like(tensor.float(), float("nan")),
        }[how]()


def _config(case: Case) -> Config:
    optimizer = case.choice(("row_adam", "adam", "row_adagrad", "adagrad", "sgd"))
    schedule = case.choice(("constant", "plateau", "cosine"))
    case.note(optim=optimizer, sched=schedule)
    values = {
        "threads": 1,
        "dataset": {"name": "synthetic"},
        "model": {"name": case.choice(("rotate", "transe")), "base_dim": 4, "gamma": 6.0},
        "data": {"train_bs": 32, "neg_size": 4, "negatives": "shared"},
        "optim": {"name": optimizer, "lr": 0.01},
        "sched": {"name": schedule},
        "train": {"steps": 6, "save_every": 2, "eval_every": 3, "log_every": 1},
    }
    return Config.from_dict(values)


def _trainer(config: Config, path: Path) -> Trainer:
    return Trainer(config, path, dataset=synthetic(*_GRAPH), progress=False)
