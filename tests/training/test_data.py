"""Batches and negatives: exact epochs, known answers, and no state but the step."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgfast import KnownTriples
from kgfast.losses import subsampling_weights
from kgfast.training.data import Batch, Batches, Negatives, with_inverses
from support.engines import examples


def random_triples(count, entities, relations, seed=0):
    generator = torch.Generator().manual_seed(seed)
    limits = torch.tensor([entities, relations, entities])
    return (torch.rand(count, 3, generator=generator) * limits).long().unique(dim=0)


def rows_of(batch):
    columns = [batch.anchors, batch.relations]
    return torch.stack(columns if batch.targets is None else [*columns, batch.targets], 1).tolist()


def batch_of(hrt, side="tail", number=0):
    anchors, relations, targets = (hrt if side == "tail" else hrt.flip(1)).T.contiguous()
    return Batch(number, side, anchors, relations, targets, None)


@given(seed=st.integers(0, 99), count=st.integers(1, 40), size=st.integers(1, 17))
@examples(25)
def test_an_epoch_has_every_triple_once_on_both_sides(seed, count, size):
    hrt = random_triples(count, 20, 3, seed)
    batches = Batches(hrt, size, seed)
    for epoch in range(2):
        seen = {"tail": [], "head": []}
        for number in range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch):
            batch = batches.batch(number)
            assert len(batch.anchors) <= size
            seen[batch.side] += rows_of(batch)
        assert sorted(seen["tail"]) == sorted(hrt.tolist())
        assert sorted(seen["head"]) == sorted(hrt.flip(1).tolist())


def test_batches_depend_on_seed_epoch_and_side_only():
    hrt = random_triples(50, 20, 3)
    one, other = Batches(hrt, 7, 4), Batches(hrt, 7, 4)
    numbers = torch.randperm(60, generator=torch.Generator().manual_seed(0)).tolist()
    found = {number: rows_of(one.batch(number)) for number in numbers}
    assert all(rows_of(other.batch(number)) == found[number] for number in sorted(numbers))
    per_epoch = one.per_epoch
    assert found[0] != found[per_epoch]
    assert [row[::-1] for row in found[1]] != found[0]
    assert rows_of(Batches(hrt, 7, 5).batch(0)) != found[0]


def test_queries_are_distinct_and_the_sides_are_spread_evenly():
    hrt = torch.tensor([[0, 0, 1], [0, 0, 2], [0, 0, 3], [1, 0, 4], [0, 1, 1], [0, 1, 1]])
    batches = Batches(hrt, 1, 0, distinct=True)
    epoch = [batches.batch(number) for number in range(batches.per_epoch)]
    sides = ["tail", "head", "tail", "head", "head", "tail", "head", "head"]
    assert [it.side for it in epoch] == sides
    tails = sorted(rows_of(it)[0] for it in epoch if it.side == "tail")
    heads = sorted(rows_of(it)[0] for it in epoch if it.side == "head")
    assert tails == [[0, 0], [0, 1], [1, 0]]
    assert heads == [[1, 0], [1, 1], [2, 0], [3, 0], [4, 0]]
    assert epoch[0].targets is None


def test_inverses_make_tail_queries_of_everything():
    hrt = random_triples(50, 20, 3)
    both = with_inverses(hrt, 3)
    rows = {(h, r, t) for h, r, t in hrt.tolist()}
    assert {tuple(row) for row in both.tolist()} == rows | {(t, r + 3, h) for h, r, t in rows}
    for distinct in (False, True):
        batches = Batches(both, 8, 0, sides=["tail"], distinct=distinct)
        epoch = [batches.batch(number) for number in range(batches.per_epoch)]
        assert {it.side for it in epoch} == {"tail"}
        asked = {tuple(row[:2]) for it in epoch for row in rows_of(it)}
        assert asked == {(h, r) for h, r, _ in both.tolist()}
        assert any(bool((it.relations < 3).any() and (it.relations >= 3).any()) for it in epoch)
    weights = subsampling_weights(both)
    assert torch.equal(weights[: len(hrt)], subsampling_weights(hrt))
    assert torch.equal(weights[: len(hrt)], weights[len(hrt) :])


def test_weights_follow_their_triples():
    hrt = random_triples(40, 9, 2)
    weights = subsampling_weights(hrt)
    batches = Batches(hrt, 6, 1, weights)
    expected = {tuple(row): weight for row, weight in zip(hrt.tolist(), weights, strict=True)}
    for number in range(batches.per_epoch):
        batch = batches.batch(number)
        for row, weight in zip(rows_of(batch), batch.weights, strict=True):
            assert expected[tuple(row if batch.side == "tail" else row[::-1])] == weight


def test_negatives_depend_on_seed_and_batch_only():
    hrt = random_triples(20, 30, 2)
    one, other = Negatives(30, 9, 5, shared=True), Negatives(30, 9, 5, shared=True)
    first, second = one.draw(batch_of(hrt, number=7))[0], one.draw(batch_of(hrt, number=8))[0]
    assert torch.equal(other.draw(batch_of(hrt, number=8))[0], second)
    assert torch.equal(other.draw(batch_of(hrt, number=7))[0], first)
    assert not torch.equal(first, second)
    assert not torch.equal(Negatives(30, 9, 6, shared=True).draw(batch_of(hrt, number=7))[0], first)


@pytest.mark.parametrize("side", ["tail", "head"])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per row"])
@given(seed=st.integers(0, 999), entities=st.sampled_from([3, 8, 40]))
@examples(15)
def test_known_answers_are_never_negatives(shared, side, seed, entities):
    hrt = random_triples(60, entities, 2, seed)
    batch = batch_of(hrt, side, number=seed)
    sampler = Negatives(entities, 12, seed, shared=shared, known=KnownTriples(hrt))
    ids, mask = sampler.draw(batch)
    triples = {tuple(row) for row in rows_of(batch_of(hrt, side))}
    table = ids.expand(len(hrt), -1)
    for row, (anchor, relation, _) in enumerate(rows_of(batch)):
        for column, entity in enumerate(table[row].tolist()):
            counted = mask is None or bool(mask[row, column])
            known = (anchor, relation, entity) in triples
            assert not (counted and known)
            if shared:
                assert counted != known  # nothing else is left out
    if not shared and entities == 40:
        assert mask is None  # drawing again was enough


def test_replaced_negatives_are_uniform_over_the_others():
    hrt = torch.tensor([[0, 0, 0], [0, 0, 1], [0, 0, 2]])
    sampler = Negatives(8, 4000, 1, shared=False, known=KnownTriples(hrt))
    ids, mask = sampler.draw(batch_of(hrt[:1]))
    assert mask is None or int((~mask).sum()) < 10
    counts = Counter(ids[0].tolist())
    counts = torch.tensor([float(counts[entity]) for entity in range(3, 8)])
    expected = counts.mean()
    assert float(((counts - expected) ** 2 / expected).sum()) < 18.5  # chi-square, 4, p = 0.001
