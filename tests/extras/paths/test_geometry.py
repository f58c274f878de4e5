"""Angles and torsions: their values, and gradients where there are none."""

import math

import pytest
import torch

from kgfast.extras.paths import angle, torsion

FUNCTIONS = {angle: 3, torsion: 4}


def points(*rows, dtype=torch.float64):
    return [torch.tensor(row, dtype=dtype, requires_grad=True) for row in rows]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda it: it.__name__)
def test_gradients(function):
    generator = torch.Generator().manual_seed(0)
    given = [
        torch.randn(5, 3, dtype=torch.float64, generator=generator, requires_grad=True)
        for _ in range(FUNCTIONS[function])
    ]
    assert torch.autograd.gradcheck(function, given)


def test_angles_are_those_of_the_cosine():
    a, b, c = torch.randn(3, 50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    cosine = torch.nn.functional.cosine_similarity(a - b, c - b)
    torch.testing.assert_close(angle(a, b, c), torch.acos(cosine))


@pytest.mark.parametrize("turn", [-3.0, -1.2, -1e-6, 0.0, 0.4, 2.9, math.pi])
def test_torsions_are_turns_about_the_axis(turn):
    """The last point turns clockwise about z, seen from below: from x towards y."""
    a, b, c = [2.0, 0.0, 0.5], [0.0, 0.0, 0.0], [0.0, 0.0, 3.0]
    d = [math.cos(turn), math.sin(turn), 4.0]
    found = float(torsion(*points(a, b, c, d)).detach())
    assert found == pytest.approx(turn, abs=1e-12)


def test_tiny_and_huge_points_have_the_same_angles():
    rows = [[1.0, 0.2, 0.1], [0.0, 0.0, 0.0], [0.3, 1.0, 0.0], [0.5, 0.4, 1.0]]
    for scale in (1e-30, 1.0, 1e30):
        scaled = [torch.tensor(row) * scale for row in rows]
        assert float(angle(*scaled[:3])) == pytest.approx(
            float(angle(*map(torch.tensor, rows[:3])))
        )
        assert float(torsion(*scaled)) == pytest.approx(float(torsion(*map(torch.tensor, rows))))


X, Y, O, LINE = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.1, 0.2, 0.3]  # noqa: E741


@pytest.mark.parametrize(
    ("function", "rows", "value"),
    [
        (angle, (X, O, O), 0.0),
        (angle, (O, O, O), 0.0),
        (angle, (X, O, [3.0, 0.0, 0.0]), 0.0),
        (angle, (X, O, [-3.0, 0.0, 0.0]), math.pi),
        (angle, (LINE, O, [-0.7, -1.4, -2.1]), math.pi),  # in a line but for rounding
        (torsion, (X, X, X, X), 0.0),
        (torsion, (X, O, O, Y), 0.0),
        (torsion, (X, O, [-1.0, 0.0, 0.0], Y), 0.0),
        (torsion, (Y, O, LINE, [0.7, 1.4, 2.1]), 0.0),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_degenerate_points_have_gradient_zero(function, rows, value, dtype):
    given = points(*rows, dtype=dtype)
    found = function(*given)
    assert float(found.detach()) == float(torch.tensor(value, dtype=dtype))
    found.backward()
    for point in given:
        assert torch.equal(point.grad, torch.zeros_like(point))


def test_points_of_a_plane_are_refused():
    flat = torch.zeros(4, 2)
    for function, count in ((angle, 3), (torsion, 4)):
        with pytest.raises(ValueError, match=r"points must be \[\.\.\., 3\]; got \(4, 2\)"):
            function(*[flat] * count)
