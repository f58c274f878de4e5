"""Rows that are handed out on a device, and blocks that are read beside the work."""

import time

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import kgfast
from kgfast import tables
from kgfast.ops import run
from kgfast.tables import prefetch, views
from support.streamed import KNOWN, SMALL, TRIPLES, N, rotate
from support.waits import PretendDevice


def test_blocks_are_whole_while_later_rows_are_read():
    rows = torch.arange(60.0).view(20, 3)
    table = tables.open(rows, device="cpu")
    ranges = [(0, 4), (4, 8), (8, 9), (9, 13), (16, 20)]
    seen = set()
    with prefetch.prefetched(table, ranges) as blocks:
        for block in blocks:
            time.sleep(0.001)  # the reader goes on as far as it may
            assert torch.equal(block.rows, rows[block.start : block.stop])
            seen.add(block.rows.data_ptr())
    assert len(seen) == 2
    with prefetch.prefetched(table, ranges) as blocks:
        next(blocks)  # a worker that stops ends the reader


def test_what_is_said_of_a_table_on_a_device(tmp_path):
    rotate(tmp_path)
    inner = tables.open(tmp_path / "e.npy")
    table = views.OnDevice(inner, "meta")
    assert table.block(0, 2).device.type == table.rows(torch.tensor([3])).device.type == "meta"
    assert table.where(3) == inner.where(3)
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
