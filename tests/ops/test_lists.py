"""Candidates that each query names itself: their form, what is refused, and memory."""

import pytest
import torch

from kgfast.kernels import cpu
from kgfast.kernels.operands import Known
from kgfast.ops import run
from kgfast.ops.lists import lists_of
from support.lists import padded, random_lists
from support.memory import PeakMemory
from support.problems import no_known


def test_lists_of_padded_rows():
    lists = random_lists(6, 8, 2)
    rows = [row.sort().values for row in lists.indices.split(lists.indptr.diff().tolist())]
    made = lists_of(padded(lists), 8)
    assert torch.equal(made.indptr, lists.indptr)
    assert torch.equal(made.indices, torch.cat(rows))
    for shape in ((0, 5), (3, 0)):
        made = lists_of(torch.empty(shape, dtype=torch.int64), 8)
        assert made.indptr.tolist() == [0] * (shape[0] + 1)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[0, 1], [2, 2], [3, 4]], r"candidate_ids\[11, 1\] must not repeat .* 2 again"),
        ([[0, 1], [2, 3], [3, 8]], r"candidate_ids\[12, 1\] must be in 0 .. 7, or -1 for"),
        ([[0, 1], [2, -2], [3, 4]], r"candidate_ids\[11, 1\].* got -2"),
    ],
)
def test_lists_that_are_refused(ids, message):
    with pytest.raises(ValueError, match=message):
        lists_of(torch.tensor(ids), 8, 10)


def ranked(table, ids, targets):
    """Count ranks and find the best, among the listed candidates of each query."""
    lists, known = lists_of(ids, len(table)), Known(*no_known(len(ids)))
    operands = run.operands_of(table[: len(ids)], table, "l1")
    checks = run.checks_for(table.device)
    run.rank_counts(operands, targets, known, checks, lists)
    run.topk(operands, 3, known, checks, lists)


@pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
def test_rows_are_not_gathered():
    """256 queries with 200 rows of 256 numbers: 50 MiB as float32, if they were."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(2000, 256, generator=generator)
    ids = torch.stack([torch.randperm(2000, generator=generator)[:200] for _ in range(256)])
    ranked(table, ids[:2], torch.arange(2))
    with PeakMemory("cpu") as peak:
        ranked(table, ids, torch.arange(256))
    assert peak.bytes < 32 << 20
