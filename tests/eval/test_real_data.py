"""The whole of it on WN18RR and FB15k-237, where they are at hand."""

import pytest
import torch

import kgfast
from support.paths import DATA


@pytest.mark.parametrize("name", ["wn18rr", "fb15k-237"])
def test_a_sample_of_real_triples_ranks_as_the_reference_says(name):
    if not (DATA / name).exists():
        pytest.skip(f"no {name} at {DATA.name}/ beside the repository")
    dataset = kgfast.datasets.load(DATA / name)
    model = kgfast.RotatE.init(dataset.num_entities, dataset.num_relations, 24, seed=0)
    sample = dataset.test.hrt[:: len(dataset.test) // 20]
    ranks = kgfast.rank(model, sample, known=dataset.known())
    with kgfast.use_backend("reference"):
        expected = kgfast.rank(model, sample, known=dataset.known())
    assert torch.equal(ranks.greater, expected.greater)
    assert torch.equal(ranks.equal, expected.equal)
    assert torch.equal(ranks.num_candidates, expected.num_candidates)
    assert bool((ranks.num_candidates < dataset.num_entities).any())
