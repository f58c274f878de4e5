"""The optimizer of a run: one for whole parameters, and one for the rows of the entity table."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kgfast import ops
from kgfast.kernels.spares import Spares
from kgfast.ops.row_gradients import Part, RowGradients, add_to, merge, numbers_of, part_of
from kgfast.processes.assignment import ALONE, Assignment
from kgfast.training.checkpoint import Room, check_tensors
from kgfast.training.config.sections import OptimConfig
from kgfast.training.row_optimizer import EPS, RowAdagrad, RowAdam, RowOptimizer


class Optimizer:
    """The optimizers of a model: of the rows of the entity table, and of whole parameters.

    ``lazy`` says that steps use few rows of the table. ``room`` allocates the float32 states of a
    ``row_*`` optimizer.
    """

    def __init__(
        self,
        model: nn.Module,
        config: OptimConfig,
        *,
        lazy: bool,
        assignment: Assignment = ALONE,
        room: Room | None = None,
    ) -> None:
        self._config, self._assignment = config, assignment
        self._named = {name: it for name, it in model.named_parameters() if it.requires_grad}
        entity = next(name for name in self._named if f".{name}".endswith(".entity"))
        self._entity = self._named[entity]
        kind = config.name.removeprefix("row_")
        self._rows: RowOptimizer | None = None
        if lazy and kind != config.name:
            self._rows = self._made(kind, [self._entity])
            self._rows.state_of(self._entity, room)
        named = self._named.values()
        self._whole = [it for it in named if self._rows is None or it is not self._entity]
        self._dense: torch.optim.Optimizer
        if kind == "sgd":  # fused, without temporaries of the size of a table
            decay = config.weight_decay
            self._dense = torch.optim.SGD(self._whole, config.lr, weight_decay=decay, fused=True)
        else:
            self._dense = self._made(kind, self._whole)
        self._optimizers = [self._dense, *([] if self._rows is None else [self._rows])]
        self._parts: dict[Tensor, list[Part]] = {}
        self.spares = Spares()  # memory of the last gradient of the table

    def _made(self, kind: str, parameters: Sequence[nn.Parameter]) -> RowOptimizer:
        config = self._config
        eps = EPS[kind] if config.eps is None else config.eps
        options = {"lr": config.lr, "eps": eps, "weight_decay": config.weight_decay}
        if kind == "adam":
            return RowAdam(parameters, **options)
        return RowAdagrad(parameters, **options)

    @property
    def runs_on_kernels(self) -> bool:
        """Return whether no operator of torch is large in an update."""
        is_served = all(ops.serves_rows(it) for it in self._whole)
        return self._rows is not None or (isinstance(self._dense, RowAdagrad) and is_served)

    def collect(self, of_entities: Sequence[RowGradients] = ()) -> None:
        """Take the row gradients that a backward left, and further gradients of the entity table.

        If row gradients stayed, torch would copy them to add the gradients of the next backward.
        """
        for gradients in of_entities:
            self._parts.setdefault(self._entity, []).append((gradients.ids, gradients.rows))
        for parameter in self._named.values():
            gradient = parameter.grad
            if gradient is not None and gradient.is_sparse:
                self._parts.setdefault(parameter, []).append(part_of(gradient))
                parameter.grad = None

    @torch.no_grad()
    def step(self, step: int, lr: float) -> None:
        """Apply all gradients, and drop them."""
        self._join_parts()
        if self._assignment.size > 1:
            whole = [it.grad for it in self._whole if it is not self._entity]
            self._assignment.align([numbers_of(it) for it in whole if it is not None])
        if self._config.grad_clip:
            self._clip()
        if self._rows is not None:
            self._rows.steps_before = step
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
        gradient = self._entity.grad
        for parameter in self._named.values():
            parameter.grad = None
        if gradient is None or gradient.is_sparse:
            return
        if sys.getrefcount(gradient) <= 2:  # no other object holds the gradient
            self.spares.give(gradient)

    def _join_parts(self) -> None:
        for parameter, parts in self._parts.items():
            if parameter.grad is None and self._takes_rows(parameter):
                first, *others = parts
                parameter.grad = merge(RowGradients(*first), others).to_sparse(len(parameter))
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            add_to(parameter.grad, parts)
        self._parts = {}

    def _takes_rows(self, parameter: Tensor) -> bool:
        """Return whether an update leaves rows without a gradient unchanged."""
        if parameter is self._entity:
            return self._rows is not None
        return isinstance(self._dense, RowAdagrad) and not self._config.weight_decay

    def _clip(self) -> None:
        """Scale the gradients so that the norm of all is at most that of the config."""
        named = [it for it in self._named.values() if it.grad is not None]
        named.sort(key=lambda it: it.grad is not None and it.grad.is_sparse)
        gradients = [it.grad for it in named if it.grad is not None]
        norm = self._assignment.norm(gradients, [it is self._entity for it in named])
        factor: Any = self._config.grad_clip / (norm + 1e-6)
        if norm.device.type != "cpu":
            factor.clamp_(max=1.0)  # nothing waits for the device
        elif (factor := self._config.grad_clip / (float(norm) + 1e-6)) >= 1:
            return
        torch._foreach_mul_([numbers_of(gradient) for gradient in gradients], factor)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint, by ``<parameter>.<name>``.

        A parameter without a gradient so far has the initial state. The step of the entity table is
        that of the run.
        """
        tensors = {}
        for name, parameter in self._named.items():
            has_rows = self._rows is not None and parameter is self._entity
            optimizer = self._rows if has_rows else self._dense
            if isinstance(optimizer, RowOptimizer):
                for key, value in optimizer.state_of(parameter).items():
                    if not (has_rows and key == "step"):
                        tensors[f"{name}.{key}"] = value
        return tensors

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Resume from the tensors of a checkpoint; a ValueError for others changes nothing."""
        state = self.tensors()
        check_tensors("optimizer", tensors, state)
        for name, value in tensors.items():
            state[name].copy_(value)
