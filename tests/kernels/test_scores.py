"""Facts of scores: what contradicts raises where it is made, what is missing where it is asked."""

import dataclasses
import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from kgfast.kernels import cpu
from kgfast.kernels.operands import Operands, Prepared
from kgfast.kernels.reference.canonical import canonical_scores, slopes
from kgfast.kernels.scores import SCORES, get_score
from kgfast.ops.dispatch import get_backend

NEW_TERM = SimpleNamespace(number=9, planes=1, root=False)
UNKNOWN = dataclasses.replace(get_score("l1"), name="mine", code=99, term=NEW_TERM)
RAISES = pytest.raises(ValueError, match=r"score: .*'mine'")


def test_only_layouts_share_a_code():
    for one, other in itertools.combinations(SCORES.values(), 2):
        facts = {"name": "", "interleaved": False}
        one_facts, other_facts = (vars(dataclasses.replace(each, **facts)) for each in (one, other))
        assert (one.code == other.code) == (one_facts == other_facts)


def test_a_term_that_the_reference_lacks_raises():
    with RAISES:
        canonical_scores(torch.zeros(1, 2), torch.zeros(3, 2), UNKNOWN)
    with RAISES:
        slopes(0, UNKNOWN, [torch.zeros(1)], [torch.zeros(1)])


@pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")
def test_a_code_that_no_functor_has_raises():
    operands = Operands(torch.zeros(1, 2), Prepared(torch.zeros(3, 2), UNKNOWN))
    with RAISES:
        get_backend("cpu").scores(operands)


def test_a_term_that_no_kernel_of_triton_has_raises():
    pytest.importorskip("triton")
    from kgfast.kernels.triton.host import bounds, views

    operands = Operands(torch.zeros(1, 2), Prepared(torch.zeros(3, 2), UNKNOWN))
    with RAISES:
        views.form_of(operands)
    with RAISES:
        bounds.error_bound(UNKNOWN, 100, rounded_inputs=False)


def test_a_term_without_a_bound_is_decided_by_canonical_scores(monkeypatch):
    pytest.importorskip("triton")
    from kgfast.kernels.triton.device import terms
    from kgfast.kernels.triton.host import bounds

    monkeypatch.setattr(terms, "WRITTEN", (*terms.WRITTEN, NEW_TERM))
    assert bounds.error_bound(UNKNOWN, 100, rounded_inputs=False).margins[0] == math.inf
