"""Comparison of losses and gradients with dense formulas.

Float64 says what is right; the same formula in float32 says how far rounding alone may lead.
"""

from torch import Tensor

from fuzz.case import expect

RELATIVE = 1e-5
SMALLEST = 1e-15  # a modulus of zero may come out as 2^-62, and there may be 130 of them
CANCELLING = 8  # roundings of numbers that cancel, both sides' together


def close(
    name: str,
    found: Tensor,
    exact: Tensor,
    plain: Tensor,
    largest: float = 0.0,
    remains: float = 0.0,
) -> None:
    """Within 1e-5 of the largest number, four times plain float32's error, and the last roundings.

    Where scores go through an exponential, an error of ``16 u`` of the ``largest`` of them is one
    of the result. ``remains`` is what the roundings of numbers that cancel leave of them: the
    result may be smaller than that.
    """
    shapes = list(found.shape), list(exact.shape)
    expect(shapes[0] == shapes[1], f"{name}: shape {shapes[0]}, not {shapes[1]}")
    if not exact.numel():
        return
    exact, found, plain = (it.detach().double() for it in (exact, found, plain))
    relative = (RELATIVE + 16 * 2.0**-24 * largest) * float(exact.abs().max())
    allowed = relative + SMALLEST + 4 * float((plain - exact).abs().max()) + remains
    error = (found - exact).abs()
    where = int(error.argmax())
    expect(
        bool((error <= allowed).all()),
        f"{name}: {found.flatten()[where]:.6g}, the formula says {exact.flatten()[where]:.6g}; "
        f"allowed is {allowed:.2g}",
    )
