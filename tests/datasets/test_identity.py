"""Datasets are one graph whatever their order, or differ."""

import random

from kgfast.datasets import Dataset
from kgfast.datasets.identity import fingerprint, names_digest
from kgfast.graph import Triples, Vocabulary
from support.small_runs import RING, ring_triples

NAMES = [f"e{i}" for i in range(RING)]
SHUFFLED = random.Random(1).sample(NAMES, RING)


def ring_of(names, rows):
    entities, relations = Vocabulary(names), Vocabulary(["next", "previous"])
    splits = [Triples.from_names(triples, entities, relations) for triples in rows.values()]
    return Dataset("ring", *splits, entities, relations)


def test_orders_do_not_change_the_fingerprint():
    rows = ring_triples()
    mixed = {name: random.Random(0).sample(it, len(it)) for name, it in rows.items()}
    first, second = ring_of(NAMES, rows), ring_of(SHUFFLED, mixed)
    assert fingerprint(first) == fingerprint(second)
    assert names_digest(first) != names_digest(second)


def test_anything_else_does():
    rows = ring_triples()
    before = fingerprint(ring_of(NAMES, rows))
    assert fingerprint(ring_of([*NAMES, "new"], rows))["names"] != before["names"]
    for train in (
        rows["train"][1:],
        [*rows["train"], rows["train"][0]],
        [("e3", "next", "e3"), *rows["train"][1:]],
    ):
        other = fingerprint(ring_of(NAMES, rows | {"train": train}))
        assert other["train"] != before["train"]
        assert other["test"] == before["test"]
