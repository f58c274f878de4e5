"""Models whose entities lie in files, of many blocks and passes."""

import numpy as np
import torch

from kgfast import KnownTriples, tables
from support.ranked_models import MODELS, random_triples

N, R, D = 61, 4, 6
TRIPLES = random_triples(40, N, R, seed=3)
KNOWN = KnownTriples(TRIPLES, random_triples(300, N, R, seed=4))
SMALL = 12_000  # bytes: several blocks, and several passes


def table_of(rows, path, cut=None):
    """Put rows in a file, or in shards of several formats."""
    np.save(path / "e.npy", rows.detach().numpy())
    if cut is None:
        return tables.open(path / "e.npy")
    parts = []
    for number, (first, last) in enumerate(zip([0, *cut], [*cut, len(rows)], strict=True)):
        np.save(path / f"{number}.npy", rows[first:last].detach().numpy())
        parts.append(path / f"{number}.npy")
    return tables.open(parts)


def in_file(model, path, cut=None):
    return model.with_entity(table_of(model.entity, path, cut))


def same(found, expected):
    pairs = [(found, expected)]
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        pairs = list(zip(found.values(), expected.values(), strict=True))
    for one, other in pairs:
        assert one.sides == other.sides
        for kind in ("greater", "equal", "num_candidates"):
            assert torch.equal(getattr(one, kind), getattr(other, kind)), kind
            assert torch.equal(getattr(one.raw, kind), getattr(other.raw, kind)), kind


def rotate(path):
    model = MODELS["rotate"](N, R, D, 0)
    return model, in_file(model, path)
