"""Few queries, swept where the rows lie: the reference's integers, one read of the table.

Run as test_rank.py is.
"""

import pytest
import torch
from torch import Tensor

from kgfast.kernels.scores import SCORES, get_score
from support.flat import canonical_scores, reference, triton
from support.interpreted import fast_and_slow, others_are_slow, run_interpreted

pytest.importorskip("triton")

from support.triton_ranks import (
    CAN_RUN,
    DEVICE,
    INTERPRETED,
    PLAIN_SCORES,
    compare,
    known_ids,
    on_gpu,
    query_dtype,
    table,
)

MOVED = [("rscf_rotate", True), ("rscf_rotate", False), ("rscf_l1", True), ("rscf_l2", True)]
only_interpreted = pytest.mark.skipif(not INTERPRETED, reason="looks into the interpreter")


@pytest.mark.skipif(INTERPRETED, reason="is the outer process")
@pytest.mark.timeout(900)
@fast_and_slow
def test_in_the_interpreter(marks: str) -> None:
    run_interpreted(__file__, "TestInPlace", marks)


def rscf_rows(score: str, has_factor: bool, shape: tuple[int, int, int]) -> tuple[Tensor, ...]:
    """Queries, candidates and the factor, on a grid that makes ties."""
    batch, rows, dim = shape
    queries = table(
        "l1", batch, dim * get_score(score).query_planes(has_factor), torch.float32, 1, 4.0
    )
    factor = table("l1", rows, dim, torch.float32, 2, 4.0) if has_factor else None
    return queries, table(score, rows, dim, torch.float32, 0, 4.0), factor


