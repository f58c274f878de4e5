"""rank(), topk() and above() of several processes against those of one."""

from functools import partial

import pytest
import torch

import kgfast
from kgfast import distributed
from kgfast.distributed import OtherProcessError
from kgfast.eval.rows import own_reader
from kgfast.processes.shares import facts_of
from support.gloo import run_together, values
from support.ranked_together import (
    CANDIDATES,
    EARLY,
    THRESHOLDS,
    among_candidates,
    bytes_sent,
    early_failures,
    errors_of,
    filtered_shards,
    given_of,
    late,
    of_files,
    results_of,
    shuffled,
    tables_with_nan,
    without_one,
)
from support.shared_out import example, model_of, tables_of
from support.streamed import same


def facts_in_words(model) -> dict[str, str]:
    return facts_of(model, own_reader(model))


def assert_like_one(name: str, spans: list[tuple[int, int]]) -> None:
    """All processes find what one finds."""
    graph, model = example(), model_of(name)
    heads, relations, tails = graph.hrt.T
    ranks = kgfast.rank(model, graph.hrt, known=graph.known)
    some = {"candidate_ids": CANDIDATES, "exclude": "anchor"}
    among = kgfast.rank(model, graph.hrt[:9], known=graph.known, **some)
    best = kgfast.topk(model, heads=heads, relations=relations, k=7, known=graph.known)
    options = {"known": graph.known, "pad": True}
    every = kgfast.topk(model, tails=tails[:3], relations=1, k=97, **options)
    above = kgfast.above(model, THRESHOLDS, heads=heads, relations=relations, known=graph.known)
    assert len(above.ids) > 20
    for found in values(run_together(len(spans), partial(results_of, name, spans))):
        same(found[0], ranks)
        same(found[1], among)
        for own, expected in ((found[2], best), (found[3], every)):
            assert torch.equal(own.ids, expected.ids)
            assert torch.equal(own.scores, expected.scores)
            assert own.scores.dtype == expected.scores.dtype
        for name in ("indptr", "ids", "scores"):
            assert torch.equal(getattr(found[4], name), getattr(above, name))
        assert "the number of results, 3,880; got 50" in found[5]


def test_uneven_shards_one_of_them_empty():
    assert_like_one("RotatE", [(0, 10), (10, 10), (10, 97)])


def test_processes_with_all_rows_share_queries():
    assert_like_one("RotatE", [(0, 97), (0, 97)])


SPANS = [
    [(96, 97), (0, 96)],
    [(0, 97), (0, 97), (0, 97)],
    [(0, 30), (30, 97), (0, 0)],
    [(0, 1), (1, 40), (40, 41), (41, 97)],
]
OTHERS = ["TransE", "DistMult", "ComplEx", "Reciprocal"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "spans"),
    [("RotatE", it) for it in SPANS]
    + [(name, SPANS[0]) for name in OTHERS],  # shards in another order
    ids=str,
)
def test_any_number_of_processes(name, spans):
    assert_like_one(name, spans)


def test_candidates_of_queries_and_relations():
    """Rank by three uneven shards, and by two processes that share the queries."""
    graph, model = example(), model_of("RotatE")
    heads, relations, _ = graph.hrt.T
    asked = {"heads": heads, "relations": relations, "k": 6, "pad": True, "known": graph.known}
    for kinds, spans in (
        (["constraints"], [(0, 10), (10, 90), (90, 97)]),
        (["constraints", "lists", "by side"], [(0, 97), (0, 97)]),
    ):
        expected = []
        for kind in kinds:
            given = given_of(kind)
            expected.append(kgfast.rank(model, graph.hrt, known=graph.known, candidate_ids=given))
            expected.append(kgfast.topk(model, candidate_ids=given, **asked))
        for found in values(run_together(len(spans), partial(among_candidates, kinds, spans))):
            for own, other in zip(found, expected, strict=True):
                if isinstance(own, kgfast.Ranks):
                    same(own, other)
                else:
                    assert torch.equal(own.ids, other.ids)
                    assert torch.equal(own.scores, other.scores)


def test_filtered_models_in_shards():
    whole, graph = kgfast.RSCF(model_of("RotatE"), seed=1), example()
    expected = kgfast.rank(whole, graph.hrt, known=graph.known)
    best = kgfast.topk(whole, heads=[1, 2], relations=0, k=5)
    spans = [(0, 40), (40, 97)]
    for ranks, found in values(run_together(2, partial(filtered_shards, spans))):
        same(ranks, expected)
        assert torch.equal(found.ids, best.ids)
        assert torch.equal(found.scores, best.scores)


def test_shards_in_one_process_of_its_own_group():
    """Make the calls without a second process: they need no spawn."""
    results = values(run_together(1, partial(results_of, "DistMult", [(0, 97)])))
    expected = kgfast.rank(model_of("DistMult"), example().hrt, known=example().known)
    same(results[0][0], expected)


