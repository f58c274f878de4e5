"""Checkpoints: exact, atomic under a real kill and a full disk, and never a surprise when read."""

import os
import struct
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from kgfast import whole_files
from kgfast.training import RunFolder, run_folder
from kgfast.training import checkpoint as files
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


def test_others_may_read_it_as_they_may_read_other_files(tmp_path):
    save(tmp_path / "a", *state(1))
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


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


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(meta=st.dictionaries(st.text(), json_values, max_size=4))
def test_meta_comes_back(tmp_path_factory, meta):
    path = tmp_path_factory.mktemp("meta") / "a"
    save(path, {"x": torch.ones(1)}, meta)
    assert load(path)[1] == meta


def test_meta_that_json_cannot_hold(tmp_path):
    with pytest.raises(TypeError, match="not JSON serializable"):
        save(tmp_path / "a", {}, {"x": torch.ones(1)})
    assert list(tmp_path.iterdir()) == []


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

    def test_tensors_that_changed_places(self, tmp_path):
        """The bytes are the same, but not their meaning."""
        path, one, two = tmp_path / "a", torch.ones(2), torch.zeros(2)
        save(path, {"x": one, "y": two}, {})
        whole = path.read_bytes()
        path.write_bytes(whole.replace(b'"x"', b'"z"'))
        with pytest.raises(ValueError, match="damaged: the checksum is"):
            load(path)
        path.write_bytes(whole.replace(b'"F32"', b'"I32"'))
        with pytest.raises(ValueError, match="damaged: the checksum is"):
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
        assert "cannot write a checkpoint: File too large; the old file is intact" in printed
        assert str(path) in printed
        assert step_of(load(path)) == 1
        assert os.listdir(tmp_path) == [path.name]

    @pytest.mark.parametrize(("module", "fails"), [(files, "save_file"), (whole_files, "sync")])
    def test_no_space_left(self, tmp_path, monkeypatch, module, fails):
        path = tmp_path / "a.safetensors"
        save(path, *state(1))

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(module, fails, full)
        with pytest.raises(OSError, match="No space left on device; the old file is int") as caught:
            save(path, *state(2))
        assert caught.value.errno == 28
        assert caught.value.filename == str(path)
        assert step_of(load(path)) == 1
        assert os.listdir(tmp_path) == [path.name]