@on_gpu
class TestInPlace:
    __test__ = CAN_RUN

    @pytest.mark.parametrize("score", others_are_slow(PLAIN_SCORES, "rotate", "dot"))
    def test_crops_of_a_subset(self, score) -> None:
        """Crops end within a step of features; the bound needs norms of float64 rows."""
        dtype = torch.float64 if score in ("l1", "rotate") else torch.float16
        candidates = table(score, 40, 70, dtype, 0, 4.0)
        queries = table(score, 5, 70, query_dtype(dtype), 1, 4.0)
        options = {"dims": [70, 3, 66], "candidate_ids": torch.randperm(40)[:30]}
        options["bias"] = torch.linspace(-1, 1, 40)
        compare(queries, candidates, *known_ids(5, 40), score, **options)

    @pytest.mark.parametrize(("score", "has_factor"), MOVED)
    def test_queries_that_move(self, score, has_factor) -> None:
        """Those of rscf scores are swept in two groups; crops share their sums."""
        queries, candidates, factor = rscf_rows(score, has_factor, (6, 30, 9))
        options = {"factor": factor, "dims": [9, 4]}
        compare(queries, candidates, *known_ids(6, 30), score, **options)

    @pytest.mark.slow
    @pytest.mark.parametrize("score", list(SCORES))
    @pytest.mark.parametrize("batch", [1, 2, 3, 8, 9, 16])
    def test_every_score_and_batch(self, score, batch) -> None:
        has_factor = get_score(score).is_rscf and batch % 2 == 0
        queries, candidates, factor = rscf_rows(score, has_factor, (batch, 37, 65))
        known = known_ids(batch, 37, batch)
        compare(queries, candidates, *known, score, factor=factor)
        compare(queries, candidates, *known, score, factor=factor, dims=[65, 7])

    def test_identical_rows_overflow_the_band(self, monkeypatch) -> None:
        from kgfast.kernels.triton.host import configs

        monkeypatch.setattr(configs, "BAND_PAIRS", 64)
        candidates = table("l1", 1, 3, torch.float32, 0, 0.0).repeat(150, 1)
        candidates[7] *= 0.5
        queries = table("l1", 3, 3, torch.float32, 1, 0.0)
        none = torch.zeros(4, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
        targets = torch.tensor([0, 7, 149])
        compare(queries, candidates, targets, *none, "l1")
        compare(queries, candidates, targets, *none, "l1", dims=[2, 3])

    def test_more_rows_than_a_launch_takes(self, monkeypatch) -> None:
        """And more pairs than one band is for."""
        from kgfast.kernels.triton import rank
        from kgfast.kernels.triton.host import configs

        monkeypatch.setattr(configs, "MAX_GRID", 2)
        monkeypatch.setattr(configs, "BAND_PAIRS", 128)
        monkeypatch.setattr(rank, "_PAIRS_PER_OPEN", 1)
        candidates = table("rotate", 150, 3, torch.float32, 0, 2.0)
        queries = table("rotate", 3, 3, torch.float32, 1, 2.0)
        compare(queries, candidates, *known_ids(3, 150), "rotate")
        expected = reference.topk(queries, candidates, 4, score="rotate")
        actual = triton.topk(queries.to(DEVICE), candidates.to(DEVICE), 4, score="rotate")
        assert torch.equal(actual[1].cpu(), expected[1])

    @pytest.mark.parametrize("place", ["candidates", "factor", "queries"])
    @pytest.mark.parametrize("value", [torch.nan, torch.inf])
    def test_what_a_sine_would_hide(self, place, value) -> None:
        """The angle ``a b`` is clamped before its sine is taken: no NaN comes out of it."""
        queries, candidates, factor = rscf_rows("rscf_rotate", True, (2, 20, 3))
        rows = {"candidates": candidates, "factor": factor, "queries": queries}
        rows[place][1, -1] = value
        args = [part.to(DEVICE) for part in (queries, candidates)]
        with pytest.raises(ValueError, match=f"{place}: row 1 holds a NaN or an infinity"):
            triton.topk(*args, 2, score="rscf_rotate", factor=factor.to(DEVICE))

    @only_interpreted
    @pytest.mark.parametrize("score", others_are_slow(PLAIN_SCORES, "rotate", "dot"))
    def test_the_sweep_stays_within_its_bound(self, score, monkeypatch) -> None:
        """Equal terms round the same way; 130 features are two of most lanes, three of two."""
        from kgfast.kernels.triton.device import in_place

        seen, judged = {}, in_place.judge_in_place

        def judge(distance, norm, bias, m_pair, *rest):
            seen["distance"], seen["norm"] = distance.handle.data.copy(), norm.handle.data.copy()
            return judged(distance, norm, bias, m_pair, *rest)

        monkeypatch.setattr(in_place, "judge_in_place", judge)
        rows, dim = 16, 130
        for law in ("equal", "cauchy"):
            values = table(score, rows + 2, dim, torch.float64, 3, 0.0)
            values = (values * 1.5).tan() if law == "cauchy" else 0.1 + values * 1e-6
            candidates, queries = values[:rows].float(), values[rows:].float()
            targets, none = torch.zeros(2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
            triton.rank_counts(queries, candidates, targets, none, none[:0], score)
            canonical = -canonical_scores(queries[:, None], candidates[None], score)
            allowed = self.allowed(score, queries, candidates, canonical)
            actual = torch.from_numpy(seen["distance"]).double()
            assert bool(((actual - canonical).abs() <= allowed).all())
            if score == "dot":
                assert bool(
                    (torch.from_numpy(seen["norm"]) >= candidates.double().norm(dim=1)).all()
                )

    def allowed(self, score: str, queries: Tensor, candidates: Tensor, distance: Tensor) -> Tensor:
        from kgfast.kernels.triton.host.bounds import error_bound

        bound = error_bound(
            get_score(score), get_score(score).num_features(queries.shape[1]), False
        )
        norms = queries.double().norm(dim=1)[:, None] * candidates.double().norm(dim=1)
        return bound.rel * distance.abs() + bound.absolute + bound.per_pair * norms

    @only_interpreted
    @pytest.mark.parametrize(
        ("score", "dtype"), [("rotate", torch.float32), ("dot", torch.float16)]
    )
    def test_the_table_is_read_once(self, score, dtype, monkeypatch) -> None:
        """Bytes of it that all launches of a call load, over those that it has.

        Of 1,000,000 rows the rest of the last tile, the target's row and the open pairs are
        nothing; the stripe that gives the best their limits is 4096 rows.
        """
        from kgfast.kernels.triton import topk

        monkeypatch.setattr(topk, "STRIPE", 4)
        dim = 256 // get_score(score).planes
        candidates = table(score, 400, dim, dtype, 0, 0.0)
        candidates[2] *= 3.0
        query = candidates[2:3].float().clone()  # its own best: few others survive
        size = candidates.numel() * candidates.element_size()
        none = torch.zeros(2, dtype=torch.int64)
        loaded = counted_loads(monkeypatch, candidates)
        triton.rank_counts(query, candidates, none[:1], none, none[:0], score)
        assert size <= loaded.pop() <= 1.05 * size
        loaded.append(0)
        triton.topk(query, candidates, 1, score=score)
        stripe = 64 * size // len(candidates)  # one panel, whose lanes repeat the last row
        assert size <= loaded.pop() <= 1.05 * size + stripe
        assert 4096 / 1_000_000 < 0.005


def counted_loads(monkeypatch: pytest.MonkeyPatch, rows: Tensor) -> list[int]:
    """A list whose last number grows by the bytes of ``rows`` that kernels load."""
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
