"""The Triton backend returns the integers of the reference.

Triton decides when it decorates a kernel whether to interpret it, so on a machine without a GPU
the classes below run in a subprocess with ``TRITON_INTERPRET=1``, started by
:func:`test_in_the_interpreter`; with a GPU (``-m gpu``) they run on it. To see them one by one:
``TRITON_INTERPRET=1 pytest tests/test_triton_rank.py``.
"""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from kgfast import ops
from kgfast.kernels.reference.rank import canonical_scores
from kgfast.kernels.reference.rank import rank_counts as reference
from kgfast.kernels.scores import get_score
from problems import SCORES

triton = pytest.importorskip("triton")
tl = triton.language

from interpreter import quicken  # noqa: E402

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = not INTERPRETED and torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
CAN_RUN = INTERPRETED or ON_GPU  # else the classes are left to the subprocess
on_gpu = pytest.mark.gpu if ON_GPU else lambda item: item
PLAIN_SCORES = [score for score in SCORES if score != "rotate_interleaved"]  # it is a layout
few = settings(
    max_examples=50 if ON_GPU else 6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

if INTERPRETED:
    quicken()

# Values that make ties, that vanish in float32 products, and that overflow them.
EVIL = [0.0, -0.0, 1.0, -1.0, 0.5, 1.0000001, 1e-40, -1e-40, 1e-23, 3e-20, 1e30, -1e30, 2e38]


@pytest.mark.skipif(INTERPRETED, reason="is the outer process")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "group", ["TestScores", "TestSums", "TestOptions", "TestBound or TestOperator"]
)
def test_in_the_interpreter(group: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, __file__, "-k", group],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def compare(
    queries: Tensor,
    candidates: Tensor,
    targets: Tensor,
    indptr: Tensor,
    indices: Tensor,
    score: str,
    **options: object,
) -> None:
    """Assert that both backends return the same integers."""
    from kgfast.kernels.triton.rank import rank_counts

    def there(value: object) -> object:
        if not isinstance(value, Tensor):
            return value
        if not ON_GPU:
            return value
        storage = value.untyped_storage().to(DEVICE)  # keeps strides and alignment
        moved = torch.empty(0, dtype=value.dtype, device=DEVICE)
        return moved.set_(storage, value.storage_offset(), value.shape, value.stride())

    args = [queries, candidates, targets, indptr, indices]
    expected = reference(*args, score, **options)
    moved = {name: there(value) for name, value in options.items()}
    found = rank_counts(*(there(value) for value in args), score, **moved)
    for x, y in zip(expected, found, strict=True):
        assert x.dtype == y.dtype == torch.int64
        assert torch.equal(x, y.cpu()), (expected, found)


