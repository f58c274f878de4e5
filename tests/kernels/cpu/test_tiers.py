"""``KGFAST_TIERS``: which tiers before the float32 sweep may serve, and what tests say of them."""

import pytest
import torch

import kgfast
from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers
from support import flat
from support import tiers as support
from support.paths import ROOT
from support.problems import no_known
from support.tiers import lacks, pairs_of

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
    assert (swept > 0) == (names in ("int8", "all") and isa != "baseline")


def machine_with(monkeypatch, has, is_built=True):
    """Let this machine have the instructions of some tiers."""
    engines = [
        engine._replace(has=engine.tier in has, is_built=is_built) for engine in tiers.engines()
    ]
    monkeypatch.setattr(tiers, "engines", lambda: engines)
    monkeypatch.delenv("KGFAST_CPU_ISA", raising=False)


@needs_extension
def test_the_line_of_the_tests_names_the_instructions(monkeypatch):
    """The line names the instructions of docs/explanation/tiers.md."""
    every = "int8 (AVX512-VNNI), int8 (AVX2), bytes (AVX-512), bytes (AVX2)"
    machine_with(monkeypatch, has=())
    assert support.in_a_line() == f"kgfast: tiers here: none; not run here: {every}"
    page = (ROOT / "docs/explanation/tiers.md").read_text()
    for name, needed in support.needs().items():
        assert lacks(name) == f"this machine or build has no {name} ({needed})"
        assert f"| `{name}` | {needed} (" in page
    machine_with(monkeypatch, has=tiers.TIERS)
    assert support.in_a_line() == f"kgfast: tiers here: {every}"
    monkeypatch.setenv("KGFAST_CPU_ISA", "baseline")  # tiers of others cannot run
    assert support.in_a_line().endswith(f"none; not run here: {every}")


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
    assert kgfast.info().other_tiers == {}


@needs_extension
def test_info_says_why_the_others_do_not_serve(monkeypatch):
    """One reason for each tier that does not serve: the machine, the build, or a variable."""
    monkeypatch.delenv("KGFAST_CPU_ISA", raising=False)
    monkeypatch.delenv("KGFAST_TIERS", raising=False)
    info = kgfast.info()
    assert set(info.tiers) | set(info.other_tiers) == set(tiers.TIERS)
    assert not set(info.tiers) & set(info.other_tiers)
    for name, why in info.other_tiers.items():
        assert f"(not {name}: {why})" in repr(info)
    assert info.as_dict()["other_tiers"] == info.other_tiers
    lacked = support.needs()
    machine_with(monkeypatch, has=())
    assert kgfast.info().other_tiers == {
        name: f"this machine lacks {lacked[name]}" for name in tiers.TIERS
    }
    machine_with(monkeypatch, has=("bytes",), is_built=False)
    why = kgfast.info().other_tiers["bytes"]
    assert why == f"this build lacks it: it has no kernels for {lacked['bytes']}"
    narrow = cpu.available_isas()[-1]
    beside = [engine.isa for engine in tiers.engines() if engine.tier == "bytes"]
    machine_with(monkeypatch, has=("bytes",))
    monkeypatch.setenv("KGFAST_CPU_ISA", narrow)
    if narrow not in beside:
        why = f"KGFAST_CPU_ISA={narrow}: it serves with {' or '.join(beside)}"
        assert kgfast.info().other_tiers["bytes"] == why
    monkeypatch.setenv("KGFAST_CPU_ISA", beside[0] if beside[0] in cpu.available_isas() else narrow)
    monkeypatch.setenv("KGFAST_TIERS", "none")
    if cpu.isa() in beside:
        assert kgfast.info().other_tiers["bytes"] == "KGFAST_TIERS leaves it out"
