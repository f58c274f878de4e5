"""``Ranks.tiers``: pairs of a call by what decided them, which no other call changes."""

import threading

import pytest
import torch

import kgfast
from kgfast import distributed
from kgfast.eval import TierPairs
from kgfast.kernels import cpu
from kgfast.kernels.cpu import tiers
from support.shared_out import FileTable
from support.tiers import needs_tier

ENTITIES, RELATIONS = 4_200, 3
pytestmark = pytest.mark.skipif(not cpu.is_available(), reason="the extension is not built")


@pytest.fixture(scope="module")
def planted():
    """Return a model whose targets are nearer than almost all candidates, and its triples."""
    model = kgfast.RotatE.init(ENTITIES, RELATIONS, 64, seed=0).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    limits = torch.tensor([ENTITIES, RELATIONS, ENTITIES])
    triples = (torch.rand(120, 3, generator=generator) * limits).long()
    heads, relations, tails = triples.T
    model.entity[tails] = 1.01 * model.queries(heads, relations, "tail")
    return model, triples


def all_pairs(triples, count=ENTITIES):
    """Count pairs of distinct queries and candidates, on both sides."""
    queries = [triples[:, columns].unique(dim=0) for columns in ([0, 1], [1, 2])]
    return sum(map(len, queries)) * count


def without_tiers(total, canonical=0):
    return TierPairs(total, 0, 0, canonical)


@needs_tier("int8")
def test_the_tier_decides_most_pairs_of_dot_products(monkeypatch):
    monkeypatch.setenv("KGFAST_TIERS", "int8")
    model = kgfast.DistMult.init(ENTITIES, 1, 128, seed=0).requires_grad_(False)
    triples = torch.arange(ENTITIES)[:256, None].expand(256, 3) * torch.tensor([1, 0, 2])
    found = kgfast.rank(model, triples, sides=("tail",)).tiers
    assert found.total == 256 * ENTITIES
    assert 0.9 * found.total < found.decided <= found.swept <= found.total
    assert found.canonical < found.float32 == found.total - found.decided


def test_no_tier_decides_anything_without_tiers(monkeypatch, planted):
    model, triples = planted
    monkeypatch.setenv("KGFAST_TIERS", "none")
    found = kgfast.rank(model, triples)
    total = all_pairs(triples)
    assert found.tiers == without_tiers(total, found.tiers.canonical)
    assert found.tiers.canonical < total // 100


def test_canonical_scores_are_counted(monkeypatch):
    """A table of equal rows leaves all pairs open, but those of targets with themselves."""
    model = kgfast.TransE(torch.ones(100, 4), torch.zeros(1, 4))
    monkeypatch.setenv("KGFAST_TIERS", "none")
    found = kgfast.rank(model, [(0, 0, 1), (2, 0, 3)], sides=("tail",)).tiers
    assert found == without_tiers(100, 2 * 99)  # both queries are equal rows


def test_parts_add_up(monkeypatch, planted):
    """From a file and in ranges: the pairs of the same sweeps."""
    model, triples = planted
    monkeypatch.setenv("KGFAST_TIERS", "none")
    expected = kgfast.rank(model, triples).tiers
    of_file = kgfast.RotatE(FileTable(model.entity), model.relation)
    limit = model.entity.nbytes // 2
    ranges = [(0, 1_000), (1_000, 1_000), (1_000, ENTITIES)]
    parts = [distributed.count_range(model, triples, *span) for span in ranges]
    for found in (kgfast.rank(of_file, triples, max_memory=limit), distributed.merge(parts)):
        assert found.tiers.total == found.tiers.float32 == expected.total


def test_each_crop_is_counted(monkeypatch, planted):
    model, triples = planted
    monkeypatch.setenv("KGFAST_TIERS", "none")
    nested = kgfast.MED(model, [16, 64])
    groups = kgfast.rank(nested, triples, dims=[16, 64])
    assert {ranks.tiers.total for ranks in groups.values()} == {2 * all_pairs(triples)}


def test_two_threads_count_their_own_pairs(planted):
    model, triples = planted
    sizes, found, start = (5, 60), {}, threading.Barrier(2)

    def count(size):
        start.wait()
        found[size] = [kgfast.rank(model, triples[:size]).tiers.total for _ in range(5)]

    threads = [threading.Thread(target=count, args=(size,)) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {size: [all_pairs(triples[:size])] * 5 for size in sizes}


def test_none_where_nothing_is_counted(planted):
    model, triples = planted
    with kgfast.use_backend("reference"):
        assert kgfast.rank(model, triples[:2]).tiers is None
    ranks = kgfast.rank(model, triples)
    assert ranks.side("head").tiers is None
    assert kgfast.rank(model, triples[:0]).tiers is None
    listed = torch.arange(10).expand(len(triples), 10)
    assert kgfast.rank(model, triples, candidate_ids=listed).tiers is None
    known = kgfast.KnownTriples(triples)
    filtered = kgfast.rank(model, triples, known=known)
    assert filtered.tiers == filtered.raw.tiers == ranks.tiers


def test_counts_within_counts_are_those_of_both(planted):
    model, triples = planted
    with tiers.counted_pairs() as pairs:
        first, second = (kgfast.rank(model, part).tiers for part in triples.split(60))
    assert TierPairs.of(pairs).total == first.total + second.total


def test_it_prints_and_is_plain():
    found = TierPairs(2_000, 1_500, 1_200, 3)
    assert repr(found).splitlines()[1] == "int8      1,200  60.00% decided, of 1,500 swept"
    assert found.as_dict() == {"total": 2_000, "swept": 1_500, "decided": 1_200, "canonical": 3}
