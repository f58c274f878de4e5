"""Gradients of rows: the public form, sums of them, and rows that are read together."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgfast import RowGradients
from kgfast.ops.row_gradients import add_to, merge, read_rows
from support.engines import examples


def test_a_coalesced_gradient_is_viewed_as_it_is():
    ids, rows = torch.tensor([1, 4]), torch.ones(2, 3)
    gradient = RowGradients(ids, rows).to_sparse(6)
    assert gradient.is_coalesced()
    assert gradient.shape == (6, 3)
    found = RowGradients.of(gradient)
    assert found.ids.data_ptr() == ids.data_ptr()
    assert found.rows.data_ptr() == rows.data_ptr()


def test_a_sum_of_gradients_is_coalesced():
    one, other = (RowGradients(torch.tensor(ids), torch.ones(2, 3)) for ids in ([1, 4], [0, 4]))
    found = RowGradients.of(one.to_sparse(6) + other.to_sparse(6))
    assert found.ids.tolist() == [0, 1, 4]
    assert found.rows[:, 0].tolist() == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("gradient", [torch.ones(2, 3), None, torch.ones(2, 3).to_sparse_csr()])
def test_what_is_no_sparse_gradient_is_named(gradient):
    with pytest.raises(TypeError, match=r"gradient must be torch\.sparse_coo"):
        RowGradients.of(gradient)


def test_gradients_whose_rows_are_sparse_are_named():
    with pytest.raises(ValueError, match="one sparse axis; got 2"):
        RowGradients.of(torch.ones(2, 3).to_sparse())


@given(seed=st.integers(0, 999), with_first=st.booleans())
@examples(40)
def test_merged_gradients_are_the_sum_with_each_row_once(seed, with_first):
    generator = torch.Generator().manual_seed(seed)
    entities, parts, first = 12, [], None
    for _ in range(3):
        count = int(torch.randint(0, 9, (1,), generator=generator))
        ids = torch.randint(entities, (count,), generator=generator)
        parts.append((ids, torch.randint(-4, 5, (count, 3), generator=generator).float()))
    expected = torch.zeros(entities, 3)
    if with_first:
        ids = torch.randperm(entities, generator=generator)[:5].sort().values
        rows = torch.randint(-4, 5, (5, 3), generator=generator).float()
        first = RowGradients(ids, rows)
        expected[ids] += rows
    for ids, rows in parts:
        for row, gradient in zip(ids.tolist(), rows, strict=True):
            expected[row] += gradient
    named = {*torch.cat([ids for ids, _ in parts]).tolist()}
    named |= set() if first is None else {*first.ids.tolist()}
    merged = merge(first, parts)
    assert merged.ids.tolist() == sorted(named)
    total = torch.zeros(entities, 3)
    add_to(total, [(merged.ids, merged.rows)])
    assert torch.equal(total, expected)


def test_a_first_part_that_has_all_rows_stays_where_it_is():
    first = RowGradients(torch.tensor([1, 3, 5]), torch.zeros(3, 2))
    assert merge(first, [(torch.tensor([5, 1, 5]), torch.ones(3, 2))]) is first
    assert first.rows[:, 0].tolist() == [1.0, 0.0, 2.0]


def test_rows_that_are_read_together_leave_one_gradient():
    table = torch.arange(12.0).view(6, 2).requires_grad_()
    ids = torch.tensor([4, 0, 4]), torch.tensor([2]), torch.tensor([5])
    whole, repeated, once, unused = read_rows(table, *ids)
    assert torch.equal(whole, table)
    assert torch.equal(repeated, table[ids[0]])
    assert torch.equal(unused, table[ids[2]])
    (repeated.sum() + 3 * once.sum()).backward()
    found = RowGradients.of(table.grad)
    assert found.rows.data_ptr() == table.grad._values().data_ptr()
    assert found.ids.tolist() == [0, 2, 4]
    assert found.rows[:, 0].tolist() == [1.0, 3.0, 2.0]


def test_rows_that_nothing_is_made_of_leave_none():
    table = torch.ones(3, 2, requires_grad=True)
    _, rows = read_rows(table, torch.tensor([1]))
    (0 * table.sum()).backward()
    assert rows.requires_grad
    assert not bool(table.grad.any())