class TestRunFolder:
    @pytest.fixture
    def folder(self, tmp_path):
        """Return a folder with the states of steps 1 and 2."""
        folder = RunFolder(tmp_path)
        for step in (1, 2):
            folder.save_last(state(step))
        return folder

    def test_nothing_yet(self, tmp_path):
        folder = RunFolder(tmp_path / "run")
        assert folder.load_last() is None
        assert not folder.holds_a_run()
        with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
            folder.load_best()
        with pytest.raises(FileNotFoundError, match="the run has not ended"):
            folder.read_result()
        assert not folder.path.exists()

    def test_last_and_previous(self, tmp_path):
        folder = RunFolder(tmp_path / "a" / "run")
        for step in (1, 2, 3):
            folder.save_last(state(step))
            assert step_of(folder.load_last()) == step
        assert step_of(load(folder.previous)) == 2
        assert sorted(os.listdir(folder.path)) == ["last.safetensors", "previous.safetensors"]
        assert folder.holds_a_run()

    def test_a_broken_last_falls_back(self, folder):
        folder.last.write_bytes(folder.last.read_bytes()[:60])
        with pytest.warns(UserWarning, match=r"last.* truncated.*resuming from .*previous"):
            assert step_of(folder.load_last()) == 1
        folder.previous.write_bytes(b"")
        with pytest.raises(ValueError, match=r"last.*truncated.*; .*previous.*truncated"):
            folder.load_last()

    @pytest.mark.parametrize(("name", "step"), [("next", 2), ("last", 1), ("best", None)])
    def test_a_folder_in_the_place_of_a_state(self, folder, tmp_path, name, step):
        path = getattr(folder, name)
        path.unlink(missing_ok=True)
        path.mkdir()
        (path / "something").touch()
        if step is None:
            with pytest.raises(ValueError, match="a folder, not a checkpoint"):
                folder.load_best()
            folder.save_best(state(1))
            assert step_of(folder.load_best()) == 1
        else:
            with pytest.warns(UserWarning, match=rf"{name}.*: a folder, not a checkpoint"):
                assert step_of(folder.load_last()) == step
            for it in (3, 4):
                folder.save_last(state(it))
            assert (step_of(folder.load_last()), step_of(load(folder.previous))) == (4, 3)
        assert (tmp_path / f"{path.name}.broken" / "something").exists()

    def test_a_broken_last_does_not_push_the_good_one_out(self, folder, tmp_path):
        """A kill in the next save would leave nothing to go on from."""
        folder.last.write_bytes(b"broken")
        with pytest.warns(UserWarning, match="truncated"):
            folder.load_last()
        folder.save_last(state(3))
        assert step_of(load(folder.last)) == 3
        assert step_of(load(folder.previous)) == 1
        assert (tmp_path / "last.safetensors.broken").read_bytes() == b"broken"

    def test_a_state_that_does_not_fit_falls_back(self, folder):

        def check(found):
            if found[1]["step"] == 2:
                raise ValueError("two is too many")

        with pytest.warns(UserWarning, match=r"last\.safetensors: .*: two is too many; resuming"):
            assert step_of(folder.load_last(check)) == 1

    def test_a_reader_that_falls_into_the_renames(self, tmp_path, monkeypatch):
        """The writer of a run that is being read renames what the reader was about to open."""
        folder = RunFolder(tmp_path)
        folder.save_last(state(1))
        save(folder.next, *state(2))

        def meanwhile(path, room):
            if path == folder.next and path.exists():
                os.replace(folder.last, folder.previous)
                os.replace(folder.next, folder.last)
            return load(path, room)

        monkeypatch.setattr(run_folder, "load", meanwhile)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert step_of(folder.load_last()) == 2

    def test_a_kill_between_the_renames(self, tmp_path):
        folder = RunFolder(tmp_path)
        folder.save_last(state(1))
        save(folder.next, *state(2))
        os.replace(folder.last, folder.previous)
        assert step_of(folder.load_last()) == 2
        folder.save_last(state(3))
        assert step_of(folder.load_last()) == 3
        assert not folder.next.exists()

    def test_best_or_else_last(self, tmp_path):
        folder = RunFolder(tmp_path)
        folder.save_last(state(5))
        assert step_of(folder.load_best()) == 5
        folder.save_best(state(4))
        assert step_of(folder.load_best()) == 4

    def test_the_newest_steps_are_kept(self, tmp_path):
        folder = RunFolder(tmp_path)
        (tmp_path / "step_7.safetensors.tmp").mkdir()  # a kill left it
        (tmp_path / "step_7.safetensors.tmp" / "half").touch()
        (tmp_path / "step_notes.txt").touch()
        for step in (9, 10, 100):
            folder.save_last(state(step), keep=2)
        assert sorted(os.listdir(tmp_path)) == [
            "last.safetensors",
            "previous.safetensors",
            "step_10.safetensors",
            "step_100.safetensors",
            "step_notes.txt",
        ]
        assert step_of(load(tmp_path / "step_100.safetensors")) == 100

    def test_every_model_is_kept(self, tmp_path):
        folder = RunFolder(tmp_path)
        assert RunFolder(tmp_path / "none").models() == []
        (tmp_path / "model_7.safetensors.tmp").mkdir()  # a kill left it
        for step in (100, 9, 10):
            folder.save_model(state(step))
        names = [f"model_{step}.safetensors" for step in (9, 10, 100)]
        assert folder.models() == [tmp_path / name for name in names]
        assert sorted(os.listdir(tmp_path)) == sorted(names)
        assert not folder.holds_a_run()  # there is nothing to resume from


# One interpreter that has loaded torch forks a writer per kill: a real process, really killed.
KILL_OFTEN = """
import itertools, os, random, signal, sys, time, torch
from kgfast.training import RunFolder

torch.set_num_threads(1)
folder = RunFolder(sys.argv[1])
pick = random.Random(0)
reported = in_the_middle = 0
for kill in range(400):
    if kill >= 25 and reported and in_the_middle:
        break  # a busy machine needs more kills until one falls into a write
    state = folder.load_last()
    step = 0 if state is None else state[1]["step"]
    assert step >= reported, f"step {reported} was saved, but {step} is what is there"
    assert state is None or (state[0]["model.entity"] == step).all()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        for step in itertools.count(step + 1):
            table = torch.full((200_000, 4), float(step))
            folder.save_last(({"model.entity": table}, {"step": step}))
            os.write(writer, b"%d " % step)
    os.close(writer)
    time.sleep(pick.uniform(0.0, 0.1))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(reader) as lines:
        reported = max([reported, *map(int, lines.read().split())])
    in_the_middle += any(name.endswith(".tmp") for name in os.listdir(sys.argv[1]))
folder.save_last(({}, {"step": 0}))
print(reported, in_the_middle, *sorted(os.listdir(sys.argv[1])))
"""


def test_killed_in_the_middle_of_writing(tmp_path):
    """SIGKILL at random moments: a state at least as new as the last one reported is there."""
    printed = printed_by(KILL_OFTEN, arguments=[tmp_path], timeout=600)
    reported, in_the_middle, *left = printed.split()
    assert int(reported) > 0
    assert int(in_the_middle) > 0, "no kill fell into a write: the test has shown nothing"
    assert left == ["last.safetensors", "previous.safetensors"]
