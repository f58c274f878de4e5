"""The filters of several crops in one pass, against each crop's own by autograd."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kgfast.models import filters
from kgfast.models.filters import filters_of

DIM, ROWS = 8, 11
WIDTHS = [3, 5, 8]


def operands(planes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS, planes * DIM, generator=generator, dtype=dtype)
    matrix = torch.randn(planes * DIM, DIM, generator=generator, dtype=dtype)
    return rows.requires_grad_(), matrix.requires_grad_()


def one_by_one(rows, matrix, planes):
    results = []
    for width in WIDTHS:
        columns = torch.cat([torch.arange(width) + p * DIM for p in range(planes)])
        product = rows[:, columns] @ matrix[columns, :width]
        norm = torch.linalg.vector_norm(product, dim=1, keepdim=True)
        crop = product / norm.clamp_min(filters.SMALLEST_NORM) + 1
        results.append(crop)
    return results


@pytest.fixture(params=["one chunk", "chunks of a few rows"])
def chunks(request, monkeypatch):
    if request.param != "one chunk":
        monkeypatch.setitem(filters._CHUNK, "cpu", 4 * DIM)  # 2 of rows with two planes


@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("used", [(0, 1, 2), (1,), (0, 2), (2,)])
def test_values_and_gradients(planes, used, chunks):
    rows, matrix = operands(planes)
    found = filters_of(rows, matrix, WIDTHS, DIM)
    expected = one_by_one(rows, matrix, planes)
    torch.testing.assert_close([*found], expected)
    weights = [torch.randn_like(it) for it in expected]
    gradients = [
        torch.autograd.grad(sum((weights[i] * it[i]).sum() for i in used), (rows, matrix))
        for it in (found, expected)
    ]
    torch.testing.assert_close(*gradients)


def test_a_row_without_a_norm(chunks):
    rows, matrix = operands(2)
    with torch.no_grad():
        rows[3] = 0.0
        rows[4] *= 1e-16  # below the smallest norm
    found = filters_of(rows, matrix, WIDTHS, DIM)
    expected = one_by_one(rows, matrix, 2)
    assert torch.equal(found[2][3], torch.ones(DIM, dtype=torch.float64))
    gradients = [torch.autograd.grad(it[2].sum(), (rows, matrix)) for it in (found, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("needed", ["rows", "matrix"])
def test_only_what_is_needed(needed):
    rows, matrix = operands(2)
    (rows if needed == "matrix" else matrix).requires_grad_(False)
    leaf = rows if needed == "rows" else matrix
    found, expected = (
        torch.autograd.grad(it[1].square().sum(), leaf)
        for it in (filters_of(rows, matrix, WIDTHS, DIM), one_by_one(rows, matrix, 2))
    )
    torch.testing.assert_close(found, expected)


class Multiplications(TorchDispatchMode):
    """Counts those of matrix products."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm_):
            left, right = args[-2:]
            self.count += left.shape[0] * left.shape[1] * right.shape[1]
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("widths", [WIDTHS, [DIM]])
def test_all_crops_cost_as_much_as_the_widest(widths):
    rows, matrix = operands(2)
    with Multiplications() as made:
        sum(it.sum() for it in filters_of(rows, matrix, widths, DIM)).backward()
    assert made.count == 3 * ROWS * 2 * DIM * DIM


def test_float32():
    """Filters in float32 are those in float64 of the same numbers, rounded once."""
    rounded = operands(2, torch.float32)
    exact = [it.detach().double().requires_grad_() for it in rounded]
    weights = [torch.randn(ROWS, width) for width in WIDTHS]

    def gradients(results, leaves):
        weighed = [
            (it.to(made.dtype) * made).sum() for it, made in zip(weights, results, strict=True)
        ]
        return torch.autograd.grad(sum(weighed), leaves)

    found = gradients(filters_of(*rounded, WIDTHS, DIM), rounded)
    expected = gradients(one_by_one(*exact, 2), exact)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == torch.float32
        assert (mine.double() - theirs).abs().max() <= 1e-5 * theirs.abs().max()
