"""The merge of pairs into the best so far, against plain Python."""

import random

import pytest
import torch

from support.engines import CAN_RUN, DEVICE

pytest.importorskip("triton")

pytestmark = pytest.mark.skipif(not CAN_RUN, reason="needs a GPU or the interpreter")
NAN, INF = torch.nan, torch.inf
VALUES = 0.0, -0.0, 1.5, 1.5, -2.0, 2.0**-1074, INF, -INF, NAN


def order_of(entry: tuple[float, int]):
    """Best first: the highest score, NaN last, then the lowest lane."""
    score, lane = entry
    is_nan = score != score
    return is_nan, 0.0 if is_nan else -score, lane


@pytest.mark.parametrize("k", [1, 3, 40])
@pytest.mark.parametrize("of_lanes", [False, True])
def test_triton_merges_as_sorting_does(k, of_lanes) -> None:
    """Three merges: entries that tie, known ones, none at all, and more than one block of them.

    Nor do entries past the capacity count, of which only the number is noted.
    """
    from kgfast.kernels.triton.device.best import NO_LANE, Best, BestOut, merge_best
    from kgfast.kernels.triton.device.canonical import Pairs
    from kgfast.kernels.triton.host import launch

    positions, capacity, first_query, pick = 5, 80, 2, random.Random(k)
    ids = torch.arange(1000, 1400, device=DEVICE) if of_lanes else None
    limits = torch.tensor([9.0, 9.0, -INF, 1.0, -INF, -INF, 5.0], dtype=torch.float64)
    limits, largest = limits.to(DEVICE), torch.zeros(1, dtype=torch.int64, device=DEVICE)
    shape = first_query + positions, k
    out = torch.full(shape, 7.0, device=DEVICE), torch.full(shape, 7, device=DEVICE)
    out, best = BestOut(*out, ids, largest), None
    rows, lowest = [[] for _ in range(positions)], limits.tolist()
    for first in (0, 100, 200):
        counts = [0, 70, 3, 1, pick.randrange(40)]
        pairs = torch.full((positions, capacity), 3, device=DEVICE)
        values = torch.full((positions, capacity), 9.0, dtype=torch.float64, device=DEVICE)
        for row, count in enumerate(counts):
            lanes = pick.sample(range(first, first + 100), count)
            scores = [pick.choice(VALUES) for _ in lanes]
            known = [pick.random() < 0.2 for _ in lanes]
            entries = zip(scores, lanes, known, strict=True)
            rows[row] += [(score, lane) for score, lane, is_known in entries if not is_known]
            lanes = [NO_LANE if it else lane for lane, it in zip(lanes, known, strict=True)]
            whole = [(first_query + row) << 32 | lane for lane in lanes]
            pairs[row, :count] = torch.tensor(whole, dtype=torch.int64)
            values[row, :count] = torch.tensor(scores, dtype=torch.float64)
        starts = torch.arange(0, positions * capacity, capacity)
        cursor = (starts + torch.tensor(counts)).int().to(DEVICE)
        survivors = Pairs(pairs, cursor, ids, limits, values)
        scores = torch.empty(positions, k, dtype=torch.float64, device=DEVICE)
        merged = Best(torch.empty_like(scores, dtype=torch.int64), scores)
        tensors = {"best": best, "survivors": survivors, "merged": merged, "out": out}
        sizes = {"first_query": first_query, "capacity": capacity, "k": k}
        launch.launch(merge_best, (positions, 2), {**tensors, **sizes}, num_warps=4)
        best = merged
        for row, entries in enumerate(rows, first_query):
            entries.sort(key=order_of)
            del entries[k:]
            if len(entries) == k and entries[-1][0] > lowest[row]:
                lowest[row] = entries[-1][0]
            missing = k - len(entries)
            wanted = [lane + (1000 if of_lanes else 0) for _, lane in entries] + [-1] * missing
            assert out.ids[row].tolist() == wanted
            wanted = torch.tensor([score for score, _ in entries] + [-INF] * missing)
            torch.testing.assert_close(
                out.scores[row].cpu(), wanted, equal_nan=True, rtol=0, atol=0
            )
        assert limits.tolist() == lowest
    assert largest.item() == 70
    assert bool((out.ids[:first_query] == 7).all())


@pytest.mark.parametrize(("width", "k"), [(1, 1), (70, 5), (70, 70), (300, 7)])
def test_triton_chooses_as_sorting_does(width, k) -> None:
    """Take the first of ties; leave out known answers, NaN and minus infinity."""
    from kgfast.kernels.triton.device.best import choose_best
    from kgfast.kernels.triton.device.sweep import Tally
    from kgfast.kernels.triton.host import launch

    positions, capacity, first_query, pick = 4, 96, 3, random.Random(width)
    rows = torch.tensor([[pick.choice(VALUES) for _ in range(width)] for _ in range(positions)])
    scores = rows.tolist()  # the least number is now zero
    known = {(pick.randrange(9), pick.randrange(2 * width)) for _ in range(3 * width)}
    keys = torch.tensor(sorted(row << 32 | lane for row, lane in known), device=DEVICE)
    band = torch.full((positions, capacity), -1, device=DEVICE)
    starts = torch.arange(0, positions * capacity, capacity, dtype=torch.int32)
    cursors = starts.to(DEVICE)
    arguments = {
        "p_scores": rows.to(DEVICE),
        "excluded": keys,
        "tally": Tally(None, band, None, capacity, cursors, first_query=first_query),
        **{"num_excluded": len(keys), "width": width, "k": k},
        "BLOCK": 1 << (width - 1).bit_length(),
    }
    launch.launch(choose_best, (positions,), arguments, num_warps=4)
    for row, (values, chosen) in enumerate(zip(scores, band.tolist(), strict=True)):
        entries = [
            (value, lane)
            for lane, value in enumerate(values)
            if (row + first_query, lane) not in known and value > -INF
        ]
        wanted = sorted(lane for _, lane in sorted(entries, key=order_of)[:k])
        assert int(cursors[row]) == row * capacity + len(wanted)
        wanted = [(row + first_query) << 32 | lane for lane in wanted]
        assert sorted(chosen) == [-1] * (capacity - len(wanted)) + wanted
