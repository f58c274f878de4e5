"""Few queries with an index: the answers and errors of the longer way, in fewer steps."""

import sys
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import kgfast
from kgfast import Index, topk
from kgfast.eval import prediction
from kgfast.eval.few_queries import few_answers
from kgfast.kernels import cpu

pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")

MODELS = {
    "rotate": lambda: kgfast.RotatE.init(300, 11, 12, seed=0),
    "rotate, interleaved": lambda: kgfast.RotatE.init(300, 11, 12, seed=0, layout="interleaved"),
    "rotate, phases": lambda: _turning("phase", 12),
    "rotate, complex": lambda: _turning("complex", 24),
    "rotate, l2": lambda: kgfast.RotatE.init(300, 11, 12, seed=0, norm="l2"),
    "l1": lambda: kgfast.TransE.init(300, 11, 12, seed=0),
    "l2": lambda: kgfast.TransE.init(300, 11, 12, seed=0, norm="l2"),
    "dot": lambda: kgfast.DistMult.init(300, 11, 12, seed=0),
    "complex": lambda: kgfast.ComplEx.init(300, 11, 12, seed=0),
    "complex, interleaved": lambda: kgfast.ComplEx.init(300, 11, 12, seed=0, layout="interleaved"),
    "of a matrix": lambda: kgfast.RESCAL.init(300, 11, 12, seed=0),
    "inverses between": lambda: kgfast.Reciprocal(kgfast.ComplEx.init(300, 22, 12, seed=0)),
    "inverses behind": lambda: kgfast.Reciprocal(
        kgfast.RotatE.init(300, 22, 12, seed=0), order="appended"
    ),
    "inverses of matrices": lambda: kgfast.Reciprocal(kgfast.RESCAL.init(300, 22, 12, seed=0)),
    "strided": lambda: kgfast.TransE(_rows(12, 300).T, _rows(24, 11).T[:, ::2]),
}


