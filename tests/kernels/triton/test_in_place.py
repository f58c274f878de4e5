"""Few queries, swept where the rows lie: the bound of that sweep, and one read of the table.

Ranks and answers by it: the tests of ``tests/kernels/test_ranks.py`` that are not ``packed``.
"""

import pytest
import torch
from torch import Tensor

from kgfast.kernels.scores import get_score
from support.engines import INTERPRETED
from support.flat import canonical_scores, triton
from support.interpreted import others_are_slow
from support.problems import SCORES

pytest.importorskip("triton")

PLAIN_SCORES = [score for score in SCORES if score != "rotate_interleaved"]  # a layout, no score
only_interpreted = pytest.mark.skipif(not INTERPRETED, reason="looks into the interpreter")


def rows_of(score: str, rows: int, dim: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    width = dim * get_score(score).planes
    return torch.randn(rows, width, generator=generator, dtype=torch.float64).to(dtype)


@only_interpreted
@pytest.mark.parametrize("score", others_are_slow(PLAIN_SCORES, "rotate", "dot"))
def test_the_sweep_stays_within_its_bound(score, monkeypatch) -> None:
    """Equal terms round the same way; 130 features are two of most lanes, three of two."""
    from kgfast.kernels.triton.device import in_place

    seen, taken = {}, in_place.take

    def take(distance, facts, *rest):
        seen["distance"] = distance.handle.data.copy()
        seen["norm"] = facts[1][0].handle.data.copy()
        return taken(distance, facts, *rest)

    monkeypatch.setattr(in_place, "take", take)
    rows, dim = 8, 130  # of one program
    for law in ("equal", "cauchy"):
        values = rows_of(score, rows + 2, dim, torch.float64)
        values = (values * 1.5).tan() if law == "cauchy" else 0.1 + values * 1e-6
        candidates, queries = values[:rows].float(), values[rows:].float()
        targets, none = torch.zeros(2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
        triton.rank_counts(queries, candidates, targets, none, none[:0], score)
        canonical = -canonical_scores(queries[:, None], candidates[None], score)
        bound = allowed(score, queries, candidates, canonical)
        actual = torch.from_numpy(seen["distance"])[:2, :rows].double()
        assert bool(((actual - canonical).abs() <= bound).all())
        if score == "dot":
            norm = torch.from_numpy(seen["norm"])[:rows]
            assert bool((norm >= candidates.double().norm(dim=1)).all())


def allowed(score: str, queries: Tensor, candidates: Tensor, distance: Tensor) -> Tensor:
    from kgfast.kernels.triton.host.bounds import error_bound

    bound = error_bound(get_score(score), get_score(score).num_features(queries.shape[1]), False)
    norms = queries.double().norm(dim=1)[:, None] * candidates.double().norm(dim=1)
    return bound.rel * distance.abs() + bound.margins[0] + bound.margins[-1] * norms


@only_interpreted
@pytest.mark.parametrize(
    ("score", "dtype"),
    [("rotate", torch.float32), pytest.param("dot", torch.float16, marks=pytest.mark.slow)],
)
def test_the_table_is_read_once(score, dtype, monkeypatch) -> None:
    """All launches of a call load the bytes of the table about once.

    The rest of the last tile, the target's row and the open pairs are nothing beside 1,000,000
    rows; the sample that gives the best their limits is 4096 rows.
    """
    from kgfast.kernels.triton import topk

    monkeypatch.setattr(topk, "SAMPLE", 4)
    dim = 256 // get_score(score).planes
    candidates = rows_of(score, 400, dim, dtype)
    candidates[2] *= 3.0
    query = candidates[2:3].float().clone()  # best for itself: few others survive
    size = candidates.numel() * candidates.element_size()
    none = torch.zeros(2, dtype=torch.int64)
    loaded = counted_loads(monkeypatch, candidates)
    triton.rank_counts(query, candidates, none[:1], none, none[:0], score)
    assert size <= loaded.pop() <= 1.05 * size
    loaded.append(0)
    highest, _ = triton.topk(query, candidates, 1, score=score)
    sample = 64 * size // len(candidates)  # one panel, whose lanes repeat the last row
    assert size <= loaded.pop() <= 1.05 * size + sample
    loaded.append(0)
    assert triton.above(query, candidates, highest[:, 0], score=score).ids.tolist() == [2]
    assert size <= loaded.pop() <= 1.05 * size
    assert 4096 / 1_000_000 < 0.005


def counted_loads(monkeypatch: pytest.MonkeyPatch, rows: Tensor) -> list[int]:
    """Return a list whose last number grows by the bytes of ``rows`` that kernels load."""
    from triton.runtime import interpreter

    loaded, first = [0], rows.data_ptr()
    last = first + rows.numel() * rows.element_size()
    load = interpreter.InterpreterBuilder.create_masked_load

    def count(self, pointers, mask, *rest):
        places = pointers.data
        inside = (places >= first) & (places < last) & mask.data
        loaded[-1] += int(inside.sum()) * rows.element_size()
        return load(self, pointers, mask, *rest)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_masked_load", count)
    return loaded
