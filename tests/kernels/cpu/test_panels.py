"""Panels that were packed before: every sweep of them is that of the table."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from kgfast.kernels import cpu
from kgfast.kernels.checks import Checks
from kgfast.kernels.cpu.backend import BACKEND
from kgfast.kernels.cpu.panels import PACKING
from kgfast.kernels.cpu.views import panel_shape
from kgfast.kernels.operands import Known, Operands, Prepared
from kgfast.kernels.panels import Panels
from kgfast.kernels.scores import get_score
from kgfast.ops import run
from support.flat import operands_of, reference
from support.problems import no_known, problems

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
CHECKS = Checks(deferred=False)


def packed(table: torch.Tensor, score: str, bias: torch.Tensor | None = None) -> Prepared:
    panels = PACKING.pack(Prepared(table, get_score(score)))
    assert isinstance(panels, Panels), panels
    return Prepared(table, get_score(score), bias, panels=panels)


def counts_of(operands: Operands, targets: torch.Tensor, known: Known) -> torch.Tensor:
    return torch.stack(run.rank_counts(operands, targets, known, CHECKS))


@given(problem=problems())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_counts_equal_the_reference(isa, problem):
    queries, table, targets, indptr, indices, score = problem.args
    options = dict(problem.kwargs)
    checks = Checks(deferred=False, allows_nan=options.pop("nan_worst", False))
    operands = operands_of(queries, table, score, **options)
    panels = PACKING.pack(Prepared(table, get_score(score)))
    if isinstance(panels, str):
        assert "panels would be larger" in panels
        return
    own = replace(operands, candidates=replace(operands.candidates, panels=panels))
    found = BACKEND.rank_counts(own, targets, Known(indptr, indices), checks)
    expected = reference.rank_counts(*problem.args, **problem.kwargs)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


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


def test_features_that_come_in_several_blocks(isa):
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(70, 18_000, generator=generator)
    queries = torch.randn(3, 18_000, generator=generator)
    targets, known = torch.tensor([1, 2, 69]), Known(*no_known(3))
    for dims in (None, (4500, 9000)):
        plain = Operands(queries, Prepared(table, get_score("rotate")), dims)
        own = Operands(queries, packed(table, "rotate"), dims)
        assert torch.equal(counts_of(own, targets, known), counts_of(plain, targets, known))


def test_panels_are_read_in_place_of_the_table(isa):
    """A wrong number in a panel would be seen: the sweep does read them."""
    own = packed(torch.arange(100.0)[:, None], "l1")
    own.panels.tensors["panels"].neg_().add_(99)
    best = run.topk(Operands(torch.zeros(1, 1), own), 3, None, CHECKS)[1]
    assert best.tolist() == [[97, 98, 99]]


def test_what_is_not_packed_says_why(isa):
    table = torch.randn(5, 4)
    table[3, 1] = torch.nan
    assert PACKING.pack(Prepared(table, get_score("l1"))) == (
        "row 3 of the table holds a NaN or an infinity"
    )
    assert "torch.float16" in PACKING.pack(Prepared(table.half(), get_score("l1")))
    assert "empty" in PACKING.pack(Prepared(table[:0], get_score("l1")))
    moved = Prepared(table, get_score("rscf_rotate"), factor=torch.ones(5, 2))
    assert "factor" in PACKING.pack(moved)


def test_panels_of_another_shape_are_not_read(isa):
    table = torch.randn(100, 4)
    panels = packed(table, "l1").panels
    assert PACKING.reads(panels)
    lanes, _ = panel_shape(get_score("l1"))
    held = dict(panels.tensors)
    others = (
        Panels("float32", "l1", lanes * 2, 100, 4, held),
        Panels("float16", "l1", lanes, 100, 4, held),
        Panels("float32", "l1", lanes, 100, 5, held),
        Panels("float32", "l1", lanes, 1000, 4, held),
        Panels("float32", "rotate", lanes, 100, 4, held),
    )
    for other in others:
        assert not PACKING.reads(other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_packing_is_that_of_any_strides(isa, dtype):
    table = torch.randn(12, 90, dtype=dtype)
    own = packed(table.T[:, 2:8], "rotate").panels
    same = packed(table.T[:, 2:8].contiguous(), "rotate").panels
    for name, tensor in own.tensors.items():
        assert torch.equal(tensor, same.tensors[name])
