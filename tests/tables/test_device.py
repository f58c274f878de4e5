"""Rows that are handed out on a device, and how blocks are copied there beside the work.

Without a GPU, copies that happen as early or as late as events allow stand for those of one.
"""

import time
from contextlib import contextmanager

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import kgfast
from kgfast import tables
from kgfast.ops import run
from kgfast.tables import prefetch, views
from support.streamed import KNOWN, SMALL, TRIPLES, N, rotate, same
from support.waits import PretendDevice


class Copied:
    """A copy, and what stands for its event."""

    def __init__(self, rows, room):
        self.rows, self.room, self.is_done = rows, room, False

    def run(self):
        if not self.is_done:
            self.room.copy_(self.rows)
        self.is_done = True


class Pretended:
    """Copies to a pretended GPU, which are done at the last moment, or at the first."""

    when = "late"

    def __init__(self, where):
        assert where.type == "cpu"
        self.started, self.finished = [], False

    def pinned(self, shape, dtype):
        return torch.full(shape, torch.nan, dtype=dtype)

    def start(self, rows, room, used):
        assert used == "used", "a copy waits for the work on what it replaces"
        self.started.append(Copied(rows, room))
        if self.when == "early":
            self.started[-1].run()
        return self.started[-1]

    def await_on_host(self, copied):
        copied.run()

    await_on_device = await_on_host

    def used(self):
        return "used"

    def finish(self):
        self.finished = True


@pytest.fixture(params=["late", "early"])
def copies(request, monkeypatch):
    """All that were made, of a device that copies."""
    made = []

    class Seen(Pretended):
        when = request.param

        def __init__(self, where):
            super().__init__(where)
            made.append(self)

    monkeypatch.setattr(prefetch, "Copies", Seen)
    monkeypatch.setattr(prefetch, "_COPYING", ("cpu",))
    return made


def test_blocks_are_whole_whenever_copies_happen(copies):
    rows = torch.arange(60.0).view(20, 3)
    table = views.OnDevice(tables.open(rows), "cpu")
    ranges = [(0, 4), (4, 8), (8, 9), (9, 13), (16, 20)]
    with prefetch.prefetched(table, ranges, gives_back=False) as blocks:
        for block in blocks:
            time.sleep(0.001)  # the reader goes on as far as it may
            assert torch.equal(block.rows, rows[block.start : block.stop])
    (own,) = copies
    assert len(own.started) == len(ranges)
    assert len({it.room.data_ptr() for it in own.started}) == 2
    assert len({it.rows.data_ptr() for it in own.started}) == 2
    assert own.finished


def test_a_worker_that_stops_ends_the_reader_and_awaits_copies(copies):
    table = views.OnDevice(tables.open(torch.ones(20, 3)), "cpu")
    ranges = [(i, i + 1) for i in range(20)]
    with prefetch.prefetched(table, ranges, gives_back=False) as blocks:
        next(blocks)
    assert copies[0].finished
    assert len(copies[0].started) <= 3


def test_ranks_and_answers_of_rows_that_are_copied(tmp_path, copies):
    model, _ = rotate(tmp_path)
    stored = model.with_entity(tables.open(tmp_path / "e.npy", device="cpu"))
    options = {"known": KNOWN, "sides": ("head", "relation", "tail")}
    same(
        kgfast.rank(stored, TRIPLES, max_memory=SMALL, **options),
        kgfast.rank(model, TRIPLES, **options),
    )
    asked = {"heads": TRIPLES[:, 0], "relations": TRIPLES[:, 1], "k": 4, "known": KNOWN}
    found = kgfast.topk(stored, max_memory=SMALL, **asked)
    assert torch.equal(found.ids, kgfast.topk(model, **asked).ids)
    assert copies


