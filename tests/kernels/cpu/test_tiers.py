"""Tiers before the float32 sweep change no integer."""

import pytest
import torch

from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers
from support import flat
from support.problems import no_known
from support.tiers import BYTES, INT8, pairs_of, serving

needs_extension = pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")


@needs_extension
@pytest.mark.parametrize("mask", [0, INT8, BYTES, INT8 | BYTES])
def test_the_int8_tier_serves_products_where_it_may(isa, mask):
    """The tier has as many rows and queries as it needs; integers are equal."""
    assert (set(tiers.available(isa)) == {"int8", "bytes"}) == (isa != "baseline")
    generator = torch.Generator().manual_seed(1)
    table, queries = (torch.randn(size, 512, generator=generator) for size in (5_000, 128))
    targets = torch.randint(5_000, (128,), generator=generator)
    arguments = queries, table, targets, *no_known(128), "dot"
    with serving(0):
        expected = flat.cpu.rank_counts(*arguments)
    with serving(mask):
        (swept, *_), found = pairs_of(lambda: flat.cpu.rank_counts(*arguments))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    serves = mask & INT8 and isa not in ("neon", "baseline")  # isa_neon.cpp
    assert (swept > 0) == bool(serves)
