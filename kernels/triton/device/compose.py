"""Queries of training, made from rows of anchors and relations, and gradients.

Cost model: memory alone. A number of a query is read from two rows and written once; backward reads
three rows and writes two. A rotation takes one sine and one cosine per complex number each way.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from .arguments import RowView


class Composed(NamedTuple):
    """Constants for which a composition of complex numbers is compiled."""

    rotates: bool  # relations are phases
    conjugates: bool  # the relation


class Pair(NamedTuple):
    """Rows of anchors and of relations, or gradients."""

    anchors: RowView
    relations: RowView  # phases of a rotation


class Extent(NamedTuple):
    """Number of rows, features of each, and radians of one unit of a phase."""

    rows: int
    features: int
    unit: float


@triton.jit
def places_of(extent, TILE: tl.constexpr):
    """Return rows and features of a program's tile, and a mask."""
    ROWS: tl.constexpr = TILE.rows
    FEATURES: tl.constexpr = TILE.lanes
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    return row[:, None], k[None, :], (row < extent.rows)[:, None] & (k < extent.features)[None, :]


@triton.jit
def load_plane(rows, row, k, mask, PLANE: tl.constexpr):
    """Load one plane of rows, 0 where masked."""
    return tl.load(rows.ptr + row * rows.row + PLANE * rows.plane + k * rows.step, mask, 0.0)


@triton.jit
def store_plane(rows, row, k, mask, values, PLANE: tl.constexpr):
    tl.store(rows.ptr + row * rows.row + PLANE * rows.plane + k * rows.step, values, mask)


@triton.jit
def load_factor(relations, row, k, mask, extent, FORM: tl.constexpr):
    """Load the complex numbers that anchors are multiplied by."""
    re = load_plane(relations, row, k, mask, 0)
    if FORM.rotates:
        phase = re * extent.unit
        re = tl.cos(phase)
        im = tl.sin(phase)
    else:
        im = load_plane(relations, row, k, mask, 1)
    if FORM.conjugates:
        im = -im
    return re, im


@triton.jit
def compose(rows, out, extent, FORM: tl.constexpr, TILE: tl.constexpr):
    """Write queries: anchors times relations."""
    row, k, mask = places_of(extent, TILE)
    a_re = load_plane(rows.anchors, row, k, mask, 0)
    a_im = load_plane(rows.anchors, row, k, mask, 1)
    b_re, b_im = load_factor(rows.relations, row, k, mask, extent, FORM)
    store_plane(out, row, k, mask, a_re * b_re - a_im * b_im, 0)
    store_plane(out, row, k, mask, a_re * b_im + a_im * b_re, 1)


@triton.jit
def compose_backward(rows, grad, grads, extent, FORM: tl.constexpr, TILE: tl.constexpr):
    """Write the gradients of both rows, given the gradients of the queries."""
    row, k, mask = places_of(extent, TILE)
    a_re = load_plane(rows.anchors, row, k, mask, 0)
    g_re = load_plane(grad, row, k, mask, 0)
    a_im = load_plane(rows.anchors, row, k, mask, 1)
    g_im = load_plane(grad, row, k, mask, 1)
    b_re, b_im = load_factor(rows.relations, row, k, mask, extent, FORM)
    store_plane(grads.anchors, row, k, mask, g_re * b_re + g_im * b_im, 0)
    store_plane(grads.anchors, row, k, mask, g_im * b_re - g_re * b_im, 1)
    factor_re = g_re * a_re + g_im * a_im  # the gradient of b, before b is conjugated
    factor_im = g_im * a_re - g_re * a_im
    if FORM.rotates:  # the derivative of b by the phase is i b
        slope = factor_im * b_re - factor_re * b_im
        if FORM.conjugates:
            slope = -slope
        store_plane(grads.relations, row, k, mask, slope * extent.unit, 0)
    else:
        if FORM.conjugates:
            factor_im = -factor_im
        store_plane(grads.relations, row, k, mask, factor_re, 0)
        store_plane(grads.relations, row, k, mask, factor_im, 1)
