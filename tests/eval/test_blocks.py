"""BlockScorer: ranks and predictions of any function, as those of the model it stands for."""

import pytest
import torch

import kgfast
from kgfast import BlockScorer, KnownTriples, above, rank, topk
from support.ranked_models import MODELS, random_triples
from support.scorers import Recorded, as_blocks
from support.streamed import same

N, R = 23, 3


def test_ties_nan_and_infinities_are_numbers_as_everywhere():
    inf, nan = float("inf"), float("nan")
    rows = torch.tensor([[1.0, 1.0, nan, inf, -inf, 0.0]]).repeat(6, 1)
    scorer = BlockScorer(Recorded(rows), 6, 1, block=2)
    triples = [(0, 0, tail) for tail in range(6)]
    tails = rank(scorer, triples, sides=("tail",), nan="worst")
    assert tails.greater.flatten().tolist() == [1, 1, 5, 0, 4, 3]
    assert tails.equal.flatten().tolist() == [1, 1, 0, 0, 0, 0]
    top = topk(scorer, heads=0, relations=0, k=5, candidate_ids=[0, 1, 3, 4, 5])
    assert top.ids.tolist() == [[3, 0, 1, 5, 4]]
    assert top.scores[0].tolist() == [inf, 1.0, 1.0, 0.0, -inf]


def test_scores_are_compared_as_float64():
    """Scores differ that float32 cannot tell apart, and that float16 cannot."""
    close = 1 + torch.tensor([0.0, 2.0**-40, 2.0**-12], dtype=torch.float64)
    for dtype, greater in ((torch.float64, 2), (torch.float32, 1), (torch.float16, 0)):
        scorer = BlockScorer(Recorded(close.to(dtype).repeat(3, 1)), 3, 1, block=1)
        ranks = rank(scorer, [(0, 0, 0)], sides=("tail",))
        assert (ranks.greater.item(), ranks.equal.item()) == (greater, 2 - greater)


def test_the_borders_of_blocks_depend_on_the_candidates_alone():
    function = Recorded(torch.randn(N, N, generator=torch.Generator().manual_seed(0)))
    triples = random_triples(9, N, 1)
    borders = set()
    for batch_size in (None, 1, 4):
        scorer = BlockScorer(function, N, 1, block=10)
        rank(scorer, triples, batch_size=batch_size)
        topk(scorer, heads=[0, 1], relations=0, k=2, batch_size=batch_size)
        borders |= {tuple(ids) for _, _, ids in function.calls}
    assert borders == {tuple(range(0, 10)), tuple(range(10, 20)), tuple(range(20, 23))}
    function.calls.clear()
    rank(scorer, [(0, 0, 22)], sides=("tail",), candidate_ids=[9, 2, 5])
    listed = {tuple(ids) for _, _, ids in function.calls}
    assert listed == {(2, 5, 9), (20, 21, 22)}  # the target is scored where it stands among all


def test_the_target_has_the_score_of_its_block():
    """A function whose scores depend on the block: each is compared as it was returned."""

    def by_block(anchors, relations, side, candidate_ids):
        return -candidate_ids.float().expand(len(anchors), -1) + 100 * (len(candidate_ids) == 2)

    scorer = BlockScorer(by_block, 5, 1, block=3)  # 0 -1 -2 | 97 96
    ranks = rank(scorer, [(0, 0, 3), (0, 0, 0)], sides=("tail",))
    assert ranks.optimistic.flatten().tolist() == [1, 3]


def test_batches_are_those_that_are_asked_for():
    function = Recorded(torch.zeros(N, N))
    triples = torch.tensor([[h, 0, 0] for h in range(10)])
    scorer = BlockScorer(function, N, 1, batch_size=4)
    for asked, sizes in ((None, {4, 2}), (3, {3, 1}), (100, {4, 2})):
        function.calls.clear()
        rank(scorer, triples, sides=("tail",), batch_size=asked)
        assert {len(anchors) for anchors, _, _ in function.calls} == sizes


def test_blocks_are_asked_for_once_where_there_is_room(monkeypatch):
    function = Recorded(torch.zeros(N, N))
    scorer = BlockScorer(function, N, 1, block=5)
    triples = random_triples(20, N, 1)
    rank(scorer, triples, sides=("tail",))
    assert len(function.calls) == 5
    monkeypatch.setattr("kgfast.eval.functions._KEPT", 0)
    function.calls.clear()
    again = rank(scorer, triples, sides=("tail",))
    assert 5 < len(function.calls) <= 10
    assert torch.equal(again.equal, torch.full_like(again.equal, N - 1))


@pytest.mark.parametrize("listed", [None, list(range(1, N, 2))])
def test_whole_rows_are_asked_for_exactly_once_a_batch(monkeypatch, listed):
    """A GNN scores all candidates at once, whatever the room, and targets that are none."""
    monkeypatch.setattr("kgfast.eval.functions._KEPT", 0)
    function = Recorded(torch.randn(N, N, generator=torch.Generator().manual_seed(0)))
    whole = BlockScorer(function, N, 1, whole=True, batch_size=8)
    blocks = BlockScorer(function, N, 1, block=5, batch_size=8)
    triples = torch.tensor([[place, 0, place + 1] for place in range(1, 21)])
    asked = {"known": KnownTriples(triples), "candidate_ids": listed}
    queries = {"heads": triples[:, 0], "relations": 0, **asked}
    results = (
        rank(whole, triples, **asked),
        topk(whole, k=3, **queries),
        above(whole, 0.0, **queries),
    )
    assert [len(anchors) for anchors, _, _ in function.calls] == [8, 8, 4] * 4
    same(results[0], rank(blocks, triples, **asked))
    for one, other in (
        (results[1], topk(blocks, k=3, **queries)),
        (results[2], above(blocks, 0.0, **queries)),
    ):
        assert torch.equal(one.ids, other.ids)
        assert torch.equal(one.scores, other.scores)


