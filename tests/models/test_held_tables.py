"""Models of a table that is no tensor: the same queries, from the rows that it hands out."""

import pytest
import torch

from support.shared_out import N, model_of


@pytest.mark.parametrize("name", ["RotatE", "TransE", "DistMult", "ComplEx", "Reciprocal"])
def test_queries_are_made_of_the_rows_that_are_held(name):
    whole, part = model_of(name), model_of(name, (10, 40))
    asked = torch.tensor([39, 10, 12]), torch.tensor([0, 3, 3]), "tail"
    assert torch.equal(part.queries(*asked), whole.queries(*asked))
    assert (part.num_entities, part.dim) == (N, whole.dim)
    with pytest.raises(IndexError, match=r"must be among the stored rows, 10 \.\. 39; got 41"):
        part.queries(torch.tensor([41]), torch.tensor([0]), "tail")


def test_another_table_takes_its_place():
    part, rows = model_of("RotatE", (10, 40)), torch.randn(3, 8)
    local = part.with_entity(rows)
    assert local.entity is rows
    assert local.num_entities == 3
    assert part.num_entities == N
