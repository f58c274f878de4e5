"""Sources of candidates: each finds what the same model finds with its tables in memory.

A source is asked by rank(), topk(), above() and top_facts(). The files beside this one test answers
from tables in memory.
"""

import math
import pickle
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import kgfast
from kgfast import MED, RSCF, Candidates, ConvE, Reciprocal, RotatE, TransE, tables
from kgfast.distributed import count_range, merge
from kgfast.eval import rows
from kgfast.graph import TypeConstraints
from support.ranked_models import MODELS
from support.scorers import as_blocks
from support.streamed import KNOWN, SMALL, TRIPLES, D, N, R, in_file, rotate, same

HEADS, RELATIONS, TAILS = TRIPLES.T.contiguous()
SPANS = [(0, 13), (13, 13), (13, 50), (50, 61)]
ASKED = {
    "head": {"tails": TAILS, "relations": RELATIONS},
    "tail": {"heads": HEADS, "relations": RELATIONS},
}


@dataclass(frozen=True)
class Source:
    """Kind of model, by where its candidates are."""

    name: str
    folder: Any

    @property
    def is_function(self) -> bool:
        return self.name == "function"

    @property
    def is_ranges(self) -> bool:
        return self.name == "ranges"

    def of(self, model: Any) -> tuple[Any, dict[str, Any]]:
        """Return the model with its entities there, and options that make many blocks of them."""
        if self.is_ranges:
            return model, {}
        if self.is_function:
            return as_blocks(model, block=19, batch_size=11), {}  # four of each
        limit = {"max_memory": SMALL}
        if self.name == "memory":
            return model.with_entity(tables.open(model.entity.detach())), limit
        return in_file(
            model, self.folder, [1, 1, 7, 40, 61] if self.name == "shards" else None
        ), limit

    def rank(self, model: Any, triples: Any = TRIPLES, **options: Any) -> Any:
        own, limit = self.of(model)
        if not self.is_ranges:
            return kgfast.rank(own, triples, **limit, **options)
        options = {"batch_size": 7} | options
        parts = [count_range(own, triples, *span, **options) for span in reversed(SPANS)]
        return merge(pickle.loads(pickle.dumps(parts)), known=options.get("known"))

    def topk(self, model: Any, **options: Any) -> Any:
        own, limit = self.of(model)
        return kgfast.topk(own, **limit, **options)

    def above(self, model: Any, threshold: Any, **options: Any) -> Any:
        own, limit = self.of(model)
        return kgfast.above(own, threshold, **limit, **options)

    def top_facts(self, model: Any, **options: Any) -> Any:
        own, limit = self.of(model)
        return kgfast.top_facts(own, **limit, **options)


@pytest.fixture(params=["file", "shards", "memory", "function", "ranges"])
def source(request, tmp_path) -> Source:
    """Each source; ranges of rows, which others may count, are of ranks alone."""
    return Source(request.param, tmp_path)


@pytest.fixture(params=["file", "shards", "memory", "function"])
def answering(request, tmp_path) -> Source:
    """Each source that answers."""
    return Source(request.param, tmp_path)


def same_answers(found, expected) -> None:
    """To the last bit; a function's scores are not rounded."""
    assert torch.equal(found.ids, expected.ids)
    assert torch.equal(found.scores.to(expected.scores.dtype), expected.scores)


def same_above(answering, model, asked, **options) -> None:
    """All answers that are as good as the third of each query, or better, to the last bit."""
    threshold = kgfast.topk(model, **asked, k=3).scores[:, -1]
    expected = kgfast.above(model, threshold, **asked, **options)
    if answering.is_function:  # a function's scores are not rounded
        threshold = answering.topk(model, **asked, k=3).scores[:, -1]
    found = answering.above(model, threshold, **asked, **options)
    assert torch.equal(found.indptr, expected.indptr)
    same_answers(found, expected)
    if not options:
        assert (found.indptr.diff() >= 3).all()
    if len(found.ids) > 1:
        words = f"number of results, {len(found.ids):,}; got {len(found.ids) - 1:,} "
        with pytest.raises(ValueError, match=words):
            answering.above(model, threshold, **asked, **options, max_results=len(found.ids) - 1)
        with pytest.raises(ValueError, match=f"number of results, {len(found.ids):,}; got 1 "):
            answering.above(model, threshold, **asked, **options, max_results=1)


