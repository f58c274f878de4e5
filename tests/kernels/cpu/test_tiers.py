"""``KGFAST_TIERS``: which tiers before the float32 sweep may serve."""

import pytest

import kgfast
from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers


def test_names_choose_tiers(monkeypatch):
    for value, wanted in (
        ("", tiers.TIERS),
        ("all", tiers.TIERS),
        ("none", ()),
        ("bf16, fp16", ("fp16", "bf16")),
    ):
        monkeypatch.setenv("KGFAST_TIERS", value)
        assert tiers.wanted() == wanted


@pytest.mark.parametrize("value", ["fp8", "fp16;bf16", "none,fp16", ","])
def test_an_unknown_name_is_an_error(monkeypatch, value):
    monkeypatch.setenv("KGFAST_TIERS", value)
    with pytest.raises(ValueError, match="KGFAST_TIERS must be none, all, or some of fp16, bf16"):
        tiers.mask()


def test_info_says_which_serve(monkeypatch):
    if not cpu.is_available():
        pytest.skip("the extension is not built")
    have = tiers.available(cpu.isa())
    monkeypatch.setenv("KGFAST_TIERS", "all")
    assert kgfast.info().tiers == have
    assert not kgfast.info().remarks
    monkeypatch.setenv("KGFAST_TIERS", "none")
    assert kgfast.info().tiers == ()
    monkeypatch.setenv("KGFAST_TIERS", ",".join(tiers.TIERS))
    assert kgfast.info().tiers == have
    lacks = set(tiers.TIERS) - set(have)
    assert any("KGFAST_TIERS names" in line for line in kgfast.info().remarks) == bool(lacks)
    monkeypatch.setenv("KGFAST_TIERS", "fp17")
    assert "KGFAST_TIERS must be" in kgfast.info().remarks[0]
