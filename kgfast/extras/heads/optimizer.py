"""Adam that changes the rows that a step used, of parameters with row-sparse gradients."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from kgfast.training import RowAdam


class RowWiseAdam(torch.optim.Optimizer):
    """Adam (Kingma & Ba 2015, algorithm 1), by rows where a gradient is row-sparse.

    A row that a step does not use keeps its value and its moments, while bias correction counts all
    steps; where every row is used in every step, and of dense gradients, this is
    :class:`torch.optim.Adam`. A step makes no tensor of the size of a parameter, but for the
    moments in the first one. On the CPU a row is updated in one pass
    (:func:`kgfast.ops.row_adam`).

    Parameters
    ----------
    params : iterable
        Parameters, or groups of them, as of every optimizer of torch.
    lr, betas, eps, weight_decay
        As of :class:`torch.optim.Adam`; ``weight_decay`` times a row is added to its gradient.

    Raises
    ------
    ValueError
        For a number out of range.

    Examples
    --------
    >>> table = torch.nn.Embedding(3, 2, sparse=True)
    >>> before = table.weight.detach().clone()
    >>> optimizer = RowWiseAdam(table.parameters(), lr=0.5)
    >>> table(torch.tensor([1])).sum().backward()
    >>> optimizer.step()
    >>> (table.weight.detach() - before).round(decimals=3).tolist()
    [[0.0, 0.0], [-0.5, -0.5], [0.0, 0.0]]
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: Sequence[float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be finite and at least 0; got {value}")
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be two numbers in [0, 1); got {tuple(betas)}")
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Apply the gradients; what a closure returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            for name in RowAdam.names:
                state[name] = torch.zeros_like(parameter)
        if gradient.is_sparse:
            self._update_rows(parameter, gradient.coalesce(), group)
        else:
            _update_all(parameter, gradient, state, group)

    def _update_rows(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        numbers = group["betas"], group["eps"], group["weight_decay"]
        rows = RowAdam(parameter, *numbers, states=state)
        rows.step(gradient.indices()[0], gradient.values(), group["lr"], int(state["step"]))
        state["step"] += 1


def _update_all(
    parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]
) -> None:
    """Torch's own step, fused: it makes no temporaries."""
    adam(
        [parameter],
        [gradient],
        [state["exp_avg"]],
        [state["exp_avg_sq"]],
        [],
        [state["step"]],
        fused=True,
        lr=group["lr"],
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        eps=group["eps"],
        weight_decay=group["weight_decay"],
        amsgrad=False,
        maximize=False,
    )
