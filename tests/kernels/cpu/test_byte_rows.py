"""Rows as bytes, of distances: few queries find the same best candidates, also among near ties."""

import pytest
import torch

from kgfast import ops
from kgfast.kernels import cpu
from kgfast.kernels.checks import Checks
from kgfast.kernels.operands import Known, Operands, Prepared
from kgfast.kernels.scores import get_score
from kgfast.ops import run
from support.engines import ISAS
from support.problems import TABLES, cast, table_of
from support.sampled import threads
from support.tiers import BYTES, FORCED, lacks, packed, serving

SCORES = ("l1", "l2", "rotate")
KINDS = (*TABLES, "outlier")
CHECKS = Checks(deferred=False)

pytestmark = pytest.mark.skipif(bool(lacks("bytes")), reason=lacks("bytes") or "it is here")


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
def test_near_ties_at_every_distance(score):
    """A bound that is too small loses candidates that are nearly as close as the k-th best."""
    for dim in (3, 64, 130):
        width = dim * get_score(score).planes
        query, steps = rows_of("normal", 1, width), rows_of("normal", 300, width, seed=1).double()
        sizes = torch.logspace(-9, 0, 150, dtype=torch.float64)
        lengths = -ops.pairwise_scores(torch.zeros(1, width), steps.float(), score).double()[0]
        steps *= ((1 + torch.cat([sizes, -sizes / 2])) / lengths)[:, None]
        table = (query + steps).float()
        own, plain = packed(table, score), Prepared(table, get_score(score))
        for k in (1, 100, 150, 200):
            assert_same_best(query, plain, own, k)


@pytest.mark.parametrize("score", SCORES)
def test_numbers_at_the_ends_of_the_range(score):
    width = 8 * get_score(score).planes
    table = rows_of("normal", 200, width)
    for row, size in enumerate((1e38, -1e38, 1e30, 1e-38, 1e-44, 0.0)):
        table[row] = size
    queries = torch.stack([table[0], table[3], table[10] * 1e25, table[11]])
    plain, own = Prepared(table, get_score(score)), packed(table, score)
    allowing = Checks(deferred=False, allows_nan=True)
    for k in (1, 20, 200):
        assert_same_best(queries, plain, own, k)
    queries[0, 3], queries[1, 2] = torch.nan, torch.inf
    expected, found = best_of(queries, plain, own, 5, checks=allowing)
    assert torch.equal(found[1], expected[1])
    assert torch.equal(found[0].nan_to_num(7.0), expected[0].nan_to_num(7.0))


@pytest.mark.parametrize("score", SCORES)
def test_few_queries_read_the_bytes(score):
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
    with serving(0):
        found = run.topk(Operands(queries[:1], own), 1, None, CHECKS)[1]
    assert torch.equal(found, expected[0])