def same_facts(found, expected) -> None:
    assert torch.equal(found.triples, expected.triples)
    assert torch.equal(found.scores.to(expected.scores.dtype), expected.scores)


def tied(model):
    """Return the model with rows that occur several times."""
    model.entity.data = model.entity.data[torch.arange(N) % 9].contiguous()
    return model


def around(kind):
    base = RotatE.init(N, R, D, seed=0)
    model = {
        "med": lambda: MED(base, [2, 4, 6]),
        "med split": lambda: MED(base, [2, 4, 6], crop="split"),
        "rscf": lambda: RSCF(base, seed=1),
        "reciprocal": lambda: Reciprocal(RotatE.init(N, 2 * R, D, seed=0)),
        "conve": lambda: ConvE.init(N, R, 8, embedding_height=2, seed=0).eval(),
    }[kind]()
    if kind == "conve":
        model.bias.data.normal_(generator=torch.Generator().manual_seed(0))
    return model


@pytest.mark.parametrize("kind", MODELS)
def test_ranks_of_every_model(source, kind):
    model = MODELS[kind](N, R, D, 0)
    options = {"known": KNOWN, "sides": ("tail", "head")}
    same(source.rank(model, **options), kgfast.rank(model, TRIPLES, **options))


@pytest.mark.parametrize("kind", ["med", "med split", "rscf", "reciprocal", "conve"])
def test_ranks_of_models_around_models_and_biases(source, kind):
    if source.is_function or (source.is_ranges and "rscf" in kind):
        pytest.skip("has no crops or factors")
    if source.name == "memory" and kind == "conve":
        pytest.skip("is read as its parameters are")
    model, options = around(kind), {"known": KNOWN}
    if "med" in kind:
        options["dims"] = 2 if source.is_ranges else [2, 4, 6]
    same(source.rank(model, **options), kgfast.rank(model, TRIPLES, **options))


@pytest.mark.parametrize("side", ["head", "tail"])
@pytest.mark.parametrize("kind", MODELS)
def test_answers_of_every_model(answering, kind, side):
    model = MODELS[kind](N, R, D, 0)
    options = {**ASKED[side], "k": 3, "known": KNOWN}
    same_answers(answering.topk(model, **options), kgfast.topk(model, **options))
    same_above(answering, model, ASKED[side], known=KNOWN)


@pytest.mark.parametrize("kind", ["med", "rscf", "reciprocal"])
def test_answers_of_models_around_models(answering, kind):
    if answering.is_function:
        pytest.skip("has no crops or factors")
    model, options = around(kind), {**ASKED["head"], "k": 5, "known": KNOWN}
    options |= {"dims": 2} if kind == "med" else {}
    same_answers(answering.topk(model, **options), kgfast.topk(model, **options))
    same_above(answering, model, ASKED["head"], **{"dims": 2} if kind == "med" else {})


