"""Optimizers that change only the rows of a table that have a gradient.

All other rows keep values and states, while bias correction counts all steps. The table and each
state are read and written once, the gradient is read once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam

from kgfast import ops
from kgfast.kernels.backend import AdagradStep, AdamStep
from kgfast.ops import RowGradients

_NUMBERS = ("lr", "eps", "weight_decay")  # options of every optimizer here
Tables = list[Tensor]  # a parameter, then the states
Group = dict[str, Any]  # options of a group of parameters
Dense = tuple[Tables, Tensor, Tensor]  # a parameter and the states, the gradient, and the step


class RowOptimizer(torch.optim.Optimizer, ABC):
    """Base of optimizers that update rows by a row-sparse gradient, and all rows by a dense one."""

    names: tuple[str, ...]  # names of the tables in the state, each as large as the parameter

    def __init__(self, params: Iterable[Any], **numbers: Any) -> None:
        for name in _NUMBERS:
            if not 0 <= numbers[name] < float("inf"):
                raise ValueError(f"{name} must be finite and at least 0; got {numbers[name]}")
        super().__init__(params, numbers)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Apply the gradients, after coalescing sparse ones; return the result of the closure."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            dense: list[Dense] = []
            for parameter in [each for each in group["params"] if each.grad is not None]:
                step, *states = map(self.state_of(parameter).__getitem__, ("step", *self.names))
                tables = [parameter.detach(), *states]
                if parameter.grad.is_sparse:
                    self._step_rows(tables, RowGradients.of(parameter.grad), step, group)
                else:
                    dense.append((tables, parameter.grad, step))
            if dense:
                self._update(dense, group)
        return loss

    def state_of(
        self, parameter: Tensor, room: Callable[[Sequence[int]], Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Return the state of a parameter, which begins with zeros; ``room`` allocates them."""
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            for name in self.names:
                state[name] = torch.zeros_like(parameter) if room is None else room(parameter.shape)
        return state

    def _step_rows(self, tables: Tables, some: RowGradients, step: Tensor, group: Group) -> None:
        if ops.serves_rows(tables[0]):
            step += 1
            numbers = self._numbers(int(step) if step.is_cpu else step, group)
            ops.update_rows(tables, some.ids, some.rows, numbers, repeats=some.repeats)
            return
        some = some.distinct()  # torch updates copies of the rows
        rows = [table.index_select(0, some.ids) for table in tables]
        self._update([(rows, some.rows.contiguous(), step)], group)
        for table, row in zip(tables, rows, strict=True):
            table.index_copy_(0, some.ids, row)

    @abstractmethod
    def _numbers(self, step: int | Tensor, group: Group) -> AdamStep | AdagradStep:
        """Return the numbers of a step for a kernel."""

    @abstractmethod
    def _update(self, dense: Sequence[Dense], group: Group) -> None:
        """Update parameters and states in place, and add 1 to their steps."""


class RowAdam(RowOptimizer):
    """Adam (Kingma & Ba 2015, algorithm 1), of the rows that have a gradient.

    A row without a gradient keeps its value and its moments, while bias correction counts all
    steps. If every row has a gradient in every step this is :class:`torch.optim.Adam`. Only the
    first step allocates memory of the size of a parameter, for the moments. A kernel updates
    float32 rows in one pass.

    Parameters
    ----------
    params : iterable
        Parameters, or groups of them, as for every optimizer of torch.
    lr, betas, eps, weight_decay
        The options of :class:`torch.optim.Adam`, within their ranges.

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
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be two numbers in [0, 1); got {tuple(betas)}")
        super().__init__(params, lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay)

    def _numbers(self, step: int | Tensor, group: Group) -> AdamStep:
        return AdamStep(group["lr"], group["betas"], group["eps"], group["weight_decay"], step)

    def _update(self, dense: Sequence[Dense], group: Group) -> None:
        tables, gradients, steps = map(list, zip(*dense, strict=True))
        parameters, first, second = map(list, zip(*tables, strict=True))
        options: Group = {name: group[name] for name in _NUMBERS}
        options["beta1"], options["beta2"] = group["betas"]
        # Without temporaries; torch's fused steps take no strides.
        is_fused = all(it.is_contiguous() for it in (*parameters, *gradients))
        options |= {"amsgrad": False, "maximize": False, "fused": is_fused}
        adam(parameters, gradients, first, second, [], steps, **options)


class RowAdagrad(RowOptimizer):
    """Adagrad (Duchi et al. 2011), of the rows that have a gradient.

    A row has the bits of a dense step, and on the CPU the bits of :class:`torch.optim.Adagrad`.
    There, too, rows without a gradient do not change, unless there is weight decay.

    Parameters
    ----------
    params : iterable
        Parameters, or groups of them, as for every optimizer of torch.
    lr, eps, weight_decay
        The options of :class:`torch.optim.Adagrad`, within their ranges.

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
        eps: float = 1e-10,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr=lr, eps=eps, weight_decay=weight_decay)

    def _numbers(self, step: int | Tensor, group: Group) -> AdagradStep:
        return AdagradStep(group["lr"], group["eps"], group["weight_decay"])

    def _update(self, dense: Sequence[Dense], group: Group) -> None:
        options: Group = {name: group[name] for name in _NUMBERS}
        for (parameter, total), gradient, step in dense:
            if ops.serves_rows(parameter):
                step += 1
                numbers = self._numbers(step, group)
                ops.update_rows([parameter, total], None, gradient, numbers)
            else:
                is_fused = parameter.is_cpu and parameter.is_contiguous()
                is_fused = is_fused and gradient.is_contiguous()
                options |= {"lr_decay": 0.0, "maximize": False, "fused": is_fused}
                adagrad([parameter], [gradient], [total], [step], **options)
