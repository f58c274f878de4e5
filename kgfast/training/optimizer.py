"""The optimizer of a run, and the gradients that it takes."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from kgfast import ops
from kgfast.kernels.spares import Constants
from kgfast.models.base import Model
from kgfast.ops.row_gradients import Part, RowGradients, add_to, merge, numbers_of, part_of
from kgfast.processes.assignment import ALONE, Assignment
from kgfast.tables.files import Room, check_tensors
from kgfast.training.config.sections import OptimConfig
from kgfast.training.row_optimizer import RowAdagrad, RowAdam, RowOptimizer

_KINDS: dict[str, Callable[..., RowOptimizer | torch.optim.SGD]] = {
    "adam": RowAdam,
    "adagrad": RowAdagrad,
    "sgd": partial(torch.optim.SGD, fused=True),  # without temporaries of the size of a table
}


class Optimizer:
    """The optimizer of a model, which joins the gradients of a step and clips them.

    ``lazy`` says that steps use few rows of the entity table. ``room`` allocates the float32 states
    of that table, if its rows are updated alone.
    """

    def __init__(
        self,
        model: Model,
        config: OptimConfig,
        *,
        lazy: bool,
        assignment: Assignment = ALONE,
        room: Room | None = None,
    ) -> None:
        self._clips_to, self._assignment = config.grad_clip, assignment
        self._named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._entity, parameters = model.entity, list(self._named.values())
        kind = config.name.removeprefix("row_")
        make = _KINDS[kind]
        self._optimizer = make(parameters, **config.arguments_of(make))
        # Parameters whose rows without a gradient stay unchanged.
        keeps_rows = kind == "adagrad" and not config.weight_decay
        self._by_rows: set[Tensor] = {*parameters} if keeps_rows else set()
        if lazy and isinstance(self._optimizer, RowOptimizer) and kind != config.name:
            self._by_rows.add(self._entity)
            self._optimizer.state_of(self._entity, room)
        is_served = kind == "adagrad" and all(map(ops.serves_rows, parameters))
        # Whether no operator of torch is large in an update.
        self.runs_on_kernels = is_served or self._entity in self._by_rows
        self._parts: dict[Tensor, list[Part]] = {}
        self._whole: dict[Tensor, Tensor] = {}
        self.lr, device = config.lr, self._entity.device
        if device.type != "cpu":  # a graph of a step reads the rate there
            rate = torch.full((), self.lr, dtype=torch.float32, device=device)
            self._optimizer.param_groups[0]["lr"] = rate
        self.constants = Constants()  # of a step

    def collect(self) -> None:
        """Take the gradients that a backward left.

        If they stayed, torch would copy row gradients to add those of the next backward, and wait
        for a GPU to add them to the gradient of a whole table.
        """
        for parameter in self._named.values():
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None and gradient.is_sparse:
                self._parts.setdefault(parameter, []).append(part_of(gradient))
            elif gradient is not None and parameter in self._whole:
                self._whole[parameter].add_(gradient)
            elif gradient is not None:
                self._whole[parameter] = gradient

    def set_rate(self, lr: float) -> None:
        group = self._optimizer.param_groups[0]
        if isinstance(group["lr"], float):
            group["lr"] = lr
        elif lr != self.lr:
            group["lr"].fill_(lr)
        self.lr = lr

    def drop(self) -> None:
        self._parts, self._whole = {}, {}
        for parameter in self._named.values():
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Apply the gradients that were collected."""
        for parameter in self._whole:
            parameter.grad = self._whole[parameter]
        for parameter, parts in self._parts.items():
            if parameter.grad is None and parameter in self._by_rows:
                first, *others = parts
                parameter.grad = merge(RowGradients(*first), others).to_sparse(len(parameter))
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            add_to(parameter.grad, parts)
        self._parts = {}
        aligned = [each.grad for each in self._named.values() if each is not self._entity]
        self._assignment.align([numbers_of(grad) for grad in aligned if grad is not None])
        if self._clips_to:
            gradients = [numbers_of(p.grad) for p in self._named.values() if p.grad is not None]
            factor = self._clips_to / (nn.utils.get_total_norm(gradients) + 1e-6)
            torch._foreach_mul_(gradients, factor.clamp_(max=1.0))
        self._optimizer.step()
        self.drop()

    def tensors(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint, by ``<parameter>.<name>``.

        A parameter without a gradient so far has the initial state.
        """
        if isinstance(self._optimizer, torch.optim.SGD):
            return {}
        return {
            f"{name}.{key}": value
            for name, parameter in self._named.items()
            for key, value in self._optimizer.state_of(parameter).items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Resume from the tensors of a checkpoint, or raise ValueError and change nothing."""
        state = self.tensors()
        check_tensors("optimizer", tensors, state)
        for name, value in tensors.items():
            state[name].copy_(value)
