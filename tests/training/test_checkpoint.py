"""Checkpoints: exact, atomic under a real kill and a full disk, and never a surprise when read."""

import os
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kgfast.tables import files
from kgfast.training import RunFolder
from kgfast.training.checkpoint import load, save
from support.forked import printed_by

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
DTYPES = [*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool]


def state(step, rows=3):
    return {"model.entity": torch.full((rows, 4), float(step))}, {"step": step}


def step_of(loaded):
    """Return the step of a state whose tensors and meta agree."""
    tensors, meta = loaded
    assert (tensors["model.entity"] == meta["step"]).all()
    return meta["step"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (7, 5)], ids=str)
def test_tensors_come_back_bit_by_bit(tmp_path, dtype, shape):
    generator = torch.Generator().manual_seed(0)
    tensor = torch.randint(0, 200, shape, generator=generator).to(dtype)
    save(tmp_path / "a", {"x": tensor}, {})
    found = load(tmp_path / "a")[0]["x"]
    assert (found.dtype, found.shape) == (dtype, tensor.shape)
    assert torch.equal(found, tensor)


def test_tables_are_written_and_read_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_BLOCK", 64)
    table, other = torch.randn(11, 4), torch.randn(9, 4)
    reads = []

    class InBlocks:
        shape, dtype = table.shape, table.dtype

        def block(self, start, stop):
            reads.append((start, stop))
            return table[start:stop]

    tensors = {"model.entity": InBlocks(), "optim.model.entity.exp_avg": table, "model.x": other}
    save(tmp_path / "a", tensors | {"optim.model.entity.step": torch.tensor(4.0)}, {})
    assert reads == [(0, 4), (4, 8), (8, 11)]
    shapes = []
    found, _ = load(tmp_path / "a", lambda it: shapes.append(it) or torch.empty(it))
    assert torch.equal(found["model.entity"], table)
    assert torch.equal(found["optim.model.entity.exp_avg"], table)
    assert torch.equal(found["model.x"], other)
    assert found["optim.model.entity.step"] == 4
    assert len(shapes) == 3


def test_a_tensor_that_no_file_holds_is_named(tmp_path):
    with pytest.raises(TypeError, match=r"x is of torch\.complex64"):
        save(tmp_path / "a", {"x": torch.ones(2, dtype=torch.complex64)}, {})
    assert list(tmp_path.iterdir()) == []


def test_special_values_and_views(tmp_path):
    table = torch.randn(6, 8)
    tensors = {
        "special": torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]),
        "transposed": table.T,
        "strided": table[::2, 1::3],
        "all": table,
        "part": table[1:3],
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    save(tmp_path / "a", tensors, {})
    found = load(tmp_path / "a")[0]
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(
            found[name].view(torch.int32), tensor.detach().contiguous().view(torch.int32)
        )
        assert not found[name].requires_grad


