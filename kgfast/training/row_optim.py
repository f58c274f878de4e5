"""Lazy optimizers of one table, which touch the rows of a step only.

A lazy optimizer is not the dense one. A row that a step does not use keeps its value and its state:
its moments do not decay and it gets no update from old momentum, while bias correction counts all
steps of the run. Where every row is used in every step both are the same.

Cost model of a row: the table and each state are read and written once, the gradient read once. The
rows go through in blocks that stay in the cache.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam

from kgfast import ops

_BLOCK = {"cpu": 1 << 16}  # numbers at once: with gradient, states and copies 1.5 MiB
_BLOCK_ELSEWHERE = 1 << 26
EPS = {"adam": 1e-8, "adagrad": 1e-10}


class RowOptimizer:
    """Base of the lazy optimizers of one table.

    Parameters
    ----------
    table : Tensor
        ``[N, G]``, changed in place.
    eps, weight_decay : float
        ``weight_decay`` times the row is added to its gradient, as in :class:`torch.optim.Adam`.
    states : mapping of str to Tensor, optional
        Those to go on from, changed in place; zeros by default.

    Attributes
    ----------
    states : dict of str to Tensor
        ``[N, G]`` each.
    """

    names: tuple[str, ...]

    def __init__(
        self,
        table: Tensor,
        eps: float,
        weight_decay: float,
        states: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._table = table.detach()
        self._eps, self._weight_decay = eps, weight_decay
        self.states = {
            name: torch.zeros_like(self._table) if states is None else states[name]
            for name in self.names
        }

    def step(self, ids: Tensor, gradients: Tensor, lr: float, step: int) -> None:
        """Update rows.

        Parameters
        ----------
        ids : Tensor
            int64 ``[U]``, distinct.
        gradients : Tensor
            ``[U, G]``.
        lr : float
        step : int
            Of the run, from 0.
        """
        block = _BLOCK.get(self._table.device.type, _BLOCK_ELSEWHERE)
        count = max(1, block // max(1, self._table.shape[1]))
        gradients = gradients.contiguous()  # the fused update takes no strides
        for i in range(0, len(ids), count):
            part, gradient = ids[i : i + count], gradients[i : i + count]
            tables = [self._table, *self.states.values()]
            rows = [table.index_select(0, part) for table in tables]
            self._update(rows, gradient, lr, step)
            for table, row in zip(tables, rows, strict=True):
                table.index_copy_(0, part, row)

    def _update(self, rows: list[Tensor], gradient: Tensor, lr: float, step: int) -> None:
        """Change rows of the table and of the states in place."""
        raise NotImplementedError


class RowAdam(RowOptimizer):
    """Adam (Kingma & Ba 2015, algorithm 1), lazily.

    Examples
    --------
    >>> table = torch.zeros(3, 2)
    >>> RowAdam(table, (0.9, 0.999)).step(torch.tensor([1]), torch.ones(1, 2), lr=0.5, step=0)
    >>> table
    tensor([[ 0.0000,  0.0000],
            [-0.5000, -0.5000],
            [ 0.0000,  0.0000]])
    """

    names = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        table: Tensor,
        betas: Sequence[float],
        eps: float = EPS["adam"],
        weight_decay: float = 0.0,
        states: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__(table, eps, weight_decay, states)
        self._betas = betas

    def step(self, ids: Tensor, gradients: Tensor, lr: float, step: int) -> None:
        """As :meth:`RowOptimizer.step`; in one pass where the extension serves."""
        if not ops.serves_row_adam(self._table):
            return super().step(ids, gradients, lr, step)
        ops.row_adam(
            [self._table, *self.states.values()],
            ids,
            gradients,
            lr=lr,
            betas=self._betas,
            eps=self._eps,
            weight_decay=self._weight_decay,
            step=step + 1,
        )

    def _update(self, rows: list[Tensor], gradient: Tensor, lr: float, step: int) -> None:
        row, exp_avg, exp_avg_sq = rows
        adam(
            [row],
            [gradient],
            [exp_avg],
            [exp_avg_sq],
            [],
            [torch.tensor(float(step), dtype=torch.float32, device=row.device)],  # it adds 1
            fused=True,
            lr=lr,
            beta1=self._betas[0],
            beta2=self._betas[1],
            eps=self._eps,
            weight_decay=self._weight_decay,
            amsgrad=False,
            maximize=False,
        )


class RowAdagrad(RowOptimizer):
    """Adagrad (Duchi et al. 2011): as in torch, lazy by nature but for the weight decay.

    Examples
    --------
    >>> table = torch.zeros(2, 1)
    >>> RowAdagrad(table).step(torch.tensor([0]), torch.tensor([[2.0]]), lr=0.5, step=0)
    >>> table.tolist()
    [[-0.5], [0.0]]
    """

    names = ("sum",)

    def __init__(
        self,
        table: Tensor,
        eps: float = EPS["adagrad"],
        weight_decay: float = 0.0,
        states: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__(table, eps, weight_decay, states)

    def _update(self, rows: list[Tensor], gradient: Tensor, lr: float, step: int) -> None:
        row, total = rows
        if self._weight_decay:
            gradient = gradient.add(row, alpha=self._weight_decay)
        total.addcmul_(gradient, gradient)
        row.addcdiv_(gradient, total.sqrt().add_(self._eps), value=-lr)