@pytest.mark.parametrize("kind", ["rotate", "distmult"])
def test_facts(answering, kind):
    model = tied(MODELS[kind](N, R, D, 0))
    for options in (
        {"k": 40, "known": KNOWN, "heads": list(range(0, N, 7))},
        {"k": 5, "heads": [3, 50, 7], "relations": [2], "tails": [0, 9, 18, 60]},
        {"k": 40, "heads": [1], "relations": 0, "tails": [0, 9]},
        {"k": 3, "heads": []},
    ):
        same_facts(answering.top_facts(model, **options), kgfast.top_facts(model, **options))


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [("reference", torch.float16)]
    + [("cpu", dtype) for dtype in (torch.float16, torch.bfloat16, torch.float64)],
    indirect=["backend"],
    ids=str,
)
def test_every_dtype_with_ties(source, backend, dtype):
    if source.name in ("file", "shards") and dtype == torch.bfloat16:
        pytest.skip("NumPy has no bfloat16: tests/tables/test_files.py reads it")
    model = tied(RotatE.init(N, R, D, seed=1)).to(dtype)
    found = source.rank(model, known=KNOWN)
    same(found, kgfast.rank(model, TRIPLES, known=KNOWN))
    assert found.equal.sum() > 100
    if not source.is_ranges:
        for k in (1, 10, N):
            options = {**ASKED["tail"], "k": k}
            same_answers(source.topk(model, **options), kgfast.topk(model, **options))
        same_above(source, model, ASKED["tail"], known=KNOWN)


def test_scores_that_round_to_one_number_keep_their_order(answering):
    far = torch.full((N, 1), 1e4)
    far[[3, 50, 20], 0] = torch.tensor([4097.0, 4096.0, 4095.5])
    model = TransE(far, torch.tensor([[2.0**-20]]), norm="l2")
    options = {"heads": [0, 1], "relations": 0, "k": 4}
    same_answers(answering.topk(model, **options), kgfast.topk(model, **options))


def given_of(kind):
    generator = torch.Generator().manual_seed(5)
    lists = torch.stack([torch.randperm(N, generator=generator)[:9] for _ in TRIPLES])
    lists[3, 4:] = -1
    return {
        "one list": torch.randperm(N, generator=generator)[:17],
        "none at all": torch.empty(0, dtype=torch.int64),
        "lists": lists,
        "constraints": TypeConstraints.from_triples(TRIPLES),
        "by side": {"head": torch.tensor([3, 60, 5]), "tail": lists},
        "far sides": {"head": torch.arange(5), "tail": torch.arange(50, 61)},
    }[kind]


KINDS = "one list", "none at all", "lists", "constraints", "by side", "far sides"


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_among_candidates_of_every_kind(source, kind):
    if source.is_ranges and kind in ("by side", "lists"):
        with pytest.raises(NotImplementedError, match="lists of each query need all rows"):
            source.rank(MODELS["rotate"](N, R, D, 0), candidate_ids=given_of(kind))
        return
    model, options = MODELS["rotate"](N, R, D, 0), {"known": KNOWN, "candidate_ids": given_of(kind)}
    same(source.rank(model, **options), kgfast.rank(model, TRIPLES, **options))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "side" not in kind])
def test_answers_among_candidates_of_every_kind(answering, kind):
    model, own = MODELS["rotate"](N, R, D, 0), {"candidate_ids": given_of(kind), "known": KNOWN}
    options = {**ASKED["tail"], **own, "k": 6, "pad": True}
    expected = kgfast.topk(model, **options)
    same_answers(answering.topk(model, **options), expected)
    if kind != "lists":
        same_above(answering, model, ASKED["tail"], **own)
        return
    with pytest.raises(ValueError, match="k must be at most"):
        answering.topk(model, **options | {"k": 18, "pad": False})


def test_nothing_and_one_triple_many_times(source):
    model = MODELS["rotate"](N, R, D, 0)
    for triples in (TRIPLES[:0], TRIPLES[:1].repeat(9, 1)):
        same(source.rank(model, triples), kgfast.rank(model, triples))
    if not source.is_ranges:
        asked = {"heads": HEADS[:0], "relations": RELATIONS[:0]}
        same_answers(source.topk(model, **asked, k=2), kgfast.topk(model, **asked, k=2))
        same_above(source, model, asked)


class Counting(SimpleNamespace):
    """A class of one's own that counts all entities, whatever rows it has, and biases them all."""

    score, num_entities, num_relations, dim = "rotate", N, R, D

    def with_entity(self, entity):
        return type(self)(**vars(self) | {"entity": entity})

    def queries(self, anchors, relations, side):
        moves = self.moves[relations]
        return self.entity[anchors] + (moves if side == "tail" else -moves)

    def candidates(self, side):
        return Candidates(self.entity, self.bias)


