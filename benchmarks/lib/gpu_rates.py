"""Triton kernels that keep one unit of a GPU busy: square roots, arithmetic of halves."""

import triton
import triton.language as tl

LANES = 1024  # numbers of a program of four warps: eight independent chains a thread


@triton.jit
def roots(p_out, turns, LANES: tl.constexpr):
    """Make ``turns`` square roots of each number."""
    lanes = tl.program_id(0) * LANES + tl.arange(0, LANES)
    values = lanes.to(tl.float32)
    for _ in range(turns):
        values = tl.sqrt(values + 1.0)
    tl.store(p_out + lanes, values)


@triton.jit
def halves(p_out, turns, LANES: tl.constexpr):
    """Bound two halves by a minimum and a maximum, ``turns`` times for each word."""
    lanes = tl.program_id(0) * LANES + tl.arange(0, LANES)
    words = lanes.to(tl.int32)
    for turn in range(turns):
        words = tl.inline_asm_elementwise(
            "{ .reg .b32 least; min.f16x2 least, $1, $2; max.f16x2 $0, least, $3; }",
            "=r,r,r,r",
            [words, 0x3C003C00 - turn, 0x2C002C00 + turn],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    tl.store(p_out + lanes, words.to(tl.float32))