def known_ids(num_queries: int, num_entities: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Targets and a CSR index in random order, with duplicates, targets and empty rows."""
    rng = torch.Generator().manual_seed(seed)
    targets = torch.randint(num_entities, (num_queries,), generator=rng)
    counts = torch.randint(0, 6, (num_queries,), generator=rng)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    return targets, indptr, torch.randint(num_entities, (int(indptr[-1]),), generator=rng)


def table(score: str, rows: int, dim: int, dtype: torch.dtype, seed: int, grid: float) -> Tensor:
    """Random rows; a coarse grid makes ties."""
    rng = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, dim * get_score(score).planes, generator=rng, dtype=torch.float64)
    return ((values * grid).round() / grid if grid else values).to(dtype)


def query_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


@on_gpu
@pytest.mark.parametrize("score", SCORES)
class TestScores:
    __test__ = CAN_RUN

    @given(
        shape=st.tuples(st.integers(1, 20), st.integers(1, 70), st.integers(1, 9)),
        dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64]),
        grid=st.sampled_from([0.0, 1.0, 4.0]),
        has_bias=st.booleans(),
        seed=st.integers(0, 1000),
    )
    @few
    def test_random_tables(self, score, shape, dtype, grid, has_bias, seed) -> None:
        num_queries, num_entities, dim = shape
        candidates = table(score, num_entities, dim, dtype, seed, grid)
        queries = table(score, num_queries, dim, query_dtype(dtype), seed + 1, grid)
        bias = table("l1", num_entities, 1, dtype, seed + 2, grid)[:, 0] if has_bias else None
        compare(queries, candidates, *known_ids(num_queries, num_entities, seed), score, bias=bias)

    @given(
        shape=st.tuples(st.integers(1, 5), st.integers(1, 40), st.integers(1, 4)),
        nan_worst=st.booleans(),
        is_double=st.booleans(),
        seed=st.integers(0, 1000),
    )
    @few
    def test_adversarial_values(self, score, shape, nan_worst, is_double, seed) -> None:
        num_queries, num_entities, dim = shape
        pool = torch.tensor(
            EVIL
            + ([float("nan"), float("inf"), -float("inf")] if nan_worst else [])
            + ([1e-300, 1e150, 1e300, 1 + 1e-12] if is_double else []),
            dtype=torch.float64 if is_double else torch.float32,
        )
        rng = torch.Generator().manual_seed(seed)
        width = dim * get_score(score).planes

        def draw(rows: int) -> Tensor:
            return pool[torch.randint(len(pool), (rows, width), generator=rng)]

        bias = draw(num_entities)[:, 0] if seed % 2 else None
        compare(
            draw(num_queries),
            draw(num_entities),
            *known_ids(num_queries, num_entities, seed),
            score,
            bias=bias,
            nan_worst=nan_worst,
        )

    def test_dims(self, score) -> None:
        candidates = table(score, 30, 11, torch.float32, 0, 2.0)
        queries = table(score, 4, 11, torch.float32, 1, 2.0)
        compare(queries, candidates, *known_ids(4, 30), score, dims=[11, 1, 4])

    def test_rows_that_lie_on_each_other(self, score) -> None:
        width = 3 * get_score(score).planes
        candidates = table(score, 1, 3, torch.float32, 0, 0.0).expand(50, width)
        queries = table(score, 1, 3, torch.float32, 1, 0.0)[:, :1].expand(3, width)
        compare(queries, candidates, *known_ids(3, 50), score)


@on_gpu
@pytest.mark.parametrize("score", PLAIN_SCORES)
class TestSums:
    __test__ = CAN_RUN

    def test_long_rows(self, score) -> None:  # several short accumulators, a tail, abandoned tiles
        candidates = table(score, 90, 140, torch.float32, 0, 0.0)
        targets, indptr, indices = known_ids(20, 90)
        queries = candidates[targets] + 0.1 * table(score, 20, 140, torch.float32, 1, 0.0)
        compare(queries, candidates, targets, indptr, indices, score)

    def test_crops_of_long_rows(self, score) -> None:  # ends between two folds
        candidates = table(score, 70, 140, torch.float32, 0, 0.0)
        targets, indptr, indices = known_ids(5, 70)
        queries = candidates[targets] + 0.1 * table(score, 5, 140, torch.float32, 1, 0.0)
        options = {"bias": torch.linspace(-1, 1, 70), "dims": [130, 5, 140, 65, 130]}
        compare(queries, candidates, targets, indptr, indices, score, **options)

    def test_a_crop_that_is_lost_before_a_wider_one_is_won(self, score) -> None:
        """The first tile is past the limit of the narrow crop, not that of the wide one."""
        rows = torch.zeros(90, 140, get_score(score).planes)
        rows[:89, :64] = 1.0
        rows[89, 64:] = 1.0  # the target
        candidates = rows.transpose(1, 2).reshape(90, -1)
        queries = torch.full_like(candidates[:2], -1.0 if score == "dot" else 0.0)
        none = torch.zeros(3, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
        compare(queries, candidates, torch.tensor([89, 89]), *none, score, dims=[64, 140])

    def test_near_ties_are_decided_exactly(self, score) -> None:
        row = table(score, 1, 70, torch.float64, 0, 0.0)
        candidates = row * (1 + 1e-9 * torch.arange(20.0, dtype=torch.float64)[:, None])
        queries = table(score, 2, 70, torch.float64, 1, 0.0)
        compare(queries, candidates, *known_ids(2, 20), score)

    def test_rounding_that_adds_up(self, score) -> None:  # equal terms round the same way
        steps = torch.arange(0, 60, 2, dtype=torch.int32)[:, None]
        values = (torch.tensor(0.1).view(torch.int32) + steps).view(torch.float32)
        candidates = values.expand(30, 130 * get_score(score).planes)
        queries = torch.full_like(candidates[:1], 1.0 if score == "dot" else -0.0)
        none = torch.zeros(2, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
        compare(queries, candidates, torch.tensor([15]), *none, score)

    def test_a_sum_that_ties_before_its_end(self, score) -> None:
        planes = get_score(score).planes
        rows = torch.zeros(40, 70, planes, dtype=torch.float64)
        rows[:, :64] = 1.0
        rows[1:, 64:] = 1e-10  # after the first look at what can still win
        candidates = rows.transpose(1, 2).reshape(40, -1)
        queries = torch.full_like(candidates[:2], 1.0 if score == "dot" else 0.0)
        known = torch.tensor([0, 3, 3]), torch.tensor([1, 2, 3])
        compare(queries, candidates, torch.tensor([0, 0]), *known, score)

    def test_overflow_in_float32_decides_nothing(self, score) -> None:
        candidates = torch.full((40, 3 * get_score(score).planes), 1e20)
        candidates[5] = 1e25
        queries = torch.full_like(candidates[:1], -1.0 if score == "dot" else 0.0)
        none = torch.zeros(2, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
        compare(queries, candidates, torch.tensor([5]), *none, score)

    def test_a_band_that_overflows(self, score, monkeypatch) -> None:
        from kgfast.kernels.triton import configs

        monkeypatch.setattr(configs, "BAND_PAIRS", 1024)
        candidates = table(score, 1, 3, torch.float32, 0, 0.0).repeat(300, 1)
        candidates[7] *= 0.5
        queries = table(score, 6, 3, torch.float32, 1, 0.0)
        compare(queries, candidates, *known_ids(6, 300), score)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_denormals(self, score, dtype) -> None:
        smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
        scale = smallest * (2.0**40 if score == "dot" else 1.0)
        candidates = (table(score, 30, 2, torch.float64, 0, 1.0) * smallest).to(dtype)
        queries = table(score, 3, 2, torch.float64, 1, 1.0) * scale
        compare(queries.float(), candidates, *known_ids(3, 30), score, bias=candidates[:, 0])

    def test_crops_whose_bands_overflow(self, score, monkeypatch) -> None:
        """Each crop is repaired, and its index sorted, after all of them have run."""
        from kgfast.kernels.triton import configs

        monkeypatch.setattr(configs, "BAND_PAIRS", 1024)
        candidates = table(score, 1, 4, torch.float32, 0, 0.0).repeat(300, 1)
        candidates[7] *= 0.5
        queries = table(score, 6, 4, torch.float32, 1, 0.0)
        compare(queries, candidates, *known_ids(6, 300), score, dims=[2, 4, 1])

    def test_infinite_biases(self, score) -> None:
        candidates = table(score, 40, 3, torch.float32, 0, 1.0)
        queries = table(score, 2, 3, torch.float32, 1, 1.0)
        for bias in (-torch.inf, torch.inf):
            biases = torch.full((40,), bias)
            compare(queries, candidates, *known_ids(2, 40), score, bias=biases, nan_worst=True)


@on_gpu
class TestOptions:
    __test__ = CAN_RUN

    @given(
        step=st.integers(1, 3),
        offset=st.integers(0, 3),
        is_transposed=st.booleans(),
        score=st.sampled_from(list(SCORES)),
    )
    @few
    def test_strided_and_misaligned_views(self, step, offset, is_transposed, score) -> None:
        width = 5 * get_score(score).planes

        def view(rows: int, seed: int) -> Tensor:
            rng = torch.Generator().manual_seed(seed)
            if is_transposed:
                return torch.randn(width + offset, rows, generator=rng)[offset:].T
            return torch.randn(rows, width * step + offset, generator=rng)[:, offset::step][
                :, :width
            ]

        compare(view(3, 0), view(21, 1), *known_ids(3, 21), score)

    @given(count=st.integers(0, 30), has_bias=st.booleans(), nan_worst=st.booleans())
    @few
    def test_candidate_ids(self, count, has_bias, nan_worst) -> None:
        rng = torch.Generator().manual_seed(count)
        candidates = table("rotate", 30, 3, torch.float32, 0, 1.0)
        queries = table("rotate", 5, 3, torch.float32, 1, 1.0)
        if nan_worst:
            queries[1, 0] = candidates[2, 1] = torch.nan
        compare(
            queries,
            candidates,
            *known_ids(5, 30, 3),
            "rotate",
            bias=torch.randn(30, generator=rng).round() if has_bias else None,
            candidate_ids=torch.randperm(30, generator=rng)[:count],
            nan_worst=nan_worst,
        )

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
    def test_one_bias_for_all(self, dtype) -> None:
        candidates = table("dot", 20, 4, torch.float32, 0, 1.0)
        queries = table("dot", 3, 4, torch.float32, 1, 1.0)
        compare(queries, candidates, *known_ids(3, 20), "dot", bias=torch.tensor([0.1]).to(dtype))

    def test_a_bias_decides_what_the_embedding_does_not(self) -> None:
        candidates = torch.ones(40, 3)
        bias = torch.arange(40.0) * 2.0**-20
        compare(torch.zeros(2, 3), candidates, *known_ids(2, 40), "l1", bias=bias)

    def test_sorted_known_ids(self) -> None:
        indptr = torch.tensor([0, 4, 4, 6])
        indices = torch.tensor([1, 3, 3, 9, 0, 19])
        candidates = table("rotate", 20, 3, torch.float32, 0, 1.0)
        queries = table("rotate", 3, 3, torch.float32, 1, 1.0)
        compare(queries, candidates, torch.tensor([3, 0, 2]), indptr, indices, "rotate")

    def test_more_known_ids_than_a_band_holds(self, monkeypatch) -> None:
        from kgfast.kernels.triton import configs

        monkeypatch.setattr(configs, "BAND_PAIRS", 1024)
        indptr, indices = torch.tensor([0, 600, 1100]), torch.arange(1100) % 40
        candidates = table("l2", 40, 3, torch.float32, 0, 1.0)
        queries = table("l2", 2, 3, torch.float32, 1, 1.0)
        compare(queries, candidates, torch.tensor([3, 0]), indptr, indices, "l2")

    @pytest.mark.parametrize("score", ["dot", "rotate"])
    def test_many_passes_and_chunks(self, score, monkeypatch) -> None:
        from kgfast.kernels.triton import configs

        row_bytes = 4 * 3 * get_score(score).planes
        monkeypatch.setattr(configs, "QUERY_BYTES", 32 * row_bytes)
        monkeypatch.setattr(configs, "PACKED_BYTES", 100 * row_bytes + 8 * 64)
        candidates = table(score, 150, 3, torch.float32, 0, 1.0)
        queries = table(score, 70, 3, torch.float32, 1, 1.0)
        ids = torch.randperm(150)[:140]
        compare(queries, candidates, *known_ids(70, 150), score, candidate_ids=ids)

    @pytest.mark.parametrize("has_ids", [False, True])
    def test_rows_too_long_for_the_scratch(self, has_ids, monkeypatch) -> None:
        from kgfast.kernels.triton import configs

        monkeypatch.setattr(configs, "PACKED_BYTES", 64)
        monkeypatch.setattr(configs, "BAND_PAIRS", 32)
        candidates = table("rotate", 20, 3, torch.float32, 0, 1.0)
        queries = table("rotate", 4, 3, torch.float32, 1, 1.0)
        ids = torch.randperm(20)[:11] if has_ids else None
        compare(queries, candidates, *known_ids(4, 20), "rotate", candidate_ids=ids)

    def test_numbers_that_are_not_finite_in_long_rows(self, monkeypatch) -> None:
        from kgfast.kernels.triton import configs
        from kgfast.kernels.triton.rank import rank_counts

        monkeypatch.setattr(configs, "PACKED_BYTES", 64)
        candidates = torch.ones(50, 160, device=DEVICE)
        candidates[3:] = 9.0  # all lose after 64 features
        candidates[40, 75] = torch.nan
        none = torch.zeros(2, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
        index = (torch.zeros(1, dtype=torch.int64), *none)
        with pytest.raises(ValueError, match="candidates: row 40 holds"):
            rank_counts(candidates[:1], candidates, *(it.to(DEVICE) for it in index), "rotate")

    def test_larger_tiles(self) -> None:
        candidates = table("rotate", 300, 2, torch.float32, 0, 2.0)
        queries = table("rotate", 260, 2, torch.float32, 1, 2.0)
        targets, _, _ = known_ids(260, 300)
        indptr = torch.cat([torch.zeros(200, dtype=torch.int64), torch.full((61,), 20)])
        compare(queries, candidates, targets, indptr, torch.arange(20), "rotate")

    def test_no_queries(self) -> None:
        compare(torch.empty(0, 4), torch.randn(5, 4), *known_ids(0, 5), "dot")
        compare(torch.empty(0, 4), torch.empty(0, 4), *known_ids(0, 1), "dot")

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
    def test_numbers_that_are_not_finite(self, dtype, value) -> None:
        from kgfast.kernels.triton.rank import rank_counts

        none = torch.zeros(4, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
        none = tuple(tensor.to(DEVICE) for tensor in none)
        targets = torch.tensor([0, 1, 2], device=DEVICE)
        good = torch.ones(9, 4, dtype=dtype, device=DEVICE)
        queries = torch.ones(3, 4, dtype=query_dtype(dtype), device=DEVICE)
        bad, bad_query = good.clone(), queries.clone()
        bad[7, 3] = bad[8, 0] = bad_query[1, 2] = value
        with pytest.raises(ValueError, match="queries: row 1 holds"):
            rank_counts(bad_query, bad, targets, *none, "rotate")
        with pytest.raises(ValueError, match="candidates: row 7 holds"):
            rank_counts(queries, bad, targets, *none, "rotate")
        subset = torch.tensor([0, 3], device=DEVICE)
        rank_counts(queries, bad, targets, *none, "rotate", candidate_ids=subset)
        with pytest.raises(ValueError, match="candidates: row 7 holds"):  # a target outside it
            rank_counts(queries, bad, targets + 5, *none, "rotate", candidate_ids=subset)
        rank_counts(queries, bad, targets, *none, "rotate", dims=[1], candidate_ids=subset)

    def test_other_devices_are_refused(self) -> None:
        from kgfast.kernels.triton.launch import architecture

        with pytest.raises(ValueError, match=r"serves CUDA and ROCm tensors.*meta"):
            architecture(torch.device("meta"))


@on_gpu
class TestOperator:
    """Checks that wait until the bands are read raise what they would raise at once."""

    __test__ = CAN_RUN

    @pytest.mark.parametrize(
        "bad",
        [
            {"targets": [0, 9, 1]},
            {"targets": [-(2**62), 0, 1]},
            {"indices": [3, -1, 2]},
            {"indices": [3, 2**40, 2]},
            {"indptr": [0, 1, 2, 2]},
            {"indptr": [1, 1, 2, 3]},
            {"indptr": [0, 3, 1, 3]},
            {"indptr": [0, 2**40, 3, 3]},
            {"candidate_ids": [0, 9]},
            {"candidate_ids": [5, 0, 5]},
            {"candidate_ids": [0, 0, 9]},
            {"bias": [0.0] * 8 + [float("nan")]},
            {"targets": [0, 9, 1], "indices": [3, -1, 2]},
            {"queries": 1},
            {"candidates": 4},
            {"queries": 2, "bias": [float("inf")]},
        ],
    )
    @pytest.mark.parametrize("dims", [None, [1, 2]])
    def test_errors_are_those_of_the_cpu(self, bad, dims) -> None:
        queries, candidates = torch.zeros(3, 4), torch.ones(9, 4)
        if "queries" in bad:
            queries[bad["queries"], 0] = torch.nan
        if "candidates" in bad:
            candidates[bad["candidates"], 2] = torch.inf
        arguments = [
            queries,
            candidates,
            torch.tensor(bad.get("targets", [0, 1, 2])),
            torch.tensor(bad.get("indptr", [0, 1, 1, 3])),
            torch.tensor(bad.get("indices", [3, 1, 4])),
        ]
        options = {
            name: torch.tensor(bad[name]) for name in ("bias", "candidate_ids") if name in bad
        }
        with ops.use_backend("reference"), pytest.raises(ValueError, match=r"\w") as expected:
            ops.rank_counts(*arguments, "rotate", dims=dims, **options)
        moved = {name: value.to(DEVICE) for name, value in options.items()}
        with ops.use_backend("triton"), pytest.raises(ValueError, match=r"\w") as found:
            ops.rank_counts(*(it.to(DEVICE) for it in arguments), "rotate", dims=dims, **moved)
        assert str(found.value) == str(expected.value)

    def test_a_table_without_rows(self) -> None:
        ids = torch.zeros(2, dtype=torch.int64, device=DEVICE)
        queries = torch.zeros(1, 4, device=DEVICE)
        with ops.use_backend("triton"), pytest.raises(ValueError, match="there are no candidates"):
            ops.rank_counts(queries, queries[:0], ids[:1], ids, ids[:0], "rotate")


@on_gpu
@pytest.mark.parametrize("score", PLAIN_SCORES)
class TestBound:
    __test__ = CAN_RUN

    @given(
        shape=st.tuples(st.integers(1, 4), st.integers(1, 20), st.integers(1, 150)),
        scale=st.sampled_from([1.0, 1e-18, 1e15]),
        law=st.sampled_from(["normal", "log-normal", "cauchy", "near"]),
        is_double=st.booleans(),
        seed=st.integers(0, 1000),
    )
    @few
    def test_the_sweep_stays_within_its_bound(
        self, score, shape, scale, law, is_double, seed
    ) -> None:
        num_queries, num_entities, dim = shape
        rng = torch.Generator().manual_seed(seed)
        width = dim * get_score(score).planes
        values = torch.randn(num_queries + num_entities, width, generator=rng).double()
        if law == "log-normal":
            values = values.sign() * (3 * values).exp()
        if law == "cauchy":
            values = (values * 1.5).tan()
        if law == "near":
            values = values[:1] + 1e-5 * values
        values = (values * scale).to(torch.float64 if is_double else torch.float32)
        queries, candidates = values[:num_queries].to(DEVICE), values[num_queries:].to(DEVICE)
        found, allowed = swept_distances(score, queries, candidates)
        wanted = -canonical_scores(queries[:, None], candidates[None], score)
        finite = found.isfinite()
        excess = (found.double() - wanted).abs() - allowed(wanted)
        assert not bool((excess[finite] > 0).any())
        if scale == 1.0 and not is_double:
            assert bool(finite.all())


def swept_distances(score: str, queries: Tensor, candidates: Tensor, factor: Tensor | None = None):
    """What the sweep computes, ``[B, N]``, and what it may be wrong by, as a function."""
    from kgfast.kernels.triton.batch import Batch
    from kgfast.kernels.triton.configs import plan
    from kgfast.kernels.triton.crop import Block, Crop, Scratch
    from kgfast.kernels.triton.launch import architecture
    from kgfast.kernels.triton.status import Status

    facts = get_score(score)
    dim = facts.num_features(candidates.shape[1])
    arch = architecture(queries.device)
    targets = torch.zeros(len(queries), dtype=torch.int64, device=DEVICE)
    batch = Batch.of(facts, queries, candidates, targets, None, None, True, arch, factor)
    has_factor = factor is not None
    cut = plan(facts, len(queries), len(candidates), dim, arch, has_factor=has_factor)
    status = Status(1, candidates.device)
    counts = torch.zeros(4, len(queries), dtype=torch.int64, device=DEVICE)
    crop = Crop(batch, dim, counts, cut, Scratch(batch, [cut], [dim]), status)
    crop.score_targets()
    crop.order = torch.arange(len(queries), device=DEVICE)
    crop.pack_queries(Block(0, len(queries), 0, len(candidates)), cut.tile)
    crop.pack_candidates(Block(0, len(queries), 0, len(candidates)), cut.tile)
    tiles = -(-len(queries) // cut.tile.queries)
    panels = -(-len(candidates) // cut.tile.candidates)
    out = torch.empty(tiles * cut.tile.queries, panels * cut.tile.candidates, device=DEVICE)
    never = crop.packed_thresholds.clone()
    never[:, :3] = torch.inf
    moves = 0.0 if factor is None else float((factor.double() - 1).abs().max())
    store_distances[(tiles, panels)](
        crop.packed_queries,
        crop.packed_panels,
        never,
        out,
        dim,
        out.stride(0),
        1.0001 * moves,
        **{name: crop._score[name] for name in ("SCORE", "PLANES")},
        HAS_FACTOR=has_factor,
        BLOCK_M=cut.tile.queries,
        BLOCK_N=cut.tile.candidates,
        num_warps=cut.tile.num_warps,
    )

    def allowed(distance: Tensor) -> Tensor:
        q, c = queries.double(), candidates.double()
        bound = crop.bound
        if facts.filters:  # as thresholds() makes them, of a target whose score is 0
            from kgfast.kernels.triton.bounds import thresholds

            zeros = torch.zeros(len(queries), dtype=torch.float64, device=DEVICE)
            rows = thresholds(bound, zeros, None, None, crop._query_sizes()).double()
            norms = 0.0 if factor is None else (factor.double() - 1).abs().amax(1) + 2.0**-100
            return bound.rel * distance.abs() + rows[1][:, None] + rows[2][:, None] * norms
        order = bound.norm or 1
        q_norm, c_norm = q.norm(order, 1)[:, None], c.norm(order, 1)[None]
        of_norms = (bound.per_query + bound.per_pair * c_norm) * q_norm + bound.per_norm * c_norm
        return bound.rel * distance.abs() + bound.absolute + of_norms

    return out[: len(queries), : len(candidates)], allowed


if CAN_RUN:
    from kgfast.kernels.triton.sweep import sweep_tile
    from kgfast.kernels.triton.terms import distance_of, query_planes

    @triton.jit
    def store_distances(
        p_query,
        p_panel,
        p_threshold,
        p_out,
        num_features,
        stride,
        largest_norm,
        SCORE: tl.constexpr,
        PLANES: tl.constexpr,
        HAS_FACTOR: tl.constexpr,
        BLOCK_M: tl.constexpr,
        BLOCK_N: tl.constexpr,
    ):
        """The sweep's distances of one tile."""
        i_tile = tl.program_id(0)
        i_panel = tl.program_id(1)
        total, _ = sweep_tile(
            p_query + i_tile * num_features * query_planes(SCORE, PLANES, HAS_FACTOR) * BLOCK_M,
            p_panel + i_panel * num_features * (PLANES + HAS_FACTOR) * BLOCK_N,
            p_threshold + i_tile * (3 + HAS_FACTOR) * BLOCK_M,
            0.0,
            largest_norm,
            num_features,
            0.0,
            SCORE,
            PLANES,
            HAS_FACTOR,
            HAS_FACTOR,  # of a norm
            BLOCK_M,
            BLOCK_N,
        )
        o_query = i_tile * BLOCK_M + tl.arange(0, BLOCK_M)
        o_lane = i_panel * BLOCK_N + tl.arange(0, BLOCK_N)
        p_pair = p_out + o_query[:, None] * stride + o_lane[None, :]
        tl.store(p_pair, distance_of(total, SCORE))
