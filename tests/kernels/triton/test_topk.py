"""The Triton backend returns the ids of the reference, and its scores, bit for bit.

As in test_rank.py, the class runs in a subprocess with ``TRITON_INTERPRET=1`` where there is
no GPU.
"""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kgfast.kernels.checks import Checks
from kgfast.kernels.operands import Operands, Prepared
from kgfast.kernels.scores import get_score
from support.flat import reference, triton
from support.interpreted import fast_and_slow, others_are_slow, run_interpreted
from support.problems import cast, make_problem, table_of

pytest.importorskip("triton")

from support.triton_ranks import CAN_RUN, DEVICE, INTERPRETED, PLAIN_SCORES, few, on_gpu, packed


@pytest.mark.skipif(INTERPRETED, reason="is the outer process")
@fast_and_slow
def test_in_the_interpreter(marks: str) -> None:
    run_interpreted(__file__, "TestTopk", marks)


def compare(queries: Tensor, candidates: Tensor, k: int, *args: object, **options: object) -> None:
    """Assert that both backends return the same; twice, as survivors come in any order."""

    def there(value: object) -> object:
        return value.to(DEVICE) if isinstance(value, Tensor) else value

    scores, ids = reference.topk(queries, candidates, k, *args, **options)
    moved = {name: there(value) for name, value in options.items()}
    actual = triton.topk(*(there(part) for part in (queries, candidates, k, *args)), **moved)
    assert torch.equal(actual[1].cpu(), ids)
    assert actual[0].dtype == scores.dtype
    assert torch.equal(actual[0].cpu().nan_to_num(7.0), scores.nan_to_num(7.0))


def rows(score: str, count: int, dim: int, seed: int, kind: str = "normal") -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    width = dim * get_score(score).planes
    return cast(table_of(kind, count, width, generator), torch.float32)


