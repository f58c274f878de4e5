"""The oracle of scores and losses with gradients: dense formulas that torch differentiates.

Float64 says what is right; the same formula in float32 says how far rounding alone may lead.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fuzz.case import expect

RELATIVE = 1e-5
SMALLEST = 1e-15  # a modulus of zero may come out as 2^-62, and there may be 130 of them
CANCELLING = 8  # roundings of numbers that cancel, both sides' together
Formula = Callable[..., Tensor]
_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class OfScores:
    """A formula ``rows`` of the ``scores`` of tensors, which go through an exponential."""

    scores: Formula
    rows: Formula

    def __call__(self, *tensors: Tensor | None) -> Tensor:
        return self.rows(self.scores(*tensors))

    def largest(self, *tensors: Tensor | None) -> float:
        found = self.scores(*tensors).detach()
        return float(found.abs().max()) if found.numel() else 0.0

    def cancelling(self, grad: Tensor, *tensors: Tensor | None) -> list[float]:
        """Return the size of the numbers that add up to the gradient of each tensor.

        A score's gradient in cross entropy is ``p - y``, which adds up to 0 over the candidates.
        """
        leaves = [None if it is None else _leaf(it, it.requires_grad, None) for it in tensors]
        found = self.scores(*leaves)
        own = found.detach().requires_grad_()
        self.rows(own).backward(grad)
        if found.requires_grad and own.grad is not None:
            found.backward(own.grad.abs())
        grads = [None if it is None else it.grad for it in leaves]
        return [0.0 if it is None or not it.numel() else float(it.abs().max()) for it in grads]


def check(
    name: str,
    call: Formula,
    formula: Formula,
    tensors: Sequence[Tensor | None],
    needs: Sequence[bool],
    grad_of: Callable[[tuple[int, ...]], Tensor],
) -> None:
    """Compare a call with its formula, both given ``tensors``: values and gradients.

    Float64 queries, the first of the tensors, are computed in float64.
    ``grad_of`` draws the gradient of a result of some shape, float64.
    """
    own = [_leaf(it, need, None) for it, need in zip(tensors, needs, strict=True)]
    double = [_leaf(it, need, torch.float64) for it, need in zip(tensors, needs, strict=True)]
    single = [_leaf(it, need, torch.float32) for it, need in zip(tensors, needs, strict=True)]
    found, wanted, plain = call(*own), formula(*double), formula(*single)
    grad = grad_of(tuple(wanted.shape))
    precise = own[0] is not None and own[0].dtype == torch.float64
    largest = formula.largest(*double) if isinstance(formula, OfScores) else 0.0
    # A loss is a difference of numbers as large as a score, which is taken in float64; a total is
    # the sum of a query's each.
    terms = 1 if wanted.ndim or double[0] is None else len(double[0])
    remains = CANCELLING * 2.0**-53 * largest * terms
    close(name, found, wanted, plain, precise, largest, remains)
    if not any(needs):
        return
    expect(found.requires_grad, f"{name} does not require a gradient")
    cancelling = [0.0] * len(double)
    if isinstance(formula, OfScores):
        cancelling = formula.cancelling(grad, *double)
    for result in (found, wanted, plain):
        if result.requires_grad:
            result.backward(grad.to(result.dtype))
    for place, (mine, right, rough) in enumerate(zip(own, double, single, strict=True)):
        if mine is None or right is None or rough is None or not needs[place]:
            continue
        expect(mine.grad is not None, f"{name}: argument {place} has no gradient")
        got = mine.grad.to_dense() if mine.grad.is_sparse else mine.grad
        expect(got.dtype == mine.dtype, f"{name}: gradient {place} is {got.dtype}")
        none = torch.zeros_like(right)
        # Roundings of the numbers, and of the exponents that the numbers come from.
        roundings = CANCELLING * (1 + largest) * (2.0**-53 if precise else 2.0**-24)
        remains = roundings * cancelling[place]
        if mine.numel() == 1:  # a sum of all gradients that come in, which float32 has rounded
            remains += _relative(precise, largest) * float(grad.abs().sum())
        close(
            f"{name}: gradient {place}",
            got,
            none if right.grad is None else right.grad,
            none if rough.grad is None else rough.grad,
            precise,
            largest,
            remains,
        )


def _leaf(values: Tensor | None, need: bool, dtype: torch.dtype | None) -> Tensor | None:
    if values is None:
        return None
    leaf = values.detach() if dtype is None else values.detach().to(dtype, copy=True)
    return leaf.requires_grad_(need)


def close(
    name: str,
    found: Tensor,
    exact: Tensor,
    plain: Tensor,
    precise: bool = False,
    largest: float = 0.0,
    remains: float = 0.0,
) -> None:
    """Within 1e-5 of the largest number, four times plain float32's error, and the last roundings.

    Where scores go through an exponential, an error of ``16 u`` of the ``largest`` of them is one
    of the result. ``remains`` is what the roundings of numbers that cancel leave of them: the
    result may be smaller than that.
    """
    expect(
        found.shape == exact.shape, f"{name}: shape {list(found.shape)}, not {list(exact.shape)}"
    )
    if not exact.numel():
        return
    rounds = found.dtype in _HALVES or (precise and found.dtype == torch.float32)
    info = torch.finfo(found.dtype)
    # A gradient is rounded, and once more when it is scaled by one that is rounded itself.
    eps = 2 * info.eps if rounds else 0.0
    smallest = SMALLEST + (info.tiny * info.eps if rounds else 0.0)
    exact, found, plain = (it.detach().double() for it in (exact, found, plain))
    rough = 0.0 if precise else float((plain - exact).abs().max())
    relative = _relative(precise, largest) * float(exact.abs().max())
    allowed = relative + smallest + 4 * rough + remains
    error = (found - exact).abs() - eps * exact.abs()
    # Numbers beyond a dtype are infinite in it.
    is_infinite = found.isinf() & (exact.abs() > (1 - eps) * info.max) & (found * exact > 0)
    error = error.masked_fill(is_infinite, 0.0)
    where = int(error.argmax())
    expect(
        bool((error <= allowed).all()),
        f"{name}: {found.flatten()[where]:.6g}, the formula says {exact.flatten()[where]:.6g}; "
        f"allowed is {allowed:.2g}",
    )


def _relative(precise: bool, largest: float) -> float:
    return 1e-12 if precise else RELATIVE + 16 * 2.0**-24 * largest
