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
    """Three merges: entries that tie, known ones, none at all, and more than one block of them."""
    from kgfast.kernels.triton.device.best import ENTRIES, NO_LANE, Best, BestOut, merge_best
    from kgfast.kernels.triton.device.canonical import Pairs
    from kgfast.kernels.triton.host import launch

    positions, capacity, pick = 5, 128, random.Random(k)
    order = torch.tensor([3, 0, 4, 1, 2], device=DEVICE)
    ids = torch.arange(1000, 1400, device=DEVICE) if of_lanes else None
    limits = torch.tensor([-INF, 1.0, -INF, -INF, 5.0], dtype=torch.float64, device=DEVICE)
    scores = torch.full((positions, k), -INF, dtype=torch.float64, device=DEVICE)
    best = Best(torch.full_like(scores, NO_LANE, dtype=torch.int64), scores)
    out = torch.full((positions, k), 7.0, device=DEVICE), torch.full((positions, k), 7)
    out = BestOut(out[0], out[1].to(DEVICE), order, ids)
    rows, lowest = [[] for _ in range(positions)], limits.tolist()
    for first in (0, 100, 200):
        counts = [0, 70, 3, 1, pick.randrange(40)]
        places = [it for it, count in enumerate(counts) for _ in range(count)]
        lanes = [pick.randrange(first, first + 25 if it == 3 else first + 100) for it in places]
        entries = sorted(set(zip(places, lanes, strict=True)))
        values = [pick.choice(VALUES) for _ in entries]
        known = [pick.random() < 0.2 for _ in entries]
        for (row, lane), value, is_known in zip(entries, values, known, strict=True):
            if not is_known:
                rows[row].append((value, lane))
        lanes = [NO_LANE if it else lane for (_, lane), it in zip(entries, known, strict=True)]
        pairs = [row << 32 | lane for (row, _), lane in zip(entries, lanes, strict=True)]
        size = len(pairs)
        pairs = torch.tensor(pairs + [2**63 - 1] * (capacity - size), device=DEVICE)
        values = torch.tensor(values + [9.0] * (capacity - size), dtype=torch.float64)
        cursor = torch.tensor([size], device=DEVICE)
        survivors = Pairs(pairs, cursor, order, ids, limits, values.to(DEVICE))
        merged = Best(*(torch.empty_like(it) for it in best))
        tensors = {"best": best, "survivors": survivors, "merged": merged, "out": out}
        sizes = {"capacity": capacity, "num_positions": positions, "k": k}
        grid = (-(-(positions * k + capacity) // ENTRIES),)
        launch.launch(merge_best, grid, {**tensors, **sizes}, num_warps=4)
        best = merged
        for row, entries in enumerate(rows):
            entries.sort(key=order_of)
            del entries[k:]
            if len(entries) == k and entries[-1][0] > lowest[row]:
                lowest[row] = entries[-1][0]
            query, missing = int(order[row]), k - len(entries)
            wanted = [lane + (1000 if of_lanes else 0) for _, lane in entries] + [-1] * missing
            assert out.ids[query].tolist() == wanted
            wanted = torch.tensor([score for score, _ in entries] + [-INF] * missing)
            torch.testing.assert_close(
                out.scores[query].cpu(), wanted, equal_nan=True, rtol=0, atol=0
            )
        assert limits.tolist() == lowest
