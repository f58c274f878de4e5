"""The sweep of the Triton backend errs by no more than its bound; run as test_triton_rank.py is."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kgfast.kernels.reference.rank import canonical_scores
from kgfast.kernels.scores import get_score

triton = pytest.importorskip("triton")
tl = triton.language

from triton_ranks import CAN_RUN, DEVICE, INTERPRETED, PLAIN_SCORES, few, on_gpu  # noqa: E402


@pytest.mark.skipif(INTERPRETED, reason="is the outer process")
@pytest.mark.timeout(600)
def test_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, __file__, "-k", "TestBound"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


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
    from kgfast.kernels.triton.device.operands import Tile
    from kgfast.kernels.triton.host.batch import Batch
    from kgfast.kernels.triton.host.configs import plan
    from kgfast.kernels.triton.host.crop import Block, Crop, Scratch
    from kgfast.kernels.triton.host.launch import architecture
    from kgfast.kernels.triton.host.layout import query_sizes
    from kgfast.kernels.triton.host.sides import Sides
    from kgfast.kernels.triton.host.status import Status

    facts = get_score(score)
    dim = facts.num_features(candidates.shape[1])
    arch = architecture(queries.device)
    targets = torch.zeros(len(queries), dtype=torch.int64, device=DEVICE)
    sides = Sides(queries, candidates, facts, factor)
    batch = Batch.of(sides, targets, None, True, arch)
    has_factor = factor is not None
    cut = plan(facts, len(queries), len(candidates), dim, arch, has_factor=has_factor)
    status = Status(1, candidates.device)
    counts = torch.zeros(4, len(queries), dtype=torch.int64, device=DEVICE)
    crop = Crop(batch, dim, counts, cut, Scratch(batch, [cut], [dim], status))
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
        crop.packed(never, crop.lanes)._replace(rel=0.0),
        out,
        dim,
        out.stride(0),
        1.0001 * moves,
        FORM=sides.form(3 if has_factor else 0),
        TILE=Tile(cut.tile.queries, cut.tile.candidates),
        num_warps=cut.tile.num_warps,
    )

    def allowed(distance: Tensor) -> Tensor:
        q, c = queries.double(), candidates.double()
        bound = crop.bound
        if facts.is_rscf:  # as thresholds() makes them, of a target whose score is 0
            from kgfast.kernels.triton.host.bounds import thresholds

            zeros = torch.zeros(len(queries), dtype=torch.float64, device=DEVICE)
            rows = thresholds(bound, zeros, None, None, query_sizes(sides, dim)).double()
            norms = 0.0 if factor is None else (factor.double() - 1).abs().amax(1) + 2.0**-100
            return bound.rel * distance.abs() + rows[1][:, None] + rows[2][:, None] * norms
        order = bound.norm or 1
        q_norm, c_norm = q.norm(order, 1)[:, None], c.norm(order, 1)[None]
        of_norms = (bound.per_query + bound.per_pair * c_norm) * q_norm + bound.per_norm * c_norm
        return bound.rel * distance.abs() + bound.absolute + of_norms

    return out[: len(queries), : len(candidates)], allowed


if CAN_RUN:
    from kgfast.kernels.triton.device.sweep import of_tile, sweep_tile, tile_of
    from kgfast.kernels.triton.device.terms import distance_of

    @triton.jit
    def store_distances(
        packed, p_out, num_features, stride, largest_norm, FORM: tl.constexpr, TILE: tl.constexpr
    ):
        """The sweep's distances of one tile."""
        packed = of_tile(packed, FORM, TILE)
        tile = tile_of(packed.queries, packed.panels, num_features, FORM, TILE)
        total, _ = sweep_tile(tile, packed, num_features, (0.0, largest_norm), FORM, TILE)
        o_query = tl.program_id(0) * TILE.rows + tl.arange(0, TILE.rows)
        o_lane = tl.program_id(1) * TILE.lanes + tl.arange(0, TILE.lanes)
        p_pair = p_out + o_query[:, None] * stride + o_lane[None, :]
        tl.store(p_pair, distance_of(total, FORM))
