"""Panels that were packed before: every sweep of them is that of the table."""

from dataclasses import replace

import pytest
import torch

from kgfast.kernels import cpu
from kgfast.kernels.checks import Checks
from kgfast.kernels.cpu import tiers
from kgfast.kernels.cpu.panels import pack
from kgfast.kernels.operands import Known, Operands, Prepared
from kgfast.kernels.scores import get_score
from kgfast.ops import run
from support.problems import no_known
from support.tiers import FORCED, INT8, lacks, packed, serving

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
CHECKS = Checks(deferred=False)


def counts_of(operands: Operands, targets: torch.Tensor, known: Known) -> torch.Tensor:
    return torch.stack(run.rank_counts(operands, targets, known, CHECKS))


@pytest.mark.parametrize("score", ["rotate", "l1", "l2", "dot"])
@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_a_sweep_of_panels_is_that_of_the_table(isa, score, count):
    width = 300
    generator = torch.Generator().manual_seed(count)
    table = torch.randn(333, width, generator=generator)
    queries = torch.randn(count, width, generator=generator)
    bias = torch.randn(333, generator=generator)
    targets = torch.randint(333, (count,), generator=generator)
    known = Known(*no_known(count))
    for dims in (None, (7, 100, 150)):
        plain = Operands(queries, Prepared(table, get_score(score), bias), dims)
        own = Operands(queries, packed(table, score, bias), dims)
        assert torch.equal(counts_of(own, targets, known), counts_of(plain, targets, known))
        both = [run.topk(it, 5, None, CHECKS) for it in (own, plain)]
        assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))


@pytest.mark.parametrize("score", ["rotate", "l1", "l2", "dot"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
def test_rows_that_one_query_reads_in_place_count_like_packed_rows(isa, score, dtype):
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(777, 300, generator=generator).to(dtype)
    table[500:600] = table[:100]  # ties
    queries = torch.randn(6, 300, generator=generator)
    bias = torch.randn(777, generator=generator)
    targets = torch.randint(777, (6,), generator=generator)
    some = torch.randperm(777, generator=generator)[:600]
    for ids in (None, some):
        rows = Prepared(table, get_score(score), bias, ids=ids)
        both = []
        for step in (6, 1):
            parts = []
            for i in range(0, 6, step):
                few, chosen = Operands(queries[i : i + step], rows), targets[i : i + step]
                counts = counts_of(few, chosen, Known(*no_known(step)))
                parts.append((counts.T, *run.topk(few, 9, None, CHECKS)))
            both.append([torch.cat(each) for each in zip(*parts, strict=True)])
        assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))


def test_one_query_packs_no_rows(isa):
    """The longest row of a panel bounds its errors; rows in place have their own."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(2000, 64, generator=generator)
    table[0] *= 1e9
    queries, targets = torch.randn(5, 64, generator=generator), torch.arange(5) * 7 + 1
    canonical = []
    for score, count in (("dot", 1), ("dot", 5), ("rotate", 1)):
        few = Operands(queries[:count], Prepared(table, get_score(score)))
        with serving(0), tiers.counted_pairs() as pairs:
            counts_of(few, targets[:count], Known(*no_known(count)))
        canonical.append(int(pairs[tiers.PAIRS.index("canonical")]) / count)
    assert 4 * canonical[0] < canonical[1]
    assert canonical[2] < 1


def test_panels_are_read_in_place_of_the_table(isa):
    """A wrong number in a panel would be seen: the sweep does read them."""
    own = packed(torch.arange(100.0)[:, None], "l1")
    own.panels.tensors["panels"].neg_().add_(99)
    best = run.topk(Operands(torch.zeros(1, 1), own), 3, None, CHECKS)[1]
    assert best.tolist() == [[97, 98, 99]]


def test_what_is_not_packed_says_why(isa):
    table = torch.randn(5, 4)
    table[3, 1] = torch.nan
    assert pack(Prepared(table, get_score("l1"))) == (
        "row 3 of the table holds a NaN or an infinity"
    )
    assert "torch.float16" in pack(Prepared(table.half(), get_score("l1")))
    assert "empty" in pack(Prepared(table[:0], get_score("l1")))
    moved = Prepared(table, get_score("rscf_rotate"), factor=torch.ones(5, 2))
    assert "factor" in pack(moved)


@pytest.mark.parametrize("score", ["rotate", "l1", "l2", "dot"])
@pytest.mark.parametrize("forced", [0, FORCED])
def test_tiers_go_beside_panels(isa, score, forced):
    """Tiers that pack panels of their own leave some queries, or pairs, to the float32 sweep."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(4200, 140, generator=generator)
    table[:2000] *= 1e-3
    queries = table[::105] * torch.tensor([1.0, 30.0]).repeat(20)[:, None]
    targets = torch.randint(4200, (40,), generator=generator)
    targets[20:] = torch.arange(20, 40) * 105  # near their queries
    queries[20:] = table[targets[20:]] * 1.01
    known = Known(*no_known(40))
    own = Prepared(table, get_score(score))
    own = replace(own, panels=pack(own, croppable=True))
    with serving(0):
        expected = counts_of(Operands(queries, Prepared(table, get_score(score))), targets, known)
    with serving(INT8 | forced):
        assert torch.equal(counts_of(Operands(queries, own), targets, known), expected)


@pytest.fixture
def has_int8(isa):
    if "int8" not in tiers.available(isa):
        pytest.skip(lacks("int8") or f"int8 does not go beside {isa}")


def test_dots_of_many_features_take_half_the_bytes(has_int8):
    table = torch.randn(20_000, 70)
    own = packed(table, "dot")
    assert own.panels.number_format == "int16"
    assert packed(table[:, :8], "dot").panels.number_format == "float32"
    croppable = pack(Prepared(table, get_score("dot")), croppable=True)
    assert croppable.number_format == "float32"
    halves = packed(torch.randn(200, 64).bfloat16(), "dot").panels
    assert halves.nbytes <= 1.5 * 200 * 64 * 2
    asked = Operands(torch.ones(1, 70), own), 3, None, CHECKS
    expected = run.topk(*asked)
    own.panels.tensors["panels"].zero_()
    assert not torch.equal(run.topk(*asked)[0], expected[0])
    with serving(0):
        assert torch.equal(run.topk(*asked)[0], expected[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_packing_is_that_of_any_strides(isa, dtype):
    table = torch.randn(12, 90, dtype=dtype)
    own = packed(table.T[:, 2:8], "rotate").panels
    same = packed(table.T[:, 2:8].contiguous(), "rotate").panels
    for name, tensor in own.tensors.items():
        assert torch.equal(tensor, same.tensors[name])
