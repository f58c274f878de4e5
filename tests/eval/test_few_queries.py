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
    "l1": lambda: kgfast.TransE.init(300, 11, 12, seed=0),
    "l2": lambda: kgfast.TransE.init(300, 11, 12, seed=0, norm="l2"),
    "dot": lambda: kgfast.DistMult.init(300, 11, 12, seed=0),
    "complex": lambda: kgfast.ComplEx.init(300, 11, 12, seed=0),
}
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
    for asked in ASKED:
        assert is_served(index, model, **asked)
        found, expected = topk(model, **asked, k=10, index=index), topk(model, **asked, k=10)
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


def test_an_own_model_is_asked_as_ever():
    class Own(kgfast.TransE):
        def _queries(self, anchors, relations, side, dims):
            return super()._queries(anchors, relations, side, dims) + 1

    model = Own.init(300, 11, 12, seed=0)
    plain = MODELS["l1"]()
    plain._queries = lambda *args: kgfast.TransE._queries(plain, *args) + 1
    for it in (model, plain):
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


@pytest.mark.parametrize(("name", "operators", "calls"), [("l1", 14, 300), ("rotate", 26, 380)])
def test_a_call_takes_few_steps(monkeypatch, name, operators, calls):
    """Counted, not timed: a third of the longer way, or less."""
    model = MODELS[name]()
    index = Index(model)

    def call():
        return topk(model, heads=[5], relations=[3], k=10, index=index)

    found = work_of(call)
    assert found[0] <= operators
    assert found[1] <= calls
    monkeypatch.setattr(prediction, "few_answers", lambda *given: None)
    longer = work_of(call)
    assert 2 * found[1] < longer[1]
