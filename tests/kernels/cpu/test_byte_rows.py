"""Rows as bytes, of distances: few queries find the same best candidates, by a bound that holds."""

import math
from dataclasses import replace

import pytest
import torch

from kgfast.kernels import cpu
from kgfast.kernels.checks import Checks
from kgfast.kernels.cpu.panels import PACKING
from kgfast.kernels.cpu.views import Machine, arguments_of
from kgfast.kernels.operands import Known, Operands, Prepared
from kgfast.kernels.reference import canonical as reference
from kgfast.kernels.scores import get_score
from kgfast.ops import run
from support.engines import ISAS
from support.problems import TABLES, cast, table_of
from support.sampled import threads
from support.tiers import BYTES, FORCED, needs_tier, serving

SCORES = ("l1", "l2", "rotate")
KINDS = (*TABLES, "outlier")
# Moduli by weights of the larger and the smaller side (csrc/engine/byte_rows.h), all directions.
ANGLES = torch.linspace(0, math.pi / 4, 1001, dtype=torch.float64)
SIDES = torch.tensor([[85.0, 13.0], [72.0, 47.0]], dtype=torch.float64) / 86
MODULI = (SIDES @ torch.stack([ANGLES.cos(), ANGLES.sin()])).amax(0)
# A distance is as much larger than that by bytes, at most and as a mean.
LEAST, MEAN = {"rotate": 1 / MODULI.min().item()}, {"rotate": 1 / MODULI.mean().item()}
CHECKS = Checks(deferred=False)

pytestmark = needs_tier("bytes")


@pytest.fixture(params=ISAS, autouse=True)
def isa(request, monkeypatch):
    if request.param not in cpu.available_isas():
        pytest.skip(f"this machine or build has no {request.param} kernels")
    monkeypatch.setenv("KGFAST_CPU_ISA", request.param)