def test_the_module_of_a_method_is_evaluated_without_gradients():
    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Parameter(torch.randn(N, 2))
            self.dropout = torch.nn.Dropout(0.5)
            self.seen = []

        def score(self, anchors, relations, side, candidate_ids):
            self.seen.append((self.training, torch.is_grad_enabled()))
            return self.dropout(self.table[anchors]) @ self.table[candidate_ids].T

    network = Network()
    rank(BlockScorer(network.score, N, R), random_triples(30, N, R))
    assert set(network.seen) == {(False, False)}
    assert network.training
    assert network.dropout.training


class Careless:
    """A function that changes the ids that it gets and returns one tensor every time."""

    def __init__(self, fn):
        self.fn, self.results = fn, {}

    def __call__(self, *asked):
        scores = self.fn(*asked)
        for ids in (asked[0], asked[1], asked[3]):
            ids.fill_(-1)
        return self.results.setdefault(scores.shape, torch.empty_like(scores)).copy_(scores)


@pytest.mark.parametrize("ids", [None, [20, 3, 4, 11, 0, 7, 9, 1]])
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_what_a_function_does_to_its_ids_and_scores_changes_nothing(ids, is_wrapped):
    model, triples = MODELS["distmult"](N, 2 * R, 4, 0), random_triples(12, N, R)
    known = KnownTriples(triples, random_triples(60, N, R, 1))
    scorer = as_blocks(model, block=4, batch_size=5)
    careless = BlockScorer(Careless(scorer.fn), N, 2 * R, block=4, batch_size=5)
    if is_wrapped:
        scorer, careless = kgfast.Reciprocal(scorer), kgfast.Reciprocal(careless)
    before = triples.clone()
    asked = {"known": known, "candidate_ids": ids}
    same(rank(careless, triples, **asked), rank(scorer, triples, **asked))
    heads, relations = triples[:, 0].contiguous(), triples[:, 1].contiguous()
    best = [topk(it, heads=heads, relations=relations, k=4, **asked) for it in (careless, scorer)]
    assert torch.equal(best[0].ids, best[1].ids)
    assert torch.equal(best[0].scores, best[1].scores)
    facts = [kgfast.top_facts(it, k=9, known=known) for it in (careless, scorer)]
    assert torch.equal(facts[0].triples, facts[1].triples)
    assert torch.equal(triples, before)
    assert torch.equal(heads, before[:, 0])
    assert torch.equal(relations, before[:, 1])


def fails(anchors, relations, side, candidate_ids):
    raise KeyError("no such thing")


def returns(value):
    def function(anchors, relations, side, candidate_ids):
        return value(len(anchors), len(candidate_ids))

    return function


def late_nan(anchors, relations, side, candidate_ids):
    return torch.where(candidate_ids == 5, torch.nan, 1.0).repeat(len(anchors), 1)


USED = {
    "type": (returns(lambda b, c: [0.0] * c), TypeError, "block 0 .*return a tensor; got list"),
    "shape": (returns(lambda b, c: torch.zeros(b, c + 1)), ValueError, r"\[1, 4\]; got \[1, 5\]"),
    "integers": (returns(lambda b, c: torch.zeros(b, c).long()), TypeError, "got torch.int64"),
    "device": (returns(lambda b, c: torch.zeros(b, c, device="meta")), ValueError, "on cpu"),
    "nan": (
        late_nan,
        ValueError,
        r"NaN for block 1 of the tail side \(candidates 4 .. 5\), 1 queries from anchor 0, .* 5 ",
    ),
}


@pytest.mark.parametrize("name", USED)
def test_wrong_scores_name_the_block(name):
    function, error, message = USED[name]
    scorer = BlockScorer(function, 6, 1, block=4)
    for call in (
        lambda: rank(scorer, [(0, 0, 0)], sides=("tail",)),
        lambda: topk(scorer, heads=0, relations=0, k=1),
    ):
        with pytest.raises(error, match=message):
            call()


def test_what_the_function_raises_is_passed_on():
    with pytest.raises(KeyError, match="no such thing") as caught:
        rank(BlockScorer(fails, 6, 1), [(0, 0, 0)], sides=("tail",))
    assert caught.value.__notes__ == [
        "raised by fails for block 0 of the tail side (candidates 0 .. 5) of 1 queries"
    ]


def make(**changed):
    return BlockScorer(**{"fn": fails, "num_entities": 6, "num_relations": 1, **changed})


BAD = {
    "function": (lambda: make(fn=3), TypeError, "fn must be callable; got int"),
    "entities": (lambda: make(num_entities=0), ValueError, "num_entities must be at least 1"),
    "relations": (lambda: make(num_relations=1.0), TypeError, "num_relations must be an int"),
    "block": (lambda: make(block=0), ValueError, "block must be at least 1; got 0"),
    "batch": (lambda: make(batch_size=True), TypeError, "batch_size must be an int"),
    "crop": (lambda: rank(make(), [(0, 0, 1)], dims=1), ValueError, "BlockScorer has no crops"),
    "triple": (lambda: rank(make(), [(0, 0, 6)]), ValueError, "triples"),
    "a side": (
        lambda: rank(make(sides=("tail",)), [(0, 0, 1)]),
        NotImplementedError,
        "fails of this BlockScorer scores tail, not head",
    ),
    "k": (lambda: topk(make(), heads=0, relations=0, k=7), ValueError, "candidates, 6; got 7"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()


def test_a_loss_has_no_use_for_it():
    with pytest.raises(TypeError, match=r"model must have score, queries, candidates; BlockScorer"):
        kgfast.losses.bce(make(), [(0, 0, 1)])
