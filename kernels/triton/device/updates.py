"""Steps of optimizers on rows of a table, in place, and sums of rows that have one id.

Cost model: memory alone. Per number of Adam 28 bytes: the row and both moments are read and written
once, the gradient is read once. Adagrad takes 20 bytes. Nothing is added up, so bits depend only on
the numbers of the row. A sum reads each row once and writes as many, in a fixed order.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class GradientRows(NamedTuple):
    """Gradients of some rows of a table."""

    ptr: Any  # [count][width] float32
    ids: Any  # [count] int64, distinct, or the first of equal neighbours counts; None: 0, 1, ...
    width: int


@triton.jit
def number_of(source):
    """Return a number of the host, or read the float32 number that a pointer beside it names.

    A step that a graph replays reads numbers by pointers.
    """
    number, pointer = source
    if pointer is not None:
        number = tl.load(pointer)
    return number


@triton.jit
def places_of(gradients, count, num_rows, TILE: tl.constexpr):
    """Return offsets in the gradient and in the table; mask ids out of range, and repeats."""
    ROWS: tl.constexpr = TILE.rows
    COLUMNS: tl.constexpr = TILE.lanes
    width = gradients.width
    place = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = place
    is_inside = place < count
    if gradients.ids is not None:
        row = tl.load(gradients.ids + place, mask=place < count, other=0)
        is_inside &= row != tl.load(
            gradients.ids + place - 1, mask=is_inside & (place > 0), other=-1
        )
    is_inside &= (row >= 0) & (row < num_rows)
    mask = is_inside[:, None] & (k < width)[None, :]
    return place[:, None] * width + k[None, :], row[:, None] * width + k[None, :], mask


@triton.jit(do_not_specialize=["count", "width"])
def sum_rows(p_ids, p_order, p_rows, p_total, count, width, TILE: tl.constexpr):
    """Sum the rows of a run of equal ids, for the first id; write zeros for the rest."""
    ROWS: tl.constexpr = TILE.rows
    COLUMNS: tl.constexpr = TILE.lanes
    SUM: tl.constexpr = tl.float64 if p_rows.dtype.element_ty == tl.float64 else tl.float32
    place = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    m_column = k < width
    id = tl.load(p_ids + place)
    total = tl.zeros((COLUMNS,), SUM)
    first = place
    goes_on = (place == 0) | (tl.load(p_ids + tl.maximum(place - 1, 0)) != id)
    while goes_on:
        here = first + tl.arange(0, ROWS)
        own = (here < count) & (tl.load(p_ids + here, mask=here < count, other=-1) == id)
        row = tl.load(p_order + here, mask=own, other=0)
        mask = own[:, None] & m_column[None, :]
        values = tl.load(p_rows + row[:, None] * width + k[None, :], mask=mask, other=0.0)
        total += tl.sum(values.to(SUM), 0)
        first += ROWS
        goes_on = tl.sum(own.to(tl.int32), 0) == ROWS
    p_own = p_total + place * width + k
    tl.store(p_own, total.to(p_total.dtype.element_ty), mask=m_column)


@triton.jit(do_not_specialize=["count", "num_rows"])
def update_adam(tables, gradients, numbers, count, num_rows, TILE: tl.constexpr):
    """Do a step of Adam (Kingma & Ba 2015, algorithm 1) on the table and both moments.

    ``shares`` are those of a gradient in the moments, 1 - beta; ``logs`` those of the betas.
    """
    p_table, p_first, p_second = tables
    lr, eps, weight_decay, number, shares, logs = numbers
    first_share, second_share = shares
    first_log, second_log = logs
    o_gradient, o_table, mask = places_of(gradients, count, num_rows, TILE)
    x = tl.load(p_table + o_table, mask=mask, other=0.0)
    m = tl.load(p_first + o_table, mask=mask, other=0.0)
    v = tl.load(p_second + o_table, mask=mask, other=0.0)
    g = tl.load(gradients.ptr + o_gradient, mask=mask, other=0.0) + weight_decay * x
    m += first_share * (g - m)
    v += second_share * (g * g - v)
    step = tl.full((), number_of(number), tl.float64)
    first = (1.0 - tl.exp(step * first_log)).to(tl.float32)  # bias corrections: 1 - beta ** step
    second = (1.0 - tl.exp(step * second_log)).to(tl.float32)
    tl.store(p_first + o_table, m, mask=mask)
    tl.store(p_second + o_table, v, mask=mask)
    change = number_of(lr) / first * m / (tl.sqrt(v / second) + eps)
    tl.store(p_table + o_table, x - change, mask=mask)


@triton.jit(do_not_specialize=["count", "num_rows"])
def update_adagrad(tables, gradients, numbers, count, num_rows, TILE: tl.constexpr):
    """Do a step of Adagrad (Duchi et al. 2011) on the table and the sums of squares."""
    p_table, p_sum = tables
    lr, eps, weight_decay = numbers
    o_gradient, o_table, mask = places_of(gradients, count, num_rows, TILE)
    x = tl.load(p_table + o_table, mask=mask, other=0.0)
    g = tl.load(gradients.ptr + o_gradient, mask=mask, other=0.0) + weight_decay * x
    total = tl.load(p_sum + o_table, mask=mask, other=0.0) + g * g
    tl.store(p_sum + o_table, total, mask=mask)
    tl.store(p_table + o_table, x - number_of(lr) * g / (tl.sqrt(total) + eps), mask=mask)
