"""Optimizers: torch's for whole parameters, and lazy ones that touch the rows of a step only.

A lazy optimizer is not the dense one. A row that a step does not use keeps its value and its state:
its moments do not decay and it gets no update from old momentum, while bias correction counts all
steps of the run. Where every row is used in every step both are the same.

Cost model of a row: the table and each state are read and written once, the gradient read once. The
rows go through in blocks that stay in the cache.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from kgfast import ops
from kgfast.training.config.sections import OptimConfig
from kgfast.training.row_gradients import RowGradients, add_to, merge
from kgfast.training.state import check_tensors

_BLOCK = {"cpu": 1 << 16}  # numbers at once: with gradient, states and copies 1.5 MiB
_BLOCK_ELSEWHERE = 1 << 26
_EPS = {"adam": 1e-8, "adagrad": 1e-10}
# Of torch's optimizers, beside the number of steps. Adagrad's are there from the start.
_MOMENTS = {"adam": ("exp_avg", "exp_avg_sq"), "adagrad": ("sum",), "sgd": ()}


class RowOptimizer:
    """Base of the lazy optimizers of one table.

    Parameters
    ----------
    table : Tensor
        ``[N, G]``, changed in place.
    eps, weight_decay : float
        ``weight_decay`` times the row is added to its gradient, as in :class:`torch.optim.Adam`.

    Attributes
    ----------
    states : dict of str to Tensor
        ``[N, G]`` each.
    """

    names: tuple[str, ...]

    def __init__(self, table: Tensor, eps: float, weight_decay: float) -> None:
        self._table = table.detach()
        self._eps, self._weight_decay = eps, weight_decay
        self.states = {name: torch.zeros_like(self._table) for name in self.names}

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
        eps: float = _EPS["adam"],
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(table, eps, weight_decay)
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
        self, table: Tensor, eps: float = _EPS["adagrad"], weight_decay: float = 0.0
    ) -> None:
        super().__init__(table, eps, weight_decay)

    def _update(self, rows: list[Tensor], gradient: Tensor, lr: float, step: int) -> None:
        row, total = rows
        if self._weight_decay:
            gradient = gradient.add(row, alpha=self._weight_decay)
        total.addcmul_(gradient, gradient)
        row.addcdiv_(gradient, total.sqrt().add_(self._eps), value=-lr)


class LossScaler:
    """Keeps half-precision gradients in range: the loss is multiplied, the gradients divided.

    The scale halves, and the step is skipped, whenever a gradient is not finite; it doubles after
    ``patience`` steps that went well (Micikevicius et al. 2018, section 3.2).
    """

    def __init__(self, enabled: bool, scale: float = 2.0**16, patience: int = 2000) -> None:
        self.enabled, self._patience = enabled, patience
        self.scale, self._good = (scale if enabled else 1.0), 0

    def accepts(self, norm: float) -> bool:
        """Whether a step with gradients of this norm may be made; adapts the scale."""
        if not self.enabled:
            return True
        if not math.isfinite(norm):
            self.scale, self._good = self.scale / 2, 0
            return False
        self._good += 1
        if self._good == self._patience:
            self.scale, self._good = self.scale * 2, 0
        return True

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {"scale": self.scale, "good": self._good} if self.enabled else {}

    def load(self, state: Mapping[str, float]) -> None:
        """Go on from a state."""
        if self.enabled and state:
            self.scale, self._good = state["scale"], int(state["good"])


class Optimizer:
    """Everything that a step changes: the entity table, lazily or densely, and the rest densely.

    Parameters
    ----------
    model : nn.Module
        With a parameter ``entity``, its own or of a model that it is put around.
    config : OptimConfig
    lazy : bool
        Whether steps use few rows of the table, so that a ``row_*`` optimizer has a use.
    scaled : bool
        Whether the loss needs a scale, for float16.
    """

    def __init__(
        self, model: nn.Module, config: OptimConfig, *, lazy: bool, scaled: bool = False
    ) -> None:
        self._config = config
        self._named = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        self._entity_name = next(name for name in self._named if f".{name}".endswith(".entity"))
        self._entity = self._named[self._entity_name]
        self._rows = self._row_optimizer() if lazy and config.name.startswith("row_") else None
        named = self._named.values()
        dense = [each for each in named if self._rows is None or each is not self._entity]
        self._dense = self._dense_optimizer(dense)
        self._parts: list[RowGradients] = []
        self.scaler = LossScaler(scaled)

    @property
    def is_lazy(self) -> bool:
        """Whether a step changes few rows of the entity table."""
        return self._rows is not None

    def _row_optimizer(self) -> RowOptimizer:
        config = self._config
        kind = config.name.removeprefix("row_")
        eps = _EPS[kind] if config.eps is None else config.eps
        if kind == "adam":
            return RowAdam(self._entity, config.betas, eps, config.weight_decay)
        return RowAdagrad(self._entity, eps, config.weight_decay)

    def _dense_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Fused ones: they make no temporaries of the size of a table."""
        config = self._config
        kind = config.name.removeprefix("row_")
        on_cpu = self._entity.device.type == "cpu"
        if kind == "sgd":
            return torch.optim.SGD(
                parameters, config.lr, weight_decay=config.weight_decay, fused=True
            )
        eps = _EPS[kind] if config.eps is None else config.eps
        if kind == "adam":
            betas = (config.betas[0], config.betas[1])
            return torch.optim.Adam(
                parameters, config.lr, betas, eps, config.weight_decay, fused=True
            )
        return torch.optim.Adagrad(
            parameters, config.lr, weight_decay=config.weight_decay, eps=eps, fused=on_cpu
        )

    def add(self, parts: Sequence[RowGradients]) -> None:
        """Keep gradients of rows of the entity table until the step."""
        self._parts += parts

    @torch.no_grad()
    def step(self, step: int, lr: float) -> None:
        """Apply the gradients of the parameters and of the rows, and forget them."""
        rows = self._gathered_rows()
        named = self._named.values()
        gradients = [parameter.grad for parameter in named if parameter.grad is not None]
        gradients += [part.rows for part in rows]
        if self._ready(gradients):
            for group in self._dense.param_groups:
                group["lr"] = lr
            self._dense.step()
            if self._rows is not None:
                for part in rows:
                    self._rows.step(part.ids, part.rows, lr, step)
        for parameter in self._named.values():
            parameter.grad = None

    def _gathered_rows(self) -> list[RowGradients]:
        """Disjoint parts for the lazy optimizer; a dense one gets them in the table's gradient."""
        parts, self._parts = self._parts, []
        if self._rows is not None:
            return merge(parts)
        if parts:
            if self._entity.grad is None:
                self._entity.grad = torch.zeros_like(self._entity)
            add_to(self._entity.grad, parts)
        return []

    def _ready(self, gradients: list[Tensor]) -> bool:
        """Unscale and clip; whether the gradients are fit for a step."""
        clip, scale = self._config.grad_clip, self.scaler.scale
        if not gradients or not (clip or self.scaler.enabled):
            return True
        norm = float(nn.utils.get_total_norm(gradients)) / scale
        factor = min(1.0, clip / (norm + 1e-6)) / scale if clip else 1 / scale
        if not self.scaler.accepts(norm):
            return False
        if factor != 1:
            torch._foreach_mul_(gradients, factor)
        return True

    def tensors(self) -> dict[str, Tensor]:
        """The state, by parameter and name, for a checkpoint.

        Always the same names: a parameter that had no gradient yet has the state it begins with.
        """
        states = {
            f"{name}.{key}": value
            for name, parameter in self._named.items()
            if not self._has_rows(name)
            for key, value in self._dense_state(parameter).items()
        }
        rows = {} if self._rows is None else self._rows.states
        return states | {f"{self._entity_name}.{key}": value for key, value in rows.items()}

    def check(self, tensors: Mapping[str, Tensor], *, complete: bool = True) -> None:
        """That the tensors of a checkpoint fit; changes nothing.

        Parameters
        ----------
        tensors : mapping of str to Tensor
            As :meth:`tensors` gives them.
        complete : bool
            Whether every parameter must have its state. Checkpoints of an earlier kgfast lack that
            of parameters without a gradient so far, as a whole.

        Raises
        ------
        ValueError
            If a tensor is missing or unknown, or has another shape or dtype.
        """
        own = self.tensors()
        if not complete:
            held = {name.rpartition(".")[0] for name in tensors}
            own = {
                name: value
                for name, value in own.items()
                if self._has_rows(parameter := name.rpartition(".")[0]) or parameter in held
            }
        check_tensors("optimizer", tensors, own)

    def load(self, tensors: Mapping[str, Tensor], *, complete: bool = True) -> None:
        """Go on from the tensors of a checkpoint; arguments and errors are those of :meth:`check`.

        Nothing is changed if they do not fit.
        """
        self.check(tensors, complete=complete)
        for full_name, value in tensors.items():
            name, _, key = full_name.rpartition(".")
            if self._rows is not None and self._has_rows(name):
                self._rows.states[key].copy_(value)
            else:
                state: dict[str, Any] = self._dense.state[self._named[name]]
                state[key] = value.to(self._named[name].device, copy=True)

    def _has_rows(self, name: str) -> bool:
        """Whether a parameter is the table of the lazy optimizer."""
        return self._rows is not None and name == self._entity_name

    def _dense_state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """What torch holds of a parameter, or would begin with."""
        held: dict[str, Tensor] = self._dense.state.get(parameter, {})
        if held:
            return held
        moments = _MOMENTS[self._config.name.removeprefix("row_")]
        if not moments:
            return {}
        step = torch.zeros((), dtype=torch.float32, device=parameter.device)
        return {"step": step} | {name: torch.zeros_like(parameter) for name in moments}
