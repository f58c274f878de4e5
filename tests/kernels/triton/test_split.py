"""Dot products by tensor cores, emulated: what they compute, and what they may err by.

Ranks and answers by them: the engine ``triton split`` of ``tests/kernels/test_ranks.py``.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from support.engines import INTERPRETED, examples
from support.tensor_cores import tensor_cores

pytest.importorskip("triton")

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
emulated = pytest.mark.skipif(not INTERPRETED, reason="tensor cores are emulated")


@emulated
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 20), st.integers(1, 100)),
    scale=st.sampled_from([1.0, 1e-18, 1e15]),
    law=st.sampled_from(["normal", "log-normal", "cauchy", "same sign", "bits"]),
    dtype=st.sampled_from(DTYPES),
    group=st.sampled_from([4, 8, 16]),
    seed=st.integers(0, 1000),
)
@examples(50)
def test_the_sweep_stays_within_its_bound(shape, scale, law, dtype, group, seed) -> None:
    from support.triton_split import swept_products

    num_queries, num_entities, dim = shape
    rng = torch.Generator().manual_seed(seed)
    values = torch.randn(num_queries + num_entities, dim, generator=rng).double()
    if law == "log-normal":
        values = values.sign() * (3 * values).exp()
    if law == "cauchy":
        values = (values * 1.5).tan()
    if law == "same sign":
        values = values.abs()
    if law == "bits":  # all that rounding to bfloat16 can take, twice
        values = values.sign() * (1 + 2.0**-8 - 2.0**-16)
    # float16 has no larger numbers than 65,504; both laws with long tails draw some
    values = values.clamp(-6e4, 6e4) if dtype == torch.float16 else values * scale
    queries = values[:num_queries].to(torch.promote_types(dtype, torch.float32))
    candidates = values[num_queries:].to(dtype)
    with tensor_cores(group):
        swept, allowed = swept_products(queries, candidates)
    exact = -(queries.double() @ candidates.double().T)
    is_finite = swept.isfinite()
    assert bool(((swept.double() - exact).abs() <= allowed)[is_finite].all())
    if scale == 1.0:
        assert bool(is_finite.all())
        size = queries.double().norm(dim=1)[:, None] * candidates.double().norm(dim=1)
        assert bool((allowed <= 2.0**-14 * size + 1e-30).all())  # the bound is not vacuous


@emulated
def test_a_turned_tile_has_the_same_sums() -> None:
    from support.triton_split import TURNED, swept_products

    rng = torch.Generator().manual_seed(0)
    queries, candidates = torch.randn(5, 70, generator=rng), torch.randn(40, 70, generator=rng)
    with tensor_cores():
        swept, turned = (swept_products(queries, candidates, *tile)[0] for tile in ((), (TURNED,)))
    assert torch.equal(swept, turned)


@emulated
@pytest.mark.parametrize(("bits", "is_covered"), [(25, True), (24, True), (22, False)])
def test_a_device_is_measured_by_what_it_cuts_off(bits, is_covered) -> None:
    """The bound holds for one bit less than is known of tensor cores, not for three."""
    from kgfast.kernels.triton.host import split
    from support.triton_split import swept_products

    queries, candidates = split.hard_rows(3, bits)
    with tensor_cores(bits=bits):
        swept, allowed = swept_products(queries, candidates)
        loss = split.largest_loss(torch.device("cpu"))
    assert (loss <= split.CUT) == is_covered
    error = (swept.double() + queries.double() @ candidates.double().T).abs()
    assert bool((error > 31 * 3 * 2.0**-bits * 0.9).all())
    assert bool((error <= allowed).all()) == is_covered


@pytest.mark.parametrize(("units", "is_covered"), [(1.5, True), (3.5, False)])
def test_tensor_cores_are_measured_once_and_where_they_can_be(
    monkeypatch, units, is_covered
) -> None:
    from kgfast.kernels.triton.host import split

    device, losses = torch.device("cuda:0"), iter([units * split.bounds.UNIT])
    monkeypatch.setattr(split, "_MEASURED", {})
    monkeypatch.setattr(split, "largest_loss", lambda device: next(losses))
    with FakeTensorMode():
        assert not split.holds(device)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", [False, True].pop)
    assert not split.holds(device)
    assert split.holds(device) == split.holds(device) == is_covered


@emulated
def test_the_parts_are_rounded_to_the_nearest() -> None:
    from support.triton_split import packed_parts

    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(16, 40, generator=rng) * 10.0 ** torch.randint(-30, 30, (16, 1))
    rows[3, :4] = torch.tensor([1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, 2.0 - 2.0**-9, 1e-39])
    high, low, norms = packed_parts(rows)
    assert torch.equal(high, rows.bfloat16().float())
    assert torch.equal(low, (rows - high).bfloat16().float())
    rest = rows.double() - high.double() - low.double()
    for part, norm in zip((rows, low, rest), norms, strict=True):
        exact = part.double().norm(dim=1)
        assert bool(((norm >= exact) & (norm <= exact * (1 + 2.0**-18) + 2.0**-99)).all())
