"""Datasets are one graph whatever their order; what differs is counted and named."""

import random

from kgfast.datasets import Dataset
from kgfast.datasets.identity import differences, fingerprint, names_digest
from kgfast.graph import Triples, Vocabulary
from support.small_runs import RING, ring_triples

NAMES = [f"e{i}" for i in range(RING)]
SHUFFLED = random.Random(1).sample(NAMES, RING)


def ring_of(names, rows):
    entities, relations = Vocabulary(names), Vocabulary(["next", "previous"])
    splits = [Triples.from_names(it, entities, relations) for it in rows.values()]
    return Dataset("ring", *splits, entities, relations)


def test_orders_do_not_change_the_fingerprint():
    rows = ring_triples()
    mixed = {name: random.Random(0).sample(it, len(it)) for name, it in rows.items()}
    first, second = (ring_of(*it) for it in ((NAMES, rows), (SHUFFLED, mixed)))
    assert fingerprint(first) == fingerprint(second)
    assert names_digest(first) != names_digest(second)
    assert differences(first, second, "the first") == []


def test_anything_else_does():
    rows = ring_triples()
    seen = [fingerprint(ring_of(NAMES, rows))]
    seen.append(fingerprint(ring_of([*NAMES, "new"], rows)))
    assert seen[0]["names"] != seen[1]["names"]
    for change in (
        rows | {"train": rows["train"][1:]},
        rows | {"train": [*rows["train"], rows["train"][0]]},
        rows | {"train": [("e3", "next", "e3"), *rows["train"][1:]]},
    ):
        other = fingerprint(ring_of(NAMES, change))
        assert other["train"] != seen[0]["train"]
        assert other["test"] == seen[0]["test"]


def test_triples_that_differ_are_counted_and_named():
    rows = ring_triples()
    ring = ring_of(NAMES, rows)
    doubled = rows | {"train": [*rows["train"], rows["train"][0]]}
    (line,) = differences(ring, ring_of(SHUFFLED, doubled), "the run")
    assert line.startswith("train has beyond those of the run 1 triple: ('e2', 'next', 'e3'")
    fewer = rows | {"train": rows["train"][7:], "test": [("e0", "next", "e5")]}
    text = "; ".join(differences(ring, ring_of(SHUFFLED, fewer), "the run"))
    assert "train lacks 7 triples: ('e2', 'next', 'e3'), ('e3'" in text
    assert text.count("'next'") == 6  # five of those, and the one that test has
    assert "test lacks 2 triples" in text
    assert "test has beyond those of the run 1 triple: ('e0', 'next', 'e5')" in text
    assert "\n" not in text
