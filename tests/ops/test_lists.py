"""Candidates that each query names itself: what operators take, and what they refuse."""

import pytest
import torch

from kgfast import ops
from kgfast.kernels import cpu
from support.lists import expected_best, expected_counts, padded, random_lists
from support.memory import PeakMemory
from support.problems import no_known


def arguments(rows: int = 8, batch: int = 3) -> dict:
    generator = torch.Generator().manual_seed(0)
    indptr, indices = no_known(batch)
    return {
        "queries": torch.randint(-1, 2, (batch, 4), generator=generator).float(),
        "candidates": torch.randint(-1, 2, (rows, 4), generator=generator).float(),
        "targets": torch.arange(batch),
        "exclude_indptr": indptr,
        "exclude_indices": indices,
        "score": "rotate",
    }


@pytest.mark.parametrize("dims", [None, [2, 1]])
def test_padded_rows_and_csr_are_the_same(backend, dims):
    given = arguments()
    given |= {"exclude_indptr": torch.tensor([0, 2, 2, 3]), "exclude_indices": torch.arange(3) + 2}
    lists = random_lists(3, 8, 2, given["targets"])
    expected = expected_counts(tuple(given.values()), lists, dims=dims)
    rows = ops.rank_counts(**given, dims=dims, candidate_ids=padded(lists))
    ragged = {"candidate_ids": lists.indices, "candidate_indptr": lists.indptr}
    assert all(map(torch.equal, rows, expected))
    assert all(map(torch.equal, ops.rank_counts(**given, dims=dims, **ragged), expected))
    given.pop("targets")
    args = [given.pop(name) for name in ("queries", "candidates")]
    best = expected_best((*args, 3, *given.values()), lists, dims=dims)
    rows = ops.topk(*args, 3, **given, dims=dims, pad=True, candidate_ids=padded(lists))
    assert all(map(torch.equal, rows, best))
    assert all(map(torch.equal, ops.topk(*args, 3, **given, dims=dims, pad=True, **ragged), best))


def test_a_target_in_its_row_counts_once_and_one_outside_is_ranked_against_it(backend):
    table = torch.tensor([[0.0], [1.0], [2.0], [2.0]])
    args = (torch.full((3, 1), 2.0), table, torch.tensor([2, 1, 2]), *no_known(3), "l1")
    ids = torch.tensor([[2, 3, 0], [2, 3, -1], [-1, -1, -1]])
    greater, equal, *_ = ops.rank_counts(*args, candidate_ids=ids)
    assert (greater.tolist(), equal.tolist()) == ([0, 2, 0], [1, 0, 0])


def test_no_queries_and_no_places(backend):
    given = arguments(batch=0)
    ids = torch.empty(0, 5, dtype=torch.int64)
    assert [len(it) for it in ops.rank_counts(**given, candidate_ids=ids)] == [0, 0, 0, 0]
    given = arguments()
    counts = ops.rank_counts(**given, candidate_ids=torch.empty(3, 0, dtype=torch.int64))
    assert torch.stack(counts).count_nonzero() == 0


@pytest.mark.parametrize(
    ("ids", "indptr", "error", "message"),
    [
        ([[0, 1], [2, 2], [3, 4]], None, ValueError, r"candidate_ids\[1, 1\] must not repeat .* 2"),
        ([[0, 1], [2, 3], [3, 8]], None, ValueError, r"candidate_ids\[2, 1\] must be in 0 .. 7"),
        ([[0, 1], [2, -2], [3, 4]], None, ValueError, r"candidate_ids\[1, 1\].* got -2"),
        ([[0, 1]], None, ValueError, r"shape \[3, \*\]; got \[1, 2\]"),
        ([[0.5, 1]] * 3, None, TypeError, "candidate_ids must be int64"),
        ([0, 1, 1], [0, 1, 3, 3], ValueError, r"candidate_ids\[2\] must not repeat"),
        ([0, 1, 9], [0, 1, 3, 3], ValueError, r"candidate_ids\[2\] must be in 0 .. 7"),
        ([0, 1, -1], [0, 1, 3, 3], ValueError, r"candidate_ids\[2\] must be in 0 .. 7"),
        ([0, 1, 2], [0, 1, 2, 2], ValueError, "candidate_indptr must rise from 0"),
        ([0, 1, 2], [0, 3], ValueError, r"candidate_indptr must have shape \[4\]"),
        ([0, 1, 2], [0.0, 1, 2, 3], TypeError, "candidate_indptr must be int64"),
    ],
)
def test_lists_that_are_refused(ids, indptr, error, message):
    given = arguments()
    lists = {"candidate_ids": torch.tensor(ids)}
    lists |= {} if indptr is None else {"candidate_indptr": torch.tensor(indptr)}
    with pytest.raises(error, match=message):
        ops.rank_counts(**given, **lists)
    given.pop("targets")
    with pytest.raises(error, match=message):
        ops.topk(**given, k=1, pad=True, **lists)


@pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
@pytest.mark.parametrize("consumer", ["rank_counts", "topk"])
def test_rows_are_not_gathered(consumer):
    """256 queries with 200 rows of 256 numbers: 50 MiB as float32, if they were."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(2000, 256, generator=generator)
    ids = torch.stack([torch.randperm(2000, generator=generator)[:200] for _ in range(256)])
    middle = torch.arange(256) if consumer == "rank_counts" else 3
    call = getattr(ops, consumer)
    arguments = (table[:256], table, middle, *no_known(256), "l1")
    call(*(it[:2] if torch.is_tensor(it) and len(it) == 256 else it for it in arguments[:3]),
         *no_known(2), "l1", candidate_ids=ids[:2])  # fmt: skip
    with PeakMemory("cpu") as peak:
        call(*arguments, candidate_ids=ids)
    assert peak.bytes < 32 << 20


def test_offsets_without_ids_are_refused():
    with pytest.raises(ValueError, match="together with candidate_ids"):
        ops.rank_counts(**arguments(), candidate_indptr=torch.arange(4))


def test_what_is_not_finite_is_named_where_it_takes_part(backend):
    given = arguments()
    given["candidates"][5, 0] = torch.nan
    ids = torch.tensor([[0, 1], [2, 6], [3, 4]])
    ops.rank_counts(**given, candidate_ids=ids)
    ids[1, 1] = 5
    with pytest.raises(ValueError, match="candidates: row 5 holds a NaN"):
        ops.rank_counts(**given, candidate_ids=ids)
    given.pop("targets")
    with pytest.raises(ValueError, match="candidates: row 5 holds a NaN"):
        ops.topk(**given, k=1, candidate_ids=ids)


def test_a_row_with_too_few_for_k_is_named():
    given = arguments()
    given.pop("targets")
    ids = torch.tensor([[0, 1], [2, -1], [3, 4]])
    with pytest.raises(ValueError, match=r"queries\[1\] has 1, k is 2"):
        ops.topk(**given, k=2, candidate_ids=ids)
