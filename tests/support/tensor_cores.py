"""Tensor cores in Triton's interpreter: products of bfloat16, cut off as hardware cuts them.

NVIDIA's cores are known to work so (Fasi, Higham, Mikaitis and Pranesh, PeerJ Comput. Sci. 7:e330,
2021; arXiv:2512.07004 for the H100): the exact products of a group and the accumulator are aligned
to the largest of them, cut to ``bits`` bits towards zero, added exactly, and the sum is cut to
float32.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def cut(values: Floats, top: Floats, bits: int) -> Floats:
    """Cut ``values`` towards zero to a multiple of the last of ``bits`` bits that ``top`` has."""
    _, exponent = np.frexp(np.abs(top))  # top < 2**exponent
    unit = np.ldexp(1.0, exponent - bits)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(top == 0, values, np.trunc(values / unit) * unit)


def multiply(a: Any, b: Any, start: Any, *, group: int = 16, bits: int = 25) -> NDArray[np.float32]:
    """Add the products of ``a [M, K]`` and ``b [K, N]`` to ``start``, a group at a time."""
    total = np.asarray(start, np.float64)
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    for k in range(0, a.shape[1], group):
        with np.errstate(invalid="ignore", over="ignore"):
            addends = a[:, k : k + group, None] * b[None, k : k + group]  # [M, group, N], exact
            top = np.maximum(np.abs(addends).max(1), np.abs(total))
            parts = cut(addends, top[:, None], bits).sum(1) + cut(total, top, bits)
            cut_sum = cut(parts, parts, 24)
            plain = addends.sum(1) + total
        is_finite = np.isfinite(top) & (np.abs(cut_sum) < 2.0**128)
        total = np.where(
            is_finite, cut_sum, np.where(np.isfinite(plain), np.copysign(np.inf, plain), plain)
        )
    with np.errstate(over="ignore"):
        return total.astype(np.float32)


def widened(bits: Any) -> NDArray[np.float32]:
    """Widen bfloat16, which the interpreter keeps as ``uint16``, to float32."""
    wide: NDArray[np.float32] = (np.asarray(bits, np.uint32) << 16).view(np.float32)
    return wide


@contextmanager
def tensor_cores(group: int = 16, bits: int = 25) -> Iterator[list[int]]:
    """Emulate ``tl.dot`` of bfloat16 in the interpreter; yield the number of calls."""
    from triton.runtime import interpreter

    calls, plain = [0], interpreter.InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
        if not a.data.dtype == b.data.dtype == np.uint16:  # the interpreter's form of bfloat16
            return plain(self, a, b, d, *options)
        calls[0] += 1
        product = multiply(widened(a.data), widened(b.data), d.data, group=group, bits=bits)
        return interpreter.TensorHandle(product, d.dtype.scalar)

    with patch.object(interpreter.InterpreterBuilder, "create_dot", create_dot):
        yield calls