def test_what_is_said_of_a_table_on_a_device(tmp_path):
    rotate(tmp_path)
    inner = tables.open(tmp_path / "e.npy", writable=True)
    table = views.OnDevice(inner, "meta")
    assert repr(table).startswith("OnDevice(on meta: 61 rows")
    assert table.block(0, 2).device.type == table.rows(torch.tensor([3])).device.type == "meta"
    assert (table.facts, table.where(3)) == (inner.facts, inner.where(3))
    table.update(torch.tensor([3]), torch.ones(1, table.shape[1]))
    assert inner.rows(torch.tensor([3])).eq(1).all()
    with pytest.raises(ValueError, match="returns rows on meta, not on the CPU"):
        views.OnDevice(table, "cpu")
    with pytest.raises(ValueError, match="entity is on meta but relation on cpu"):
        kgfast.RotatE(table, torch.ones(2, table.shape[1] // 2))
    assert len(table) == N


def test_a_device_is_named_as_tensors_name_it():
    """Models compare devices; fake tensors know the names of a GPU without one."""
    assert views.numbered("cpu") == torch.device("cpu")
    with FakeTensorMode():
        assert views.numbered("cuda") == torch.device("cuda", 0)


def test_cuda_is_asked_on_its_device_and_its_own_stream(monkeypatch):
    said, within = [], []

    @contextmanager
    def guard(what):
        within.append(str(what))
        yield
        within.pop()

    def say(*words):
        said.append((*words, *within))

    class Stream:
        def __init__(self, where=None):
            say("stream")

        def __str__(self):
            return "own"

        def wait_event(self, event):
            say("own waits")

        def synchronize(self):
            say("own is awaited")

    class Current(Stream):
        def __str__(self):
            return "current"

        def wait_event(self, event):
            say("current waits")

    class Event:
        def record(self, stream):
            say("recorded", str(stream))

        def synchronize(self):
            say("host waits")

    made = Current()
    said.clear()
    for name, value in (
        ("device", guard),
        ("stream", guard),
        ("Stream", Stream),
        ("Event", Event),
        ("current_stream", lambda where: made),
    ):
        monkeypatch.setattr(torch.cuda, name, value)
    copies = prefetch.Copies(torch.device("cuda", 3))
    room, used = torch.zeros(2), copies.used()
    done = copies.start(torch.ones(2), room, used)
    copies.await_on_device(done)
    copies.await_on_host(done)
    copies.finish()
    assert room.eq(1).all()
    assert said == [
        ("stream", "cuda:3"),
        ("recorded", "current", "cuda:3"),
        ("own waits", "cuda:3", "own"),
        ("recorded", "own", "cuda:3", "own"),
        ("current waits", "cuda:3"),
        ("host waits",),
        ("own is awaited",),
    ]


def test_everything_that_is_scored_is_where_the_rows_are(tmp_path, monkeypatch):
    """A pretended GPU: what kernels get is there, and what they found comes back to the host."""
    pytest.importorskip("triton")
    model, _ = rotate(tmp_path)
    relation = model.relation.detach().to("meta")
    stored = kgfast.RotatE(tables.open(tmp_path / "e.npy", device="meta"), relation)
    calls = []

    def called(name, result):
        def stub(operands, *rest, **named):
            known = [it for it in rest if isinstance(it, tuple)]
            parts = [operands.queries, operands.table, *rest, *named.values(), *sum(known, ())]
            assert all(it.is_meta for it in parts if isinstance(it, torch.Tensor)), name
            assert operands.candidates.ids is None or operands.candidates.ids.is_meta
            calls.append(name)
            return result(operands, *rest)

        monkeypatch.setattr(run, name, stub)

    def there(*shape, dtype=torch.int64):
        return torch.empty(shape, dtype=dtype, device="meta")

    monkeypatch.setenv("KGFAST_BACKEND", "triton")
    called("target_scores", lambda it, *_: there(1, len(it.queries), dtype=torch.float64))
    called("rank_counts", lambda it, *_: tuple(there(len(it.queries)) for _ in range(4)))
    called(
        "topk",
        lambda it, k, *_: (
            there(len(it.queries), k, dtype=torch.float64),
            there(len(it.queries), k),
        ),
    )
    lists = torch.arange(5).expand(len(TRIPLES), 5).contiguous()
    asked = {"heads": TRIPLES[:, 0], "relations": TRIPLES[:, 1], "k": 3, "known": KNOWN}
    with PretendDevice(0):
        for ids in (None, [3, 50, 7], lists):
            options = {"known": KNOWN, "candidate_ids": ids}
            kgfast.rank(stored, TRIPLES, max_memory=SMALL, **options)
            kgfast.topk(stored, max_memory=SMALL, candidate_ids=ids, **asked)
        kgfast.top_facts(stored, k=3, heads=[3], max_memory=SMALL)
    assert set(calls) == {"target_scores", "rank_counts", "topk"}
