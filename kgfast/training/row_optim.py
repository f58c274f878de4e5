"""Optimizers whose steps change the rows of a table that have a gradient, and no others.

A row that a step does not use keeps its value and its state: its moments do not decay and it gets
no update from old momentum, while bias correction counts all steps. Where every row is used in
every step, these are the dense optimizers.

Cost model of a row: the table and each state are read and written once, the gradient read once. The
rows go through in blocks that stay in the cache.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam

from kgfast import ops
from kgfast.ops import RowGradients

_BLOCK = {"cpu": 1 << 16}  # numbers at once: with gradient, states and copies 1.5 MiB
_BLOCK_ELSEWHERE = 1 << 26
_WIDE = 1 << 12  # numbers of a row that is a kernel's work by itself

EPS = {"adam": 1e-8, "adagrad": 1e-10}


class RowOptimizer(torch.optim.Optimizer):
    """Base: changes rows where a gradient is row-sparse, and all where it is dense.

    Attributes
    ----------
    names : tuple of str
        The tables of a parameter's state, each as large as the parameter.
    """

    names: tuple[str, ...]

    def __init__(self, params: Iterable[Any], **numbers: Any) -> None:
        for name in ("lr", "eps", "weight_decay"):
            if not 0 <= numbers[name] < float("inf"):
                raise ValueError(f"{name} must be finite and at least 0; got {numbers[name]}")
        super().__init__(params, numbers)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Apply the gradients; return what a closure returns.

        A gradient that is a sum of sparse ones is coalesced.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state_of(parameter)
                if parameter.grad.is_sparse:
                    self._step_rows(parameter, RowGradients.of(parameter.grad), state, group)
                else:
                    self._step_all(parameter, parameter.grad, state, group)
        return loss

    def state_of(
        self, parameter: Tensor, room: Callable[[Sequence[int]], Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Return the state of a parameter, which begins with zeros.

        Parameters
        ----------
        parameter : Tensor
        room : callable, optional
            Makes the zeros, given the shape; else they are tensors like the parameter.
        """
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            for name in self.names:
                made = torch.zeros_like(parameter) if room is None else room(parameter.shape)
                state[name] = made
        return state

    def _step_rows(
        self,
        parameter: Tensor,
        gradients: RowGradients,
        state: dict[str, Tensor],
        group: dict[str, Any],
    ) -> None:
        """Change the rows that have a gradient; count the step."""
        ids, rows = gradients.ids, gradients.rows.contiguous()  # fused updates take no strides
        block = _BLOCK.get(parameter.device.type, _BLOCK_ELSEWHERE)
        count = max(1, block // max(1, parameter[:1].numel()))
        tables = [parameter, *(state[name] for name in self.names)]
        for i in range(0, len(ids), count):
            part, gradient = ids[i : i + count], rows[i : i + count]
            found = [table.index_select(0, part) for table in tables]
            self._update(found, gradient, state["step"].clone(), group)
            for table, row in zip(tables, found, strict=True):
                table.index_copy_(0, part, row)
        state["step"] += 1

    def _step_all(
        self, parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]
    ) -> None:
        """Change all rows; count the step."""
        tables = [parameter, *(state[name] for name in self.names)]
        self._update(tables, gradient, state["step"], group)

    def _update(
        self, tables: list[Tensor], gradient: Tensor, step: Tensor, group: dict[str, Any]
    ) -> None:
        """Change a parameter and its states in place, and add 1 to the step."""
        raise NotImplementedError


class RowAdam(RowOptimizer):
    """Adam (Kingma & Ba 2015, algorithm 1), of the rows that have a gradient.

    A row without a gradient keeps its value and its moments, while bias correction counts all
    steps. Where every row is used in every step, and of dense gradients, this is
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
    >>> optimizer = RowAdam(table.parameters(), lr=0.5)
    >>> table(torch.tensor([1])).sum().backward()
    >>> optimizer.step()
    >>> (table.weight.detach() - before).round(decimals=3).tolist()
    [[0.0, 0.0], [-0.5, -0.5], [0.0, 0.0]]
    """

    names = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: Sequence[float] = (0.9, 0.999),
        eps: float = EPS["adam"],
        weight_decay: float = 0.0,
    ) -> None:
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be two numbers in [0, 1); got {tuple(betas)}")
        super().__init__(params, lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay)

    def _step_rows(
        self,
        parameter: Tensor,
        gradients: RowGradients,
        state: dict[str, Tensor],
        group: dict[str, Any],
    ) -> None:
        """Change rows in one pass where the extension serves."""
        if not ops.serves_row_adam(parameter):
            return super()._step_rows(parameter, gradients, state, group)
        state["step"] += 1
        ops.row_adam(
            [parameter.detach(), *(state[name] for name in self.names)],
            gradients.ids,
            gradients.rows,
            lr=group["lr"],
            betas=group["betas"],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            step=int(state["step"]),
        )

    def _update(
        self, tables: list[Tensor], gradient: Tensor, step: Tensor, group: dict[str, Any]
    ) -> None:
        parameter, exp_avg, exp_avg_sq = tables
        adam(
            [parameter],
            [gradient],
            [exp_avg],
            [exp_avg_sq],
            [],
            [step],
            fused=True,  # makes no temporaries
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            amsgrad=False,
            maximize=False,
        )


class RowAdagrad(RowOptimizer):
    """Adagrad (Duchi et al. 2011), of the rows that have a gradient.

    Without weight decay, rows without a gradient stay as they are in :class:`torch.optim.Adagrad`,
    too. The extension applies gradients where it serves, with torch's bits. A row has the bits of a
    dense step.

    Parameters
    ----------
    params : iterable
        Parameters, or groups of them, as of every optimizer of torch.
    lr, eps, weight_decay
        As of :class:`torch.optim.Adagrad`; ``weight_decay`` times a row is added to its gradient.

    Raises
    ------
    ValueError
        For a number out of range.

    Examples
    --------
    >>> table = torch.nn.Parameter(torch.zeros(2, 1))
    >>> table.grad = RowGradients(torch.tensor([0]), torch.tensor([[2.0]])).to_sparse(2)
    >>> RowAdagrad([table], lr=0.5).step()
    >>> table.tolist()
    [[-0.5], [0.0]]
    """

    names = ("sum",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        eps: float = EPS["adagrad"],
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr=lr, eps=eps, weight_decay=weight_decay)

    def _step_rows(
        self,
        parameter: Tensor,
        gradients: RowGradients,
        state: dict[str, Tensor],
        group: dict[str, Any],
    ) -> None:
        """Change wide rows one by one, where they are; others in blocks."""
        if parameter[:1].numel() < _WIDE or not ops.serves_adagrad(parameter):
            return super()._step_rows(parameter, gradients, state, group)
        state["step"] += 1
        for row, gradient in zip(gradients.ids.tolist(), gradients.rows, strict=True):
            ops.adagrad(parameter.detach()[row], state["sum"][row], gradient, **_numbers(group))

    def _update(
        self, tables: list[Tensor], gradient: Tensor, step: Tensor, group: dict[str, Any]
    ) -> None:
        parameter, total = tables
        if ops.serves_adagrad(parameter):
            step += 1
            ops.adagrad(parameter.detach(), total, gradient, **_numbers(group))
            return
        adagrad(
            [parameter],
            [gradient],
            [total],
            [step],
            fused=parameter.device.type == "cpu",
            lr=group["lr"],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            lr_decay=0.0,
            maximize=False,
        )


def _numbers(group: dict[str, Any]) -> dict[str, float]:
    return {name: group[name] for name in ("lr", "eps", "weight_decay")}
