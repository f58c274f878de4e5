"""Angles and torsions of points, with gradients that are finite everywhere.

An angle has no gradient where its points are collinear, and is undefined where two of them
coincide. The usual formulas (acos of a cosine, norms of cross products) give NaN there, which one
optimizer step spreads over all weights. Here the gradient is 0 there.
"""

import math

import torch
from torch import Tensor

_NOISE = 8.0  # sines below so many units of rounding count as collinear points


def angle(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return the angle at ``b`` between ``a`` and ``c``, 0 to pi.

    Collinear points have the angle 0 or pi with gradient 0. If ``b`` equals ``a`` or ``c``, the
    angle is 0 with gradient 0.

    Parameters
    ----------
    a, b, c : Tensor [..., 3]
        Points, of floats; give points of a plane a third coordinate of 0.

    Returns
    -------
    Tensor [...]

    Raises
    ------
    ValueError
        If points have not three coordinates.

    Examples
    --------
    >>> x, y, origin = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 0]])
    >>> angle(x, origin, y)
    tensor(1.5708)
    >>> angle(x, origin, origin)
    tensor(0.)
    """
    _check(a, b, c)
    first, second = _scaled(a - b), _scaled(c - b)
    cosine = (first * second).sum(-1)
    cross = torch.linalg.cross(first, second)
    in_line = _in_line(cross, first, second)
    sine = cross.square().sum(-1).masked_fill(in_line, 1.0).sqrt()
    regular = torch.atan2(sine, cosine.masked_fill(in_line, 1.0))
    straight = torch.zeros_like(regular).masked_fill(cosine < 0, math.pi)
    return torch.where(in_line, straight, regular)


def torsion(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Return the dihedral angle about ``b -> c`` from ``a`` to ``d``, -pi to pi.

    If three neighbours are collinear or two coincide, there is no plane, and the angle is 0 with
    gradient 0. The sign is that of chemistry (IUPAC): clockwise, from ``b`` to ``c``, is positive.

    Parameters
    ----------
    a, b, c, d : Tensor [..., 3]
        Points, of floats.

    Returns
    -------
    Tensor [...]

    Raises
    ------
    ValueError
        If points have not three coordinates.

    Examples
    --------
    >>> a, b, c, d = torch.tensor([[1.0, 0, 0], [0, 0, 0], [0, 0, 1], [0, 1, 1]])
    >>> torsion(a, b, c, d)
    tensor(1.5708)
    """
    _check(a, b, c, d)
    first, axis, last = _scaled(b - a), _scaled(c - b), _scaled(d - c)
    before, after = torch.linalg.cross(first, axis), torch.linalg.cross(axis, last)
    flat = _in_line(before, first, axis) | _in_line(after, axis, last)
    cosine = (before * after).sum(-1)
    sine = torch.linalg.vector_norm(axis, dim=-1) * (first * after).sum(-1)
    return torch.atan2(sine.masked_fill(flat, 0.0), cosine.masked_fill(flat, 1.0))


def _check(*points: Tensor) -> None:
    for point in points:
        if point.ndim == 0 or point.shape[-1] != 3:
            raise ValueError(f"points must be [..., 3]; got {tuple(point.shape)}")


def _scaled(vector: Tensor) -> Tensor:
    """Scale vectors to about length 1, so that no square under- or overflows.

    An angle does not depend on the length of sides, so the factor carries no gradient.
    """
    size = vector.detach().abs().amax(-1, keepdim=True)
    return vector / size.masked_fill(size == 0, 1.0)


def _in_line(cross: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return a mask of cross products that are not larger than their rounding."""
    with torch.no_grad():
        least = (_NOISE * torch.finfo(cross.dtype).eps) ** 2
        sides = first.square().sum(-1) * second.square().sum(-1)
        return cross.square().sum(-1) <= least * sides