class Short(Counting):
    """Another whose candidates are not its rows."""

    def candidates(self, side):
        return self.entity[:1]


def tables_of_counting():
    generator = torch.Generator().manual_seed(0)
    rows, moves = (torch.randn(count, 2 * D, generator=generator) for count in (N, R))
    return {"entity": rows, "moves": moves, "bias": torch.linspace(-1, 1, N)}


def test_a_class_that_counts_all_entities_is_ranked_by_rows(source):
    model = Counting(**tables_of_counting())
    for sides in (("tail",), ("head", "tail")):
        expected = kgfast.rank(model, TRIPLES, known=KNOWN, sides=sides)
        same(source.rank(model, known=KNOWN, sides=sides), expected)


def test_a_class_whose_candidates_are_not_its_rows_is_named(tmp_path):
    stored = in_file(Short(**tables_of_counting()), tmp_path)
    words = r"Short\.with_entity.*'tail'.*num_entities is .* shape \[1, 12"
    with pytest.raises(ValueError, match=words):
        kgfast.rank(stored, TRIPLES, sides=("tail",))


# Numbers that are not finite.

NAMED = {
    "file": r"e\.npy: row 47 holds a NaN",
    "shards": r"4\.npy: row 7 \(row 47 of all shards\) holds a NaN",
    "memory": "row 47 holds a NaN",
    "function": r"NaN for block 2 of the tail side \(candidates 38 .. 56\)",
    "ranges": "row 47 holds a NaN",
}


def test_a_row_that_is_not_finite_is_named(source):
    model = MODELS["rotate"](N, R, D, 0)
    model.entity.data[47, 3] = torch.nan
    others = TRIPLES[(TRIPLES[:, ::2] != 47).all(1)]
    for triples in (others, torch.tensor([[1, 0, 47]])):
        with pytest.raises(ValueError, match=NAMED[source.name]):
            source.rank(model, triples, sides=("tail",))
    if source.is_function:
        return
    whole = r"triples\[0\] = \(47, 0, 1\): the tail query|query of entity 47 and relation 0"
    with pytest.raises(ValueError, match=whole):
        source.rank(model, [(47, 0, 1)], sides=("tail",))
    options = {"nan": "worst", "known": KNOWN}
    same(source.rank(model, **options), kgfast.rank(model, TRIPLES, **options))
    if source.is_ranges:
        return
    for ids in (None, torch.tensor([[1, 47]])):
        with pytest.raises(ValueError, match=NAMED[source.name]):
            source.topk(model, heads=[1], relations=[0], k=1, candidate_ids=ids)
    with pytest.raises(ValueError, match=NAMED[source.name]):
        source.above(model, 0.0, heads=[1], relations=[0])
    with pytest.raises(ValueError, match=r"heads\[1\] = 47 with relation 0: the query holds a NaN"):
        source.topk(model, heads=[1, 47], relations=0, k=1)
    with pytest.raises(ValueError, match=r"heads\[1\] = 47 with relation 0: the query holds a NaN"):
        source.above(model, 0.0, heads=[1, 47], relations=0)
    with pytest.raises(ValueError, match=NAMED[source.name]):
        source.top_facts(model, k=3, heads=[1])
    with pytest.raises(ValueError, match="head 47 with relation 0: the query holds a NaN"):
        source.top_facts(model, k=3, heads=[47])


# Files.


def test_lists_read_each_row_once_for_all_queries(tmp_path, monkeypatch):
    _, stored = rotate(tmp_path)
    table, read = stored.entity, []
    original = type(table).rows
    monkeypatch.setattr(
        type(table), "rows", lambda self, ids: read.append(len(ids)) or original(self, ids)
    )
    kgfast.rank(stored, TRIPLES, sides=("tail",), candidate_ids=given_of("lists"))
    anchors, targets = (len(TRIPLES[:, column].unique()) for column in (0, 2))
    assert sum(read) <= N + anchors + targets