def _rows(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _turning(relation_format, width):
    return kgfast.RotatE(_rows(300, 24), 9 * _rows(11, width), relation_format=relation_format)


ASKED = (
    {"heads": 5, "relations": 3},
    {"tails": [5, 299, 5], "relations": [0, 10, 3]},
    {"heads": torch.arange(16), "relations": 7},
    {"tails": torch.tensor(4), "relations": torch.arange(11)},
)


def is_served(index, model, k=10, **asked):
    given = (asked.get(name) for name in ("heads", "tails", "relations"))
    return few_answers(index, model, *given, k) is not None


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_without_an_index(name):
    model = MODELS[name]()
    index = Index(model)
    for asked, k in zip(ASKED, (10, 300, 10, 300), strict=True):
        assert is_served(index, model, **asked)
        found, expected = topk(model, **asked, k=k, index=index), topk(model, **asked, k=k)
        for part in ("ids", "scores", "heads", "relations", "tails"):
            a, b = getattr(found, part), getattr(expected, part)
            assert (a is None and b is None) or torch.equal(a, b)
        assert found.side == expected.side


def test_the_longer_way_takes_what_is_not_plain():
    """Errors of the longer way name what is wrong."""
    model = MODELS["l1"]()
    index = Index(model)
    for asked in (
        {"heads": 300, "relations": 0},
        {"heads": -1, "relations": 0},
        {"heads": True, "relations": 0},
        {"heads": [0, 1], "relations": [0, 1, 2]},
        {"heads": torch.arange(17), "relations": 0},
        {"heads": torch.arange(2, dtype=torch.int32), "relations": 0},
        {"heads": [], "relations": 0},
        {"heads": 0, "tails": 0, "relations": 0},
        {"relations": 0},
        {"heads": 0, "relations": 11},
    ):
        assert not is_served(index, model, **asked)
    assert not is_served(index, model, k=301, heads=0, relations=0)
    assert not is_served(Index(MODELS["l1"]()), model, heads=0, relations=0)
    with pytest.raises(ValueError, match=r"heads must be in 0 \.\. 299; got 300"):
        topk(model, heads=300, relations=0, k=1, index=index)
    with pytest.raises(ValueError, match="k must be at most"):
        topk(model, heads=0, relations=0, k=301, index=index)
    with pytest.raises(ValueError, match="index: it is of other tables"):
        topk(model, heads=0, relations=0, k=1, index=Index(kgfast.TransE.init(5, 11, 12)))
    with torch.no_grad():
        model.relation[4, 0] = torch.nan
    with pytest.raises(ValueError, match=r"heads\[0\].* NaN"):
        topk(model, heads=0, relations=4, k=1, index=index)


def _write(model):
    with torch.no_grad():
        model.entity[7] += 1


def _write_elsewhere(model):
    model.entity.data = model.entity.detach() + 1


def _replace(model):
    model.entity = torch.nn.Parameter(model.entity.detach() + 1)


def _step(model):
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    model.entity.grad = torch.ones_like(model.entity)
    optimizer.step()


@pytest.mark.parametrize("change", [_write, _write_elsewhere, _replace, _step])
def test_a_changed_table_is_an_error_until_it_is_packed_again(change):
    model = MODELS["rotate"]()
    index = Index(model)
    topk(model, heads=1, relations=2, k=3, index=index)
    change(model)
    with pytest.raises(ValueError, match=r"index\.refresh\(\)"):
        topk(model, heads=1, relations=2, k=3, index=index)
    index.refresh()
    found, expected = (topk(model, heads=1, relations=2, k=3, index=it) for it in (index, None))
    assert torch.equal(found.ids, expected.ids)
    assert is_served(index, model, heads=1, relations=2)


def test_relations_are_read_at_every_call():
    """Writes that raise no counter, too."""
    model = MODELS["rotate"]()
    index = Index(model)
    before = topk(model, heads=1, relations=2, k=3, index=index)
    model.relation.data[2] = model.relation.data[3]
    found, expected = (topk(model, heads=1, relations=2, k=3, index=it) for it in (index, None))
    assert torch.equal(found.scores, expected.scores)
    assert not torch.equal(found.scores, before.scores)


def _same_best(model, index, **asked):
    found, expected = (topk(model, **asked, k=9, index=it) for it in (index, None))
    assert torch.equal(found.ids, expected.ids)
    assert torch.equal(found.scores, expected.scores)
    return found


@pytest.mark.parametrize("name", ["rotate", "l1", "complex"])
def test_relations_of_another_kind_take_the_place_of_earlier_ones(name):
    """A call believes neither the place nor the strides nor the width of earlier ones."""
    model = MODELS[name]()
    index = Index(model)
    asked = {"heads": [5, 6], "relations": [3, 2]}
    before, width = _same_best(model, index, **asked), model.relation.shape[1]
    given = _rows(width, 11).T, torch._neg_view(_rows(11, width)), _rows(11, width).double()
    for relation in given:
        model.relation = torch.nn.Parameter(relation)
        assert not torch.equal(_same_best(model, index, **asked).scores, before.scores)
    model.relation = torch.nn.Parameter(_rows(11, width + 1))
    with pytest.raises(RuntimeError, match="size"):
        topk(model, **asked, k=9, index=index)
    model.relation = torch.nn.Parameter(_rows(3, width))
    with pytest.raises(ValueError, match=r"relations\[0\] must be in 0 \.\. 2; got 3"):
        topk(model, **asked, k=9, index=index)


def test_facts_of_a_model_are_read_at_every_call():
    model = MODELS["rotate"]()
    index = Index(model)
    before = _same_best(model, index, heads=5, relations=3)
    model.gamma = 3.0  # phases are in units of it
    after = _same_best(model, index, heads=5, relations=3)
    assert not torch.equal(before.scores, after.scores)


def test_backends_and_instruction_sets_may_change_between_calls(monkeypatch):
    model = MODELS["rotate"]()
    index = Index(model)
    expected = _same_best(model, index, heads=5, relations=3)
    for isa in cpu.available_isas():
        monkeypatch.setenv("KGFAST_CPU_ISA", isa)
        assert torch.equal(_same_best(model, index, heads=5, relations=3).scores, expected.scores)
    for tiers in ("none", "all"):
        monkeypatch.setenv("KGFAST_TIERS", tiers)
        assert torch.equal(_same_best(model, index, heads=5, relations=3).scores, expected.scores)
    with kgfast.use_backend("reference"):
        assert torch.equal(_same_best(model, index, heads=5, relations=3).scores, expected.scores)


def test_the_mode_of_the_caller_changes_nothing():
    """Denormals are kept, and results are float32 on the CPU, whatever torch's defaults are."""
    model = kgfast.DistMult(_rows(300, 12), _rows(11, 12) * 1e-41)
    index = Index(model)
    expected = topk(model, heads=5, relations=3, k=9)
    torch.set_flush_denormal(True)
    torch.set_default_dtype(torch.float64)
    try:
        found = topk(model, heads=5, relations=3, k=9, index=index)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_flush_denormal(False)
    assert found.scores.dtype == torch.float32
    assert torch.equal(found.scores, expected.scores)
    assert torch.equal(found.ids, expected.ids)
    assert (found.scores != 0).all()


def test_an_own_model_is_asked_as_ever():
    class Own(kgfast.TransE):
        def _queries(self, anchors, relations, side, dims):
            return super()._queries(anchors, relations, side, dims) + 1

    model = Own.init(300, 11, 12, seed=0)
    plain = MODELS["l1"]()
    plain._queries = lambda *args: kgfast.TransE._queries(plain, *args) + 1
    turned = MODELS["l1"]()
    turned._composition = lambda side: None
    for it in (model, plain, turned):
        index = Index(it)
        assert not is_served(index, it, heads=0, relations=0)
        found, expected = (topk(it, heads=0, relations=0, k=3, index=own) for own in (index, None))
        assert torch.equal(found.ids, expected.ids)


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def work_of(call):
    """Count the operators of torch and the calls of functions that a call takes, once warm."""
    call()
    with Operators() as operators:
        call()
    events: Counter[str] = Counter()
    sys.setprofile(lambda frame, event, argument: events.update([event]))
    try:
        call()
    finally:
        sys.setprofile(None)
    return operators.count, events["call"] + events["c_call"]


@pytest.mark.parametrize(("name", "operators", "calls"), [("l1", 5, 120), ("rotate", 5, 120)])
def test_a_call_takes_few_steps(monkeypatch, name, operators, calls):
    """Counted, not timed: a fifth of the longer way, or less."""
    model = MODELS[name]()
    index = Index(model)

    def call():
        return topk(model, heads=[5], relations=[3], k=10, index=index)

    found = work_of(call)
    assert found[0] <= operators
    assert found[1] <= calls
    monkeypatch.setattr(prediction, "few_answers", lambda *given: None)
    longer = work_of(call)
    assert 5 * found[1] < longer[1]
