"""The filtering scores of the Triton backend: ranks and ids of the reference, gradients to 1e-5.

As in test_rank.py, the classes run in a subprocess with ``TRITON_INTERPRET=1`` where there
is no GPU.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from kgfast.kernels.scores import get_score
from support.flat import canonical_scores, reference
from support.flat import triton as kernels
from support.interpreted import fast_and_slow, others_are_slow, run_interpreted
from support.problems import RSCF_SCORES, rscf_problem

triton = pytest.importorskip("triton")
tl = triton.language

from support.triton_ranks import CAN_RUN, DEVICE, INTERPRETED, on_gpu  # noqa: E402

FEW_SCORES = others_are_slow(RSCF_SCORES, "rscf_rotate")


@pytest.mark.skipif(INTERPRETED, reason="is the outer process")
@fast_and_slow
@pytest.mark.slow
def test_in_the_interpreter(marks: str) -> None:
    run_interpreted(__file__, "TestRanks or TestBound or TestGradients", marks)


def there(value: Any) -> Any:
    return value.to(DEVICE) if isinstance(value, Tensor) else value


def operands(score: str, has_factor: bool, dtype: torch.dtype = torch.float32):
    """Queries, a table and a factor or None; a pair of each kind is equal."""
    generator = torch.Generator().manual_seed(0)
    planes, dim = get_score(score).planes, 6

    def normal(rows: int, width: int) -> Tensor:
        return torch.randn(rows, width, generator=generator)

    table, factor = normal(33, planes * dim).to(dtype), (1 + 0.3 * normal(33, dim)).to(dtype)
    queries = torch.cat([normal(5, 2 * planes * dim), 3 * normal(5, dim)], 1)
    queries[0, : 2 * planes * dim] = 1.0
    queries[0, 2 * planes * dim :] = 0.0
    table[7] = 1.0
    queries = queries if has_factor else queries[:, : 2 * planes * dim]
    return there(queries), there(table), there(factor) if has_factor else None


def exact(value: Any) -> Any:
    return value.double().cpu() if torch.is_tensor(value) and value.is_floating_point() else value


def assert_close(actual: Tensor | None, expected: Tensor | None, rel: float = 1e-5) -> None:
    """Within ``rel`` of the largest number."""
    if expected is None or actual is None:
        assert actual is expected
        return
    assert actual.shape == expected.shape
    error = (actual.double().cpu() - expected.double()).abs().max()
    assert float(error) <= rel * float(expected.abs().max())


@on_gpu
@pytest.mark.parametrize("score", FEW_SCORES)
class TestRanks:
    __test__ = CAN_RUN

    @pytest.mark.parametrize("seed", range(8))
    def test_random_problems(self, score, seed) -> None:
        arguments, options = rscf_problem(score, seed, nonfinite=seed % 4 == 3)
        expected = reference.rank_counts(*arguments, **options)
        moved = {name: there(value) for name, value in options.items()}
        actual = kernels.rank_counts(*map(there, arguments), **moved)
        for x, y in zip(expected, actual, strict=True):
            assert torch.equal(x, y.cpu())

    @pytest.mark.parametrize("has_factor", [False, True])
    def test_more_queries_than_a_tile_has(self, score, has_factor) -> None:
        queries, table, factor = operands(score, has_factor)
        queries = torch.cat([queries * (1 + i / 8) for i in range(5)])
        targets = there(torch.arange(25))
        known = there(torch.zeros(26, dtype=torch.int64)), targets[:0]
        counts = kernels.rank_counts(queries, table, targets, *known, score, factor=factor)
        cpu = queries.cpu(), table.cpu()
        factor = None if factor is None else factor.cpu()
        expected = reference.rank_counts(
            *cpu, targets.cpu(), *(part.cpu() for part in known), score, factor=factor
        )
        assert all(torch.equal(x.cpu(), y) for x, y in zip(counts, expected, strict=True))
        best = kernels.topk(queries, table, 3, *known, score, factor=there(factor))
        expected = reference.topk(*cpu, 3, *(part.cpu() for part in known), score, factor=factor)
        assert all(torch.equal(x.cpu(), y) for x, y in zip(best, expected, strict=True))

    def test_a_band_that_overflows(self, score, monkeypatch) -> None:
        from kgfast.kernels.triton.host import configs

        monkeypatch.setattr(configs, "BAND_PAIRS", 1024)
        queries, table, factor = operands(score, True)
        table, factor = table[:1].repeat(220, 1), factor[:1].repeat(220, 1)
        factor[7] += 0.5
        index = torch.tensor([7, 0, 3, 7, 219]), torch.zeros(6, dtype=torch.int64)
        arguments = queries, table, *index, torch.empty(0, dtype=torch.int64), score
        expected = reference.rank_counts(*map(there, arguments), factor=factor)
        actual = kernels.rank_counts(*map(there, arguments), factor=factor)
        for x, y in zip(expected, actual, strict=True):
            assert torch.equal(x, y)

    @pytest.mark.parametrize("seed", [3, 4, 7])
    def test_best(self, score, seed, monkeypatch) -> None:
        from kgfast.kernels.triton import topk as module

        monkeypatch.setattr(module, "STRIPE", 16)
        (queries, table, _, *known, _), options = rscf_problem(score, seed)
        expected = reference.topk(queries, table, 4, *known, score, **options)
        moved = {name: there(value) for name, value in options.items()}
        actual = kernels.topk(*map(there, (queries, table, 4, *known)), score, **moved)
        assert torch.equal(actual[1].cpu(), expected[1])
        assert torch.equal(actual[0].cpu().nan_to_num(7.0), expected[0].nan_to_num(7.0))

    def test_numbers_that_are_not_finite(self, score) -> None:
        none = torch.zeros(6, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
        index = tuple(map(there, (torch.zeros(5, dtype=torch.int64), *none)))
        for place, name in enumerate(("queries", "candidates", "factor")):
            broken = [part.clone() for part in operands(score, True)]
            broken[place][3, -1] = torch.inf
            queries, table, factor = broken
            with pytest.raises(ValueError, match=f"{name}: row 3 holds"):
                kernels.rank_counts(queries, table, *index, score, factor=factor)
            with pytest.raises(ValueError, match=f"{name}: row 3 holds"):
                kernels.topk(queries, table, 2, score=score, factor=factor)


@on_gpu
@pytest.mark.parametrize("has_factor", [True, False], ids=["factor", "scale alone"])
@pytest.mark.parametrize("score", FEW_SCORES)
class TestGradients:
    __test__ = CAN_RUN

    @pytest.mark.parametrize("dims", [None, [2, 6, 3]], ids=["full", "crops"])
    def test_pairwise(self, score, has_factor, dims) -> None:
        dtype = torch.float32 if dims is None else torch.float16
        queries, table, factor = operands(score, has_factor, dtype)
        scores = kernels.pairwise_scores(queries, table, score, None, factor, dims)
        known = exact(queries), exact(table), score
        expected = reference.pairwise_scores(*known, None, exact(factor), dims)
        assert_close(scores, expected)
        grad = torch.randn(scores.shape, generator=torch.Generator().manual_seed(2)).to(DEVICE)
        actual = kernels.pairwise_backward(grad, queries, table, score, factor, dims)
        expected = reference.pairwise_backward(exact(grad), *known, exact(factor), dims)
        narrow = 1e-5 if dtype == torch.float32 else 1e-3
        for result, exact_result, rel in zip(actual, expected, (1e-5, narrow, narrow), strict=True):
            assert_close(result, exact_result, rel)
        again = kernels.pairwise_backward(
            grad, queries, table, score, factor, dims, (True, False, True)
        )
        assert again[1] is None
        assert torch.equal(again[0], actual[0])
        assert factor is None or torch.equal(again[2], actual[2])

    @pytest.mark.parametrize("dims", [None, [2, 6, 3]], ids=["full", "crops"])
    def test_indexed(self, score, has_factor, dims, monkeypatch) -> None:
        from kgfast.kernels.triton.host import gradients

        monkeypatch.setattr(gradients, "PIECE_PAIRS", 4)
        monkeypatch.setattr(gradients, "EXTRA_BYTES", 1 << 30)
        queries, table, factor = operands(score, has_factor)
        index = torch.randint(33, (5, 9), generator=torch.Generator().manual_seed(1))
        index[:, :4], index[0, 0] = 3, 7  # a hot id; the pair that is equal
        index = there(index)
        scores = kernels.indexed_scores(queries, table, index, score, None, factor, dims)
        known = exact(queries), exact(table), index.cpu(), score
        expected = reference.indexed_scores(*known, None, exact(factor), dims)
        assert_close(scores, expected)
        grad = torch.randn(scores.shape, generator=torch.Generator().manual_seed(2)).to(DEVICE)
        actual = kernels.indexed_backward(grad, queries, table, index, score, factor, dims)
        expected = reference.indexed_backward(exact(grad), *known, exact(factor), dims)
        assert torch.equal(actual[1][0].cpu(), expected[1][0])
        assert_close(actual[0], expected[0])
        assert_close(actual[1][1], expected[1][1])
        assert_close(actual[2], expected[2])


@on_gpu
class TestBound:
    __test__ = CAN_RUN

    @pytest.mark.parametrize("score", FEW_SCORES)
    @pytest.mark.parametrize(
        ("reach", "spread"), [(3.0, 0.1), (3.0, 2.0), (3e4, 0.5), (5.0, 0.0), (None, 0.0)]
    )
    def test_the_sweep_stays_within_its_bound(self, score, reach, spread) -> None:
        from support.triton_sweep import swept_distances

        generator = torch.Generator().manual_seed(1)
        planes, dim = get_score(score).planes, 70

        def normal(rows: int, width: int) -> Tensor:
            return torch.randn(rows, width, generator=generator)

        w = 1 + 0.5 * normal(4, planes * dim)
        table = normal(40, planes * dim)
        parts = [w * table[:4] + 1e-5 * normal(4, planes * dim), w]  # near what it meets
        factor = None
        if reach is not None:
            parts.append(reach * (2 * torch.rand(4, dim, generator=generator) - 1))
            factor = there(1 + spread * normal(40, dim))
        queries, table = there(torch.cat(parts, 1)), there(table)
        actual, allowed = swept_distances(score, queries, table, factor)
        canonical = -canonical_scores(queries[:, None], table[None], score, None, factor)
        assert bool(actual.isfinite().all())
        assert bool(((actual.double() - canonical).abs() <= allowed(canonical)).all())
        if spread < 1.0:
            assert bool((allowed(canonical) <= 0.1 * canonical.mean()).all())

    def test_the_polynomials_err_by_less_than_eight_units(self) -> None:
        angles = torch.linspace(-1.62, 1.62, 1 << 16, device=DEVICE)
        near, far = (torch.empty(2, len(angles), device=DEVICE) for _ in range(2))
        grid = (len(angles) // 1024,)
        store_cos_sin[grid](angles, near, len(angles), IS_NEAR=True)
        store_cos_sin[grid](400 * angles, far, len(angles), IS_NEAR=False)
        unit = 2.0**-24
        for actual, angle, slack in ((near, angles, 0.0), (far, 400 * angles, 8.0)):
            canonical = torch.stack([angle.double().cos(), angle.double().sin()])
            error = (actual.double() - canonical).abs() / unit
            assert bool((error <= 8 + slack * angle.double().abs()).all())


if CAN_RUN:
    from kgfast.kernels.triton.device.moves import far_cos_sin, near_cos_sin

    @triton.jit
    def store_cos_sin(p_angle, p_out, count, IS_NEAR: tl.constexpr):
        """Cosines and sines of 1024 angles."""
        place = tl.program_id(0) * 1024 + tl.arange(0, 1024)
        angle = tl.load(p_angle + place)
        if IS_NEAR:
            cosine, sine = near_cos_sin(angle)
        else:
            cosine, sine = far_cos_sin(angle, angle * 0.0)
        tl.store(p_out + place, cosine)
        tl.store(p_out + count + place, sine)