DAMAGES = [
    *(lambda whole, size=size: whole[:size] for size in (0, 1, 7, 8, 9, 50)),
    lambda whole: whole[: len(whole) // 2],
    lambda whole: whole[:-1],
    lambda whole: whole + b"x",
    lambda whole: struct.pack("<Q", 1 << 60) + whole,  # a size of the header that is a lie
    *(lambda _, text=text: text for text in (b"\0" * 64, b"PK\3\4" * 16, b"hello, world", b"{}")),
]


FOREIGN = "a safetensors file, but not a checkpoint of kgfast"
VERSION = "format version {}; this kgfast reads 1: train again"
TEXTS = [  # values of kgfast's key in the header
    *(
        '{"version": 1, "meta": {}}',
        '{"version": "1", "meta": {}}',
        '{"version": true, "meta": {}}',
    ),
    *('{"version": 1, "meta": []}', '{"version": 1}', '{"meta": {}}', "null", "[" * 100_000),
    '{"version": 1, "meta": ' + '{"a":' * 50_000 + "1" + "}" * 50_000 + "}",
    '{"version": ' + "9" * 5000 + ', "meta": {}}',
]
HEADERS = [
    *((it, FOREIGN) for it in (None, {"format": "pt"}, {"kgfast": "no json"}, {"kgfast": "[]"})),
    *(({"kgfast": f'{{"version": {it}, "meta": {{}}}}'}, VERSION.format(it)) for it in (0, 2)),
    *(({"kgfast": it}, "not a checkpoint|damaged|format version") for it in TEXTS),
]


class TestBrokenFiles:
    @pytest.fixture
    def path(self, tmp_path):
        save(tmp_path / "a.safetensors", *state(3, rows=100))
        return tmp_path / "a.safetensors"

    def fails(self, path, what, error=ValueError):
        with pytest.raises(error, match=what) as caught:
            load(path)
        assert str(path) in str(caught.value)

    @pytest.mark.parametrize("damage", DAMAGES, ids=range(len(DAMAGES)))
    def test_what_is_no_whole_file(self, path, damage):
        path.write_bytes(damage(path.read_bytes()))
        self.fails(path, "truncated, or not a checkpoint")

    def test_a_pickle_is_not_run(self, path, tmp_path):
        class Bomb:
            def __reduce__(self):
                return Path.touch, (tmp_path / "ran",)

        torch.save(Bomb(), path)
        self.fails(path, "truncated, or not a checkpoint")
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize(("header", "message"), HEADERS, ids=range(len(HEADERS)))
    def test_foreign_safetensors(self, path, header, message):
        save_file({"x": torch.ones(1)}, path, header)
        self.fails(path, message)

    def test_none(self, path):
        self.fails(path.with_name("b"), "no such checkpoint", FileNotFoundError)


class TestDamage:
    """Damage by a disk or a copy: every flip of a bit is noticed, wherever it falls."""

    def test_every_bit_of_the_body_and_of_the_header(self, tmp_path):
        path = tmp_path / "a"
        tensors = {
            "model.entity": torch.randn(5, 4),
            "flags": torch.tensor([True, False]),
            "step": torch.tensor(3),
        }
        save(path, tensors, {"step": 3, "text": "abc"})
        whole = path.read_bytes()
        for place in range(len(whole)):
            for bit in range(8) if place % 5 == 0 else [place % 8]:
                changed = bytearray(whole)
                changed[place] ^= 1 << bit
                path.write_bytes(changed)
                with pytest.raises(ValueError, match=str(path)):
                    load(path)


class TestFullDisk:
    SCRIPT = """
import resource, sys, torch
from kgfast.training.checkpoint import save
save(sys.argv[1], {"model.entity": torch.full((3, 4), 1.0)}, {"step": 1})
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    save(sys.argv[1], {"model.entity": torch.full((30_000, 4), 2.0)}, {"step": 2})
except OSError as error:
    print(error)
"""

    def test_the_system_refuses_to_write_more(self, tmp_path):
        """A limit on the size of files stands for a full disk: the same write fails."""
        path = tmp_path / "a.safetensors"
        printed = printed_by(self.SCRIPT, arguments=[path])
        assert "cannot write: File too large; the old file is intact" in printed
        assert str(path) in printed
        assert step_of(load(path)) == 1
        assert os.listdir(tmp_path) == [path.name]


class TestRunFolder:
    def test_nothing_yet(self, tmp_path):
        folder = RunFolder(tmp_path / "run")
        assert not folder.holds_a_run()
        assert folder.models() == []
        with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
            folder.load_best()
        with pytest.raises(FileNotFoundError, match="the run has not ended"):
            folder.read_result()
        assert not folder.path.exists()

    def test_last_and_best(self, tmp_path):
        folder = RunFolder(tmp_path / "run")
        for step in (1, 2):
            save(folder.last, *state(step))
        assert step_of(folder.load_last()) == 2
        assert os.listdir(folder.path) == ["last.safetensors"]
        assert folder.holds_a_run()
        assert step_of(folder.load_best()) == 2
        save(folder.best, *state(1))
        assert step_of(folder.load_best()) == 1


# One interpreter that has loaded torch forks a writer per kill: a real process, really killed.
KILL_OFTEN = """
import itertools, os, random, signal, sys, time, torch
from kgfast.training import RunFolder
from kgfast.training.checkpoint import save

torch.set_num_threads(1)
folder = RunFolder(sys.argv[1])
pick = random.Random(0)
reported = in_the_middle = 0
for kill in range(400):
    if kill >= 25 and reported and in_the_middle:
        break  # a busy machine needs more kills until one falls into a write
    state = folder.load_last() if folder.last.exists() else None
    step = 0 if state is None else state[1]["step"]
    assert step >= reported, f"step {reported} was saved, but {step} is what is there"
    assert state is None or (state[0]["model.entity"] == step).all()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        for step in itertools.count(step + 1):
            table = torch.full((200_000, 4), float(step))
            save(folder.last, {"model.entity": table}, {"step": step})
            os.write(writer, b"%d " % step)
    os.close(writer)
    time.sleep(pick.uniform(0.0, 0.1))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(reader) as lines:
        reported = max([reported, *map(int, lines.read().split())])
    in_the_middle += any(name.endswith(".tmp") for name in os.listdir(sys.argv[1]))
save(folder.last, {}, {"step": 0})
print(reported, in_the_middle, *sorted(os.listdir(sys.argv[1])))
"""


def test_killed_in_the_middle_of_writing(tmp_path):
    """SIGKILL at random moments: a state at least as new as the last one reported is there."""
    printed = printed_by(KILL_OFTEN, arguments=[tmp_path], timeout=600)
    reported, in_the_middle, *left = printed.split()
    assert int(reported) > 0
    assert int(in_the_middle) > 0, "no kill fell into a write: the test has shown nothing"
    assert left == ["last.safetensors"]
