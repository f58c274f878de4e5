"""``KGFAST_TIERS``: which tiers before the float32 sweep may serve."""

import pytest
import torch

import kgfast
from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers
from support import flat
from support.problems import no_known
from support.tiers import pairs_of

needs_extension = pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")


def test_names_choose_tiers(monkeypatch):
    for value, wanted in (
        ("", tiers.TIERS),
        ("all", tiers.TIERS),
        ("none", ()),
        ("bytes, int8", ("int8", "bytes")),
    ):
        monkeypatch.setenv("KGFAST_TIERS", value)
        assert tiers.wanted() == wanted


@pytest.mark.parametrize("value", ["fp8", "int8;bytes", "none,int8", ","])
def test_an_unknown_name_is_an_error(monkeypatch, value):
    monkeypatch.setenv("KGFAST_TIERS", value)
    with pytest.raises(ValueError, match="KGFAST_TIERS must be none, all, or some of int8, bytes"):
        tiers.mask()


@needs_extension
@pytest.mark.parametrize("names", ["none", "int8", "bytes", "all"])
def test_the_int8_tier_serves_products_where_it_is_named(monkeypatch, isa, names):
    """The tier has as many rows and queries as it needs; integers are equal."""
    assert (set(tiers.available(isa)) == {"int8", "bytes"}) == (isa != "baseline")
    generator = torch.Generator().manual_seed(1)
    table, queries = (torch.randn(size, 512, generator=generator) for size in (5_000, 128))
    targets = torch.randint(5_000, (128,), generator=generator)
    arguments = queries, table, targets, *no_known(128), "dot"
    monkeypatch.setenv("KGFAST_TIERS", "none")
    expected = flat.cpu.rank_counts(*arguments)
    monkeypatch.setenv("KGFAST_TIERS", names)
    (swept, *_), found = pairs_of(lambda: flat.cpu.rank_counts(*arguments))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    serves = names in ("int8", "all") and isa not in ("neon", "baseline")  # isa_neon.cpp
    assert (swept > 0) == serves


@needs_extension
def test_info_says_which_serve(monkeypatch):
    have = tiers.available(cpu.isa())
    monkeypatch.setenv("KGFAST_TIERS", "all")
    assert kgfast.info().tiers == have
    assert not kgfast.info().remarks
    monkeypatch.setenv("KGFAST_TIERS", "none")
    assert kgfast.info().tiers == ()
    monkeypatch.setenv("KGFAST_TIERS", ",".join(tiers.TIERS))
    assert kgfast.info().tiers == have
    monkeypatch.setenv("KGFAST_TIERS", "fp17")
    assert "KGFAST_TIERS must be" in kgfast.info().remarks[0]