def test_a_small_limit_makes_blocks_and_passes(tmp_path, monkeypatch):
    _, stored = rotate(tmp_path)
    passes = []  # the rows of a block
    original = rows.prefetched

    def seen(table, ranges):
        passes.append(ranges[0][1] - ranges[0][0])
        return original(table, ranges)

    monkeypatch.setattr(rows, "prefetched", seen)
    kgfast.rank(stored, TRIPLES, max_memory=SMALL)
    num_passes = len(passes)
    queries, blocks = 2 * len(TRIPLES), SMALL // 4
    assert num_passes == math.ceil(queries * (24 * 2 * D + 200) / (SMALL - blocks))
    kgfast.rank(stored, TRIPLES, max_memory="2 KiB")
    assert len(set(passes)) == 2
    assert 3 * passes[0] < N
    assert 1 < num_passes < len(passes) - num_passes
    assert passes[-1] < passes[0]
    with pytest.raises(ValueError, match=r"max_memory must be at least .* bytes here"):
        kgfast.rank(stored, TRIPLES, max_memory=100)


def test_what_a_model_of_a_table_does_not_do(tmp_path):
    model, stored = rotate(tmp_path)
    for call in (
        lambda: kgfast.rank(stored, TRIPLES, sides=("relation",)),
        lambda: kgfast.topk(stored, heads=[0], tails=[1], k=1),
    ):
        with pytest.raises(NotImplementedError, match="relations are ranked, or predicted, by"):
            call()
    for call, words in (
        (stored.state_dict, r"state_dict\(\): the entities are FileTable.*block"),
        (stored.double, r"to\(\): the entities are FileTable.*block"),
        (lambda: stored.to("cpu"), r"to\(\): the entities are FileTable"),
        (lambda: RSCF(stored).state_dict(), r"state_dict\(\): the entities"),
        (lambda: stored.first_columns(2), r"first_columns\(\)"),
        (
            lambda: kgfast.losses.nssa(stored, TRIPLES, torch.arange(4)),
            r"only rank\(\), topk\(\) and top_facts\(\) read tables",
        ),
        (lambda: RotatE(stored.entity, stored.entity), "relation must be a tensor"),
    ):
        with pytest.raises(TypeError, match=words):
            call()
    asked = {"heads": HEADS, "relations": RELATIONS, "k": 1}
    for call in (
        lambda: kgfast.rank(model, TRIPLES, max_memory="1GiB"),
        lambda: kgfast.topk(model, **asked, max_memory="1GiB"),
        lambda: kgfast.top_facts(model, k=3, max_memory="1GiB"),
    ):
        with pytest.raises(ValueError, match="tensors are read in place"):
            call()
    for limit, error in (("much", ValueError), (True, TypeError), (0, ValueError)):
        with pytest.raises(error, match="max_memory must be"):
            kgfast.rank(stored, TRIPLES, max_memory=limit)
    with pytest.raises(ValueError, match="k must be at most the number of candidates, 61"):
        kgfast.topk(stored, **asked | {"k": N + 1})
    for ids, words in (([1, 1], "must not repeat"), ([1, N], r"candidate_ids\[1\] must be in")):
        with pytest.raises(ValueError, match=words):
            kgfast.rank(stored, TRIPLES, candidate_ids=ids)
    shard = tables.Shard(model.entity.detach()[:30], start=0, total_rows=N)
    with pytest.raises(ValueError, match=r"within kgfast\.distributed\.processes"):
        kgfast.rank(model.with_entity(shard), TRIPLES)


def test_a_file_that_changes_under_the_run(tmp_path):
    _, stored = rotate(tmp_path)
    with (tmp_path / "e.npy").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(ValueError, match=r"changed while it was read|truncated"):
        kgfast.rank(stored, TRIPLES)