def rows_of(kind: str, rows: int, dim: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if kind == "outlier":  # most rows are cut at the largest byte, or vanish
        values = torch.randn(rows, dim, generator=generator)
        return values * 10.0 ** torch.randint(-3, 4, (rows, 1), generator=generator)
    return cast(table_of(kind, rows, dim, generator, torch.float32), torch.float32)


def packed(table: torch.Tensor, score: str, bias: torch.Tensor | None = None) -> Prepared:
    prepared = Prepared(table, get_score(score), bias)
    panels = PACKING.pack(prepared)
    assert "bytes" in panels.tensors, panels
    return replace(prepared, panels=panels)


def best_of(queries, plain, own, k, known=None, checks=CHECKS):
    """Scores and ids without the bytes and with them, forced."""
    with serving(0):
        expected = run.topk(Operands(queries, plain), k, known, checks)
    with serving(BYTES | FORCED):
        return expected, run.topk(Operands(queries, own), k, known, checks)


def assert_same_best(*args):
    assert all(torch.equal(a, b) for a, b in zip(*best_of(*args), strict=True))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_best_are_the_same(kind, score):
    """Ties, duplicates, denormals, known answers, a bias, fewer candidates than are asked for."""
    for dim in (1, 9, 100):
        width = dim * get_score(score).planes
        table = rows_of(kind, 301, width)
        table[7:40] = table[7]
        for count in (1, 3, 4) if score != "l1" else (1, 3, 15):
            bias = torch.linspace(-1, 1, 301) if count == 3 else None
            queries = rows_of(kind, count, width, seed=1)
            queries[0] = table[7]
            known = Known(torch.arange(count + 1) * 3, (torch.arange(3 * count) * 13) % 301)
            own, plain = packed(table, score, bias), Prepared(table, get_score(score), bias)
            for k in (1, 10, 301):
                assert_same_best(queries, plain, own, k, known)


@pytest.mark.parametrize("score", SCORES)
def test_neither_threads_nor_an_order_change_them(score):
    """Rows come nearer and nearer, so each panel is left to float32 for a while."""
    width = 60 * get_score(score).planes
    table = rows_of("normal", 1, width) * torch.linspace(9, 1, 3_000)[:, None]
    table[1_500:] += rows_of("normal", 1_500, width, seed=1)
    queries = torch.cat([table[2_999:], rows_of("normal", 1, width, seed=2)])
    plain, own = Prepared(table, get_score(score)), packed(table, score)
    for count in (1, 2):
        with threads(count):
            assert_same_best(queries, plain, own, 10)


@pytest.mark.parametrize("score", SCORES)
def test_more_candidates_stay_open_than_there_is_room_for(score):
    """Bytes tell none of a thousand rows apart, of which a panel has few."""
    width = 16 * get_score(score).planes
    table = rows_of("normal", 8_000, width)
    queries = rows_of("normal", 2, width, seed=1)
    close = torch.arange(8_000) % 64 < 8
    table[close] = queries[0] + 1e-5 * rows_of("normal", int(close.sum()), width, seed=2)
    own, plain = packed(table, score), Prepared(table, get_score(score))
    for count in (1, 2):
        with threads(count):
            assert_same_best(queries[:1], plain, own, 10)
            assert_same_best(queries, plain, own, 30)


@pytest.mark.parametrize("score", SCORES)
def test_a_bias_may_be_anything(score):
    """A candidate whose bias is a NaN or infinite has its place in the order all the same."""
    width = 16 * get_score(score).planes
    table, bias = rows_of("normal", 4_000, width), torch.linspace(-30, 30, 4_000)
    bias[::7], bias[5], bias[900] = torch.nan, torch.inf, -torch.inf
    own, plain = packed(table, score, bias), Prepared(table, get_score(score), bias)
    allowing = Checks(deferred=False, allows_nan=True)
    for k in (1, 10, 3_900):
        expected, found = best_of(table[:2], plain, own, k, checks=allowing)
        assert torch.equal(found[1], expected[1])
        assert torch.equal(found[0].nan_to_num(7.0), expected[0].nan_to_num(7.0))


@pytest.mark.parametrize("score", SCORES)
def test_numbers_at_the_ends_of_the_range(score):
    width = 8 * get_score(score).planes
    table = rows_of("normal", 200, width)
    for row, size in enumerate((1e38, -1e38, 1e30, 1e-38, 1e-44, 0.0)):
        table[row] = size
    queries = torch.stack([table[0], table[3], table[10] * 1e25, table[11]])
    plain, own = Prepared(table, get_score(score)), packed(table, score)
    for k in (1, 20, 200):
        assert_same_best(queries, plain, own, k)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_queries_that_are_not_finite(score, bad):
    width = 8 * get_score(score).planes
    table, queries = rows_of("normal", 200, width), rows_of("normal", 2, width, seed=1)
    queries[0, 3] = bad
    plain, own = Prepared(table, get_score(score)), packed(table, score)
    allowing = Checks(deferred=False, allows_nan=True)
    expected, found = best_of(queries, plain, own, 5, checks=allowing)
    assert torch.equal(found[1], expected[1])
    assert torch.equal(found[0].nan_to_num(7.0), expected[0].nan_to_num(7.0))


@pytest.mark.parametrize("score", SCORES)
def test_few_queries_read_the_bytes(monkeypatch, score):
    """Wrong bytes would be seen, by few queries that ask for few answers and by no others."""
    width = 16 * get_score(score).planes
    table = rows_of("normal", 4_000, width)
    most = 16 if score == "l1" else 4
    queries, own = table[3_980:3_997], packed(table, score)
    asked = 1, most, most + 1
    expected = [run.topk(Operands(queries[:n], own), 1, None, CHECKS)[1] for n in asked]
    numbers = own.panels.tensors["bytes"].view(-1, 64 * (width + 4))
    numbers[:, : 64 * width] = 0
    found = [run.topk(Operands(queries[:n], own), 1, None, CHECKS)[1] for n in asked]
    assert not torch.equal(found[0], expected[0])
    assert not torch.equal(found[1], expected[1])
    assert torch.equal(found[2], expected[2])
    monkeypatch.setenv("KGFAST_TIERS", "none")
    assert PACKING.reads(own.panels)
    found = run.topk(Operands(queries[:1], own), 1, None, CHECKS)[1]
    assert torch.equal(found, expected[0])


def test_what_has_no_bytes():
    table = rows_of("normal", 70, 64)
    assert "bytes" not in PACKING.pack(Prepared(table, get_score("dot"))).tensors
    assert "bytes" not in PACKING.pack(Prepared(table.double(), get_score("l1"))).tensors
    croppable = PACKING.pack(Prepared(table, get_score("l1")), croppable=True)
    assert "bytes" not in croppable.tensors


def errors_of(table: torch.Tensor, queries: torch.Tensor, score: str):
    """Distances by bytes, canonical ones, and by how much the former may be too large."""
    operands, facts = Operands(queries, packed(table, score)), get_score(score)
    values, bounds = (torch.empty(len(queries), len(table)) for _ in range(2))
    machine = Machine(cpu.isa(), 1, BYTES | FORCED)
    cpu.extension.byte_errors(machine, arguments_of(operands, None)[1], values, bounds)
    dim = facts.num_features(table.shape[1])
    rows = [reference.crop(it, facts, dim) for it in (queries, table)]
    exact = -reference.canonical_scores(rows[0][:, None], rows[1], facts, factor=None)
    return values.double(), exact, bounds.double()


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "huge"])
def test_errors_stay_below_the_bound(kind, score):
    for dim in (1, 8, 70):
        width = dim * get_score(score).planes
        table, queries = rows_of(kind, 70, width), rows_of(kind, 4, width, seed=1)
        queries[::2] = rows_of("normal", 2, width, seed=2)
        for asked in (queries, queries.double() * (1 + 1e-9)):
            values, exact, bounds = errors_of(table, asked, score)
            assert (values - exact <= bounds).all()
            assert (exact - values * LEAST.get(score, 1.0) <= bounds).all()


@pytest.mark.parametrize("score", SCORES)
def test_the_bound_says_something(score):
    """The bound is a part of the distances between random rows."""
    width = 256 * get_score(score).planes
    table, queries = rows_of("normal", 500, width), rows_of("normal", 4, width, seed=1)
    values, exact, bounds = errors_of(table, queries, score)
    assert (bounds < 0.8 * exact.std(1, keepdim=True)).all()
    assert ((values * MEAN.get(score, 1.0) - exact).abs() < 2 * bounds).all()