@on_gpu
class TestTopk:
    __test__ = CAN_RUN

    @given(seed=st.integers(0, 2**31 - 1), nonfinite=st.booleans())
    @few
    def test_random_problems(self, seed, nonfinite) -> None:
        problem = make_problem(seed, nonfinite)
        queries, candidates, _, indptr, indices, score = problem.args
        pick = random.Random(seed)
        k = pick.choice([1, 2, 5, len(candidates), len(candidates) + 3])
        known = (indptr, indices) if pick.random() < 0.7 else (None, None)
        with packed(pick.random() < 0.5):
            compare(queries, candidates, k, *known, score, **problem.kwargs)

    @pytest.mark.parametrize("score", others_are_slow(PLAIN_SCORES, "rotate", "dot"))
    @pytest.mark.parametrize("kind", ["grid", "same", "close", "huge", "tiny"])
    def test_adversarial_tables(self, score, kind) -> None:
        known = torch.tensor([0, 3, 3]), torch.tensor([5, 0, 5])
        table = rows(score, 70, 3, 0, kind)
        with packed(kind in ("grid", "huge")):
            compare(rows(score, 2, 3, 1, kind), table, 6, *known, score)

    @pytest.mark.parametrize("score", others_are_slow(["dot", "l2", "rotate"], "rotate"))
    @pytest.mark.parametrize("kind", ["same", "normal"])
    def test_a_band_that_overflows(self, score, kind, monkeypatch) -> None:
        from kgfast.kernels.triton import topk

        monkeypatch.setattr(topk, "BAND_PAIRS", 128)
        monkeypatch.setattr(topk, "STRIPE", 6)
        compare(rows(score, 3, 2, 1), rows(score, 150, 2, 0, kind), 5, score=score)

    def test_all_of_them(self, monkeypatch) -> None:
        from kgfast.kernels.triton import topk

        monkeypatch.setattr(topk, "BAND_PAIRS", 256)
        monkeypatch.setattr(topk, "STRIPE", 16)
        known = torch.tensor([0, 0, 2, 2]), torch.tensor([3, 99])
        table = rows("l1", 100, 2, 0, "grid")
        compare(rows("l1", 3, 2, 1, "grid"), table, 100, *known, "l1")

    def test_scores_that_rise_with_the_id(self, monkeypatch) -> None:
        """The stripe's limit is the worst there is: all that follow survive."""
        from kgfast.kernels.triton import topk

        monkeypatch.setattr(topk, "BAND_PAIRS", 128)
        monkeypatch.setattr(topk, "STRIPE", 8)
        table = torch.arange(300.0)[:, None].expand(-1, 2)
        compare(torch.ones(2, 2), table, 3, score="dot")

    def test_a_subset_and_its_known_answers(self) -> None:
        ids = torch.randperm(90, generator=torch.Generator().manual_seed(0))[:70]
        known = torch.tensor([0, 40, 41]), torch.arange(41)
        options = {"candidate_ids": ids, "bias": rows("l1", 90, 1, 2)[:, 0], "dims": [3, 1]}
        queries, table = rows("rotate", 2, 3, 1), rows("rotate", 90, 3, 0)
        compare(queries, table, 7, *known, "rotate", **options)

    def test_fewer_candidates_than_asked_for(self) -> None:
        known = torch.tensor([0, 5, 6]), torch.tensor([4, 3, 2, 1, 0, 2])
        compare(rows("l2", 2, 3, 1), rows("l2", 5, 3, 0), 4, *known, "l2")
        none = torch.empty(0, dtype=torch.int64)
        compare(rows("l2", 2, 3, 1), rows("l2", 5, 3, 0), 2, score="l2", candidate_ids=none)

    def test_many_passes(self, monkeypatch) -> None:
        from kgfast.kernels.triton import topk

        monkeypatch.setattr(topk, "MOST_QUERIES", 4)
        monkeypatch.setattr(topk, "CANDIDATE_BYTES", 64 * 40)
        known = torch.arange(11), torch.arange(10) * 7
        with packed():
            compare(rows("rotate", 10, 2, 1), rows("rotate", 130, 2, 0), 3, *known, "rotate")

    @pytest.mark.parametrize("has_ids", [False, True])
    def test_rows_too_long_for_the_scratch(self, has_ids, monkeypatch) -> None:
        from kgfast.kernels.triton import topk

        monkeypatch.setattr(topk, "CANDIDATE_BYTES", 64)
        monkeypatch.setattr(topk, "BAND_PAIRS", 64)
        ids = torch.tensor([7, 3, 29, 11]) if has_ids else None
        with packed():
            compare(rows("l1", 2, 3, 1), rows("l1", 30, 3, 0), 3, score="l1", candidate_ids=ids)

    @pytest.mark.parametrize("is_long", [False, True])
    def test_numbers_that_are_not_finite(self, is_long, monkeypatch) -> None:
        from kgfast.kernels.triton import topk

        if is_long:
            monkeypatch.setattr(topk, "CANDIDATE_BYTES", 64)
        queries, table = rows("l1", 3, 66, 1).to(DEVICE), rows("l1", 30, 66, 0).to(DEVICE)
        table[20, 65] = torch.inf
        with pytest.raises(ValueError, match="candidates: row 20 holds a NaN or an infinity"):
            triton.topk(queries, table, 2, score="l1")
        ids = torch.tensor([4, 20, 9], device=DEVICE)
        with pytest.raises(ValueError, match="candidates: row 20 holds"):
            triton.topk(queries, table, 2, score="l1", candidate_ids=ids)
        queries[2, 1] = torch.nan
        with pytest.raises(ValueError, match="queries: row 2 holds"):
            triton.topk(queries, table, 2, score="l1")
        compare(queries.cpu(), table.cpu(), 29, score="l1", nan_worst=True)

    @pytest.mark.parametrize("count", [0, 2])
    def test_kept_checks_are_read_first(self, count) -> None:
        def refuse() -> None:
            raise ValueError("what was kept")

        checks = Checks(deferred=True)
        checks.keep(torch.zeros(1, dtype=torch.bool, device=DEVICE), refuse)
        table = rows("l1", 30, 3, 0).to(DEVICE)
        table[20] = torch.nan
        operands = Operands(table[:count], Prepared(table, get_score("l1")))
        with pytest.raises(ValueError, match="what was kept"):
            triton.backend.topk(operands, 2, None, checks)

    def test_a_bad_row_of_a_later_block(self, monkeypatch) -> None:
        from kgfast.kernels.triton import topk

        monkeypatch.setattr(topk, "CANDIDATE_BYTES", 64 * 30)
        queries, table = rows("l1", 3, 2, 1).to(DEVICE), rows("l1", 150, 2, 0).to(DEVICE)
        table[140, 1] = torch.nan
        with pytest.raises(ValueError, match="candidates: row 140 holds"):
            triton.topk(queries, table, 2, score="l1")

    def test_the_order_of_scores(self) -> None:
        from kgfast.kernels.triton.host.best import _MISSING, keys_of

        nan, inf = torch.nan, torch.inf
        scores = torch.tensor([nan, -inf, -2.0, -1e-320, -0.0, 0.0, 1e-320, 3.0, inf]).double()
        scores[3], scores[6] = -1e-320, 1e-320  # not representable in float32
        keys = keys_of(scores).tolist()
        assert keys == sorted(keys)
        assert keys[4] == keys[5]
        assert len(set(keys)) == 8
        assert min(keys) > _MISSING

    def test_nothing_to_find(self) -> None:
        compare(torch.empty(0, 4), torch.ones(3, 4), 2, score="dot")
        compare(torch.ones(2, 4), torch.empty(0, 4), 2, score="dot")
