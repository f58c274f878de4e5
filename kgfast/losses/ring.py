"""Losses of this process's rows with all processes' rows, which go round a ring.

At each step a process scores the present rows, sends these rows to the next process, and receives
rows from the previous process. Gradients travel behind the rows. After as many steps as there are
processes, rows and gradients are back home. A process stores two more batches of rows and one more
batch of gradients, for any number of processes.

Gradients are computed together with the value, for a gradient of 1 of every process's loss. If a
backward finds another gradient, which is rare, rows go round once more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from kgfast.kernels.checks import checks_values
from kgfast.ops.finite import check_rows

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_DTYPES = (torch.float32, torch.float64)
_NOT_MADE = torch.tensor(torch.nan, dtype=torch.float64, device="cpu")  # equals no weight
_FACTS = ("batch size", "width", "dtype", "gradients that are needed")

Pairs = tuple[Tensor, Tensor, Tensor, Tensor | None]


@dataclass(frozen=True)
class Ring:
    """Ring of processes, in which each sends its rows to the next."""

    group: "ProcessGroup"
    of_pairs: Callable[..., Tensor]  # the loss of rows, scale and bias; are_pairs= marks own texts
    need: Sequence[bool]  # gradients that are needed

    def around(self, pairs: Pairs, weight: Tensor | None = None) -> tuple[Tensor, list[Any]]:
        """Return the loss and the gradients; ``weight`` is the gradient of the loss, 1 if None."""
        image, text, scale, bias = pairs
        size = dist.get_world_size(self.group)
        total = torch.zeros((), dtype=image.dtype, device=image.device)
        sums: list[Any] = [None] * 4
        for step in range(size):
            arrival = self._pass_on(text) if step + 1 < size else None
            given = image, text, scale, bias
            loss, made = self._with_gradients(given, weight, are_pairs=step == 0)
            total += loss
            sums = [_added(one, other) for one, other in zip(made, sums, strict=True)]
            if arrival is not None:
                text = arrival()
            if sums[1] is not None:
                sums[1] = self._pass_on(sums[1])()
        return total, sums

    def gather(self, numbers: Tensor) -> list[list[float]]:
        """Return the numbers ``[K]`` of all processes, by rank."""
        parts = [torch.empty_like(numbers) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(parts, numbers, group=self.group)
        return [part.tolist() for part in parts]

    def _pass_on(self, rows: Tensor) -> Callable[[], Tensor]:
        """Begin to send rows to the next process; return a function that waits for new rows."""
        rank, size = dist.get_rank(self.group), dist.get_world_size(self.group)
        sent = rows.contiguous()
        room = torch.empty(sent.shape, dtype=sent.dtype, device=sent.device)
        to, source = (dist.get_global_rank(self.group, (rank + by) % size) for by in (1, size - 1))
        exchange = [
            dist.P2POp(dist.isend, sent, to, self.group),
            dist.P2POp(dist.irecv, room, source, self.group),
        ]
        requests = dist.batch_isend_irecv(exchange)

        def arrived() -> Tensor:
            for request in requests:
                request.wait()
            return room

        return arrived

    def _with_gradients(
        self, pairs: Pairs, weight: Tensor | None, *, are_pairs: bool
    ) -> tuple[Tensor, list[Any]]:
        """Return the loss of the present rows, and the gradients."""
        leaves = [
            None if it is None else it.detach().requires_grad_(needed)
            for it, needed in zip(pairs, self.need, strict=True)
        ]
        with torch.set_grad_enabled(any(self.need)):
            loss = self.of_pairs(*leaves, are_pairs=are_pairs)
        wanted = [it for it in leaves if it is not None and it.requires_grad]
        made = iter(torch.autograd.grad(loss, wanted, weight) if wanted else ())
        return loss.detach(), [next(made) if needed else None for needed in self.need]


def loss_of_ring(
    given: Sequence[Any],
    check: Callable[[], Pairs],
    of_pairs: Callable[..., Tensor],
    group: "ProcessGroup",
    *options: Any,
) -> Tensor:
    """Return the loss of this process's rows with all processes' rows.

    All processes raise if the arguments of one are wrong. Its error says how, and the errors of all
    other processes name that process.

    Parameters
    ----------
    given
        Arguments of the caller; the first is a tensor.
    check : callable
        Function that checks the arguments and returns two tensors of rows ``[B, D]``, a scale, and
        a bias or None. The second rows go round.
    of_pairs : callable
        Loss of these four and ``options``, with a keyword ``are_pairs``: True if row i of both
        tensors is a pair.
    group : ProcessGroup
    """
    error: Exception | None = None
    try:
        pairs = check()
        if checks_values():
            check_rows("image", pairs[0])
            check_rows("text", pairs[1])
    except (TypeError, ValueError) as wrong:
        error = wrong
    need = [False] * 4
    if error is None:
        is_kept = torch.is_grad_enabled()
        need = [is_kept and it is not None and it.requires_grad for it in pairs]

    def of_these(*them: Any, are_pairs: bool) -> Tensor:
        return of_pairs(*them, *options, are_pairs=are_pairs)

    ring = Ring(group, of_these, need)
    facts = [0] * (1 + len(_FACTS))
    if error is None:
        bits = sum(1 << place for place, needed in enumerate(need) if needed)
        facts = [1, *pairs[0].shape, _DTYPES.index(pairs[0].dtype), bits]
    told = ring.gather(torch.tensor(facts, dtype=torch.int64, device=given[0].device))
    if error is not None:
        raise error
    _check_agreement(told, dist.get_rank(group))
    loss: Tensor = _Around.apply(*pairs, ring)  # type: ignore[no-untyped-call]
    return loss


def _check_agreement(told: Sequence[Sequence[float]], rank: int) -> None:
    """Check that all processes have valid arguments, of equal shapes."""
    for other, (is_right, *facts) in enumerate(told):
        if not is_right:
            raise RuntimeError(
                f"process {other} of {len(told)} has wrong arguments of this loss; the error of "
                "that process says how"
            )
        for name, one, own in zip(_FACTS, facts, told[rank][1:], strict=True):
            if one != own:
                raise ValueError(
                    f"processes {rank} and {other} of {len(told)} differ in the {name}: "
                    f"{_fact(name, own)} and {_fact(name, one)}"
                )


def _fact(name: str, value: float) -> str:
    if name == "dtype":
        return str(_DTYPES[int(value)]).removeprefix("torch.")
    if name.startswith("gradients"):
        names = ("image", "text", "scale", "bias")
        return ", ".join(it for place, it in enumerate(names) if int(value) >> place & 1) or "none"
    return str(int(value))


def _added(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return one if other is None or one is None else one.add_(other)


class _Around(Function):
    """Loss of a ring; the backward returns the gradients made in the forward.

    The gradients are used once: a second backward through a retained graph goes round again.
    """

    @staticmethod
    def forward(
        ctx: Any, image: Tensor, text: Tensor, scale: Tensor, bias: Tensor | None, ring: Ring
    ) -> Tensor:
        loss, gradients = ring.around((image, text, scale, bias))
        ctx.save_for_backward(image, text, scale, bias)
        ctx.ring, ctx.gradients = ring, gradients
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        pairs, ring = ctx.saved_tensors, ctx.ring
        gradients, ctx.gradients = ctx.gradients, None
        own = grad_loss.double() if gradients is not None else _NOT_MADE.to(grad_loss.device)
        weights = [it for (it,) in ring.gather(own[None])]
        if not all(it == weights[0] for it in weights):
            _, gradients = ring.around(pairs, grad_loss)
        elif weights[0] != 1:
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(grad_loss)
        return *gradients, None