@pytest.mark.slow
def test_shards_in_files_dims_and_nan():
    whole = kgfast.RotatE(*tables_with_nan())
    graph = example()
    expected = kgfast.rank(whole, graph.hrt, known=graph.known, nan="worst", dims=3)

    for ranks, longest in values(run_together(2, of_files)):
        same(ranks, expected)
        assert 0 < longest <= 10


def test_what_is_sent_does_not_grow_with_the_table():
    """Counted where collectives are called: 4 shards, 200 and 2,000 rows."""
    sent = values(run_together(4, bytes_sent))
    small, large = sent[0]
    assert small == large
    # 2 sides: queries of 8 float32 and a target score; counts once: 5 kinds of int64.
    assert small == 40 * 2 * (8 * 4 + 8 + 5 * 8)


def test_what_is_wrong_in_one_process_is_an_error_in_all():
    cases = values(run_together(2, errors_of))
    for name, message in {
        "dtype": "processes 0 and 1 differ in the dtype of the entity table: float32",
        "width": "differ in the shape of the entity table: [97, 8] and [97, 6]",
        "relations": "differ in the relations and other parameters",
        "triples": "differ in triples: 40 triples",
        "nan=": "processes 0 and 1 differ in nan: error and worst",
        "function": "the call: kgfast.rank and kgfast.topk",
        "overlap": "shards: rows 40 .. 49 of 97 are in two shards",
        "gap": "shards: no process holds rows 50 .. 59 of 97",
    }.items():
        for case in cases:
            assert isinstance(case[name], ValueError), (name, case[name])
            assert message in str(case[name]), (name, case[name])
    nan, bad_id = ([case[name] for case in cases] for name in ("nan", "id"))
    assert "the entity table: row 60 holds a NaN" in str(nan[1])
    assert str(nan[0]).startswith("process 1 of 2: NonFiniteError: the entity table: row 60")
    assert isinstance(bad_id[0], ValueError)
    assert str(bad_id[1]).startswith("process 0 of 2: ValueError: triples[0]")
    for case in cases:
        assert "has 1, k is 3 (pad=True" in str(case["full"])


def test_a_call_that_fails_before_it_meets_the_others_is_an_error_of_that_call_in_all():
    cases = values(run_together(2, early_failures))
    for number, (name, (_, options)) in enumerate(EARLY.items()):
        (told, found), (own, like) = (case[number] for case in cases)
        assert not isinstance(own, OtherProcessError), (name, own)
        assert isinstance(told, OtherProcessError), (name, told)
        assert str(told).startswith(f"process 1 of 2: {type(own).__name__}: {own}"), name
        assert next(iter(options)).split("_")[0] in str(own), (name, own)
        graph, table = example(), shuffled(2 * number + 1)
        expected = kgfast.rank(kgfast.DistMult(table, tables_of("DistMult")[1]), graph.hrt)
        same(found, expected)
        same(like, expected)


def test_a_call_that_comes_too_late_is_told_so_and_the_next_one_meets():
    (first, found), (late_one, like) = values(run_together(2, late))
    assert isinstance(first, distributed.LostProcessError), first
    assert isinstance(late_one, OtherProcessError), late_one
    assert str(late_one).startswith("process 0 of 2: LostProcessError: process 1 of 2 did not come")
    same(found, kgfast.rank(model_of("DistMult"), example().hrt))
    same(like, found)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["lost", "hanging"])
def test_a_process_that_is_gone_is_named_by_all_others(how):
    results = run_together(3, partial(without_one, how), timeout=20)
    for rank in (0, 2):
        error = results[rank]
        assert isinstance(error, distributed.LostProcessError), error
        assert error.args[0].startswith("process 1 of 3 did not come to step")


@pytest.mark.parametrize("name", ["convolution.weight", "image_norm.running_mean", "relation"])
def test_any_parameter_that_differs_is_noticed(name):
    model, other = (
        kgfast.ConvE.init(9, 2, 16, embedding_height=4, channels=2, seed=0) for _ in range(2)
    )
    assert facts_in_words(model) == facts_in_words(other)
    other.state_dict()[name].add_(1)
    assert facts_in_words(model) != facts_in_words(other)


def test_computed_relations_that_differ_are_noticed():
    model = kgfast.DistMult.init(9, 2, 4, seed=0)
    facts = [facts_in_words(model.with_relation(model.relation * it)) for it in (1, 1, 2)]
    assert facts[0] == facts[1] != facts[2]


def test_without_processes():
    for timeout in (1, 0):
        with (
            pytest.raises(RuntimeError, match=r"start this program with torchrun"),
            distributed.processes(timeout=timeout),
        ):
            pass
