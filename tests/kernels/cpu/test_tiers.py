"""``KGFAST_TIERS``: which tiers before the float32 sweep may serve, and what tests say of them."""

import os
import re
import subprocess
import sys

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
    generator = torch.Generator().manual_seed(1)
    table, queries = (torch.randn(size, 512, generator=generator) for size in (5_000, 128))
    targets = torch.randint(5_000, (128,), generator=generator)
    arguments = queries, table, targets, *no_known(128), "dot"
    monkeypatch.setenv("KGFAST_TIERS", "none")
    expected = flat.cpu.rank_counts(*arguments)
    monkeypatch.setenv("KGFAST_TIERS", names)
    (swept, *_), found = pairs_of(lambda: flat.cpu.rank_counts(*arguments))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    serves = names in ("int8", "all") and isa not in ("neon", "baseline")  # isa_neon_int8.cpp
    assert (swept > 0) == serves


@needs_extension
def test_every_instruction_set_has_tiers_of_bytes(isa):
    assert (set(tiers.available(isa)) == {"int8", "bytes"}) == (isa != "baseline")


def machine_with(monkeypatch, has, is_built=True):
    """Let this machine have the instructions of some tiers."""
    engines = [
        engine._replace(has=engine.tier in has, is_built=is_built) for engine in tiers.engines()
    ]
    monkeypatch.setattr(tiers, "engines", lambda: engines)
    monkeypatch.delenv("KGFAST_CPU_ISA", raising=False)


@needs_extension
def test_a_reason_to_skip_names_the_instructions(monkeypatch):
    """A reason names the instructions of docs/explanation/tiers.md."""
    machine_with(monkeypatch, has=())
    page = (ROOT / "docs/explanation/tiers.md").read_text()
    assert set(support.needs()) == set(tiers.TIERS)
    for name, needed in support.needs().items():
        assert lacks(name) == f"this machine or build has no {name} ({needed})"
        mark = support.needs_tier(name).mark
        assert mark.args == (True,)
        assert mark.kwargs["reason"] == lacks(name)
        assert f"| `{name}` | {needed} (" in page
    assert lacks("bytes", "int8").endswith(
        "no bytes (AVX-512 or AVX2 or NEON) or int8 (AVX512-VNNI or AVX2 or NEON)"
    )


@needs_extension
@pytest.mark.parametrize(
    ("has", "line"),
    [
        ((), "none; not run here: int8 (AVX512-VNNI), int8 (AVX2), int8 (NEON), bytes (AVX-512), "),
        (("bytes",), "bytes (AVX-512), bytes (AVX2), bytes (NEON); not run here: int8 (AVX512-"),
        (
            tiers.TIERS,
            "int8 (AVX512-VNNI), int8 (AVX2), int8 (NEON), bytes (AVX-512), bytes (AVX2)",
        ),
    ],
)
def test_the_line_says_what_ran_and_what_did_not(monkeypatch, has, line):
    machine_with(monkeypatch, has)
    assert support.in_a_line().startswith(f"kgfast: tiers here: {line}")
    assert ("not run here" in support.in_a_line()) == (has != tiers.TIERS)
    monkeypatch.setenv("KGFAST_CPU_ISA", cpu.available_isas()[-1])  # tiers of others cannot run
    absent = support.in_a_line().partition("not run here: ")[2]
    for engine in tiers.engines():
        if engine.tier in has:
            text = f"{engine.tier} ({engine.needs})"
            assert (text in absent) == (engine.isa != cpu.isa())
    machine_with(monkeypatch, has, is_built=False)
    assert "tiers here: bytes" not in support.in_a_line()
    monkeypatch.setattr(cpu, "is_available", lambda: False)
    assert support.in_a_line() == "kgfast: tiers here: none: the extension is not built"


@pytest.mark.parametrize(
    "workers",
    [[], pytest.param(["-n", "1"], marks=pytest.mark.slow)],
    ids=["one process", "xdist"],
)
def test_the_line_stands_before_the_last_one(workers):
    """The last line stays pytest's own, with workers too, and on a machine without tiers."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *workers]
    narrow = {"KGFAST_CPU_ISA": cpu.available_isas()[-1]} if cpu.is_available() else {}
    done = subprocess.run(
        [*words, f"{__file__}::test_names_choose_tiers"],
        cwd=ROOT,
        env={**os.environ, **narrow},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *_, line, last = done.stdout.strip().splitlines()
    assert line.startswith("kgfast: tiers here: ")
    assert re.fullmatch(r"1 passed.* in [\d.]+s.*", last)


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
