"""The optimizer of a run: one for whole parameters, and one for the rows of the entity table."""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kgfast import ops
from kgfast.kernels.spares import Spares
from kgfast.ops.row_gradients import Part, RowGradients, add_to, merge, numbers_of, part_of
from kgfast.training.checkpoint.format import Room, check_tensors
from kgfast.training.config.sections import OptimConfig
from kgfast.training.processes.placement import ALONE, Placement
from kgfast.training.row_optimizer import EPS, RowAdagrad, RowAdam, RowOptimizer

_PATIENCE = 2000  # steps with one scale of the loss


class LossScaler:
    """Scale of the loss that keeps float16 gradients in range; gradients are divided by it.

    The scale halves, and the step is skipped, when a gradient is not finite; it doubles after
    ``_PATIENCE`` accepted steps (Micikevicius et al. 2018, section 3.2).
    """

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self.scale, self._good = (2.0**16 if enabled else 1.0), 0

    def accepts(self, norm: float) -> bool:
        """Return whether gradients of this norm are fit for a step; adapt the scale."""
        if not self.enabled:
            return True
        if not math.isfinite(norm):
            self.scale, self._good = self.scale / 2, 0
            return False
        self._good += 1
        if self._good == _PATIENCE:
            self.scale, self._good = self.scale * 2, 0
        return True

    def state(self) -> dict[str, float]:
        """Return the numbers that a checkpoint holds."""
        return {"scale": self.scale, "good": self._good} if self.enabled else {}

    def load(self, state: Mapping[str, float]) -> None:
        """Resume from the numbers of a checkpoint."""
        if self.enabled and state:
            self.scale, self._good = state["scale"], int(state["good"])


class Optimizer:
    """The optimizers of a model: of the rows of the entity table, and of whole parameters.

    ``lazy`` says that steps use few rows of the table, ``scaled`` that the loss needs a scale for
    float16. ``room`` allocates the float32 states of a ``row_*`` optimizer.
    """

    def __init__(
        self,
        model: nn.Module,
        config: OptimConfig,
        *,
        lazy: bool,
        scaled: bool = False,
        placement: Placement = ALONE,
        room: Room | None = None,
    ) -> None:
        self._config, self._placement = config, placement
        self._named = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        self._entity_name = next(name for name in self._named if f".{name}".endswith(".entity"))
        self._entity = self._named[self._entity_name]
        kind = config.name.removeprefix("row_")
        self._rows: RowOptimizer | None = None
        if lazy and kind != config.name:
            self._rows = self._row_optimizer(kind, [self._entity])
            self._rows.state_of(self._entity, room)
        named = self._named.values()
        self._whole = [each for each in named if self._rows is None or each is not self._entity]
        self._dense = self._dense_optimizer(kind, self._whole)
        self._parts: dict[Tensor, list[Part]] = {}
        self.scaler = LossScaler(scaled)
        self.spares = Spares()  # memory of the last gradient of the table

    @property
    def runs_on_kernels(self) -> bool:
        """Return whether no operator of torch is large in an update."""
        is_served = all(ops.serves_rows(it) for it in self._whole)
        return self._rows is not None or (isinstance(self._dense, RowAdagrad) and is_served)

    def _row_optimizer(self, kind: str, parameters: Sequence[nn.Parameter]) -> RowOptimizer:
        config = self._config
        eps = EPS[kind] if config.eps is None else config.eps
        options = {"lr": config.lr, "eps": eps, "weight_decay": config.weight_decay}
        if kind == "adam":
            return RowAdam(parameters, betas=config.betas, **options)
        return RowAdagrad(parameters, **options)

    def _dense_optimizer(
        self, kind: str, parameters: Sequence[nn.Parameter]
    ) -> torch.optim.Optimizer:
        config = self._config
        if kind == "sgd":
            return torch.optim.SGD(  # fused, without temporaries of the size of a table
                parameters, config.lr, weight_decay=config.weight_decay, fused=True
            )
        return self._row_optimizer(kind, parameters)

    def collect(self, of_entities: Sequence[RowGradients] = ()) -> None:
        """Take the row gradients that a backward left, and further gradients of the entity table.

        If row gradients stayed, torch would copy them to add the gradients of the next backward.
        """
        for gradients in of_entities:
            self._parts.setdefault(self._entity, []).append((gradients.ids, gradients.rows))
        for parameter in self._named.values():
            if parameter.grad is not None and parameter.grad.is_sparse:
                self._parts.setdefault(parameter, []).append(part_of(parameter.grad))
                parameter.grad = None

    @torch.no_grad()
    def step(self, step: int, lr: float) -> None:
        """Apply all gradients, and drop them."""
        self._join_parts()
        whole = [it.grad for it in self._whole if it is not self._entity and it.grad is not None]
        self._placement.align([numbers_of(gradient) for gradient in whole])
        if self._ready():
            optimizers = [self._dense] if self._rows is None else [self._dense, self._rows]
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = lr
            if self._rows is not None:  # skipped steps count, too
                self._rows.steps_before = step
            for optimizer in optimizers:
                optimizer.step()
        gradient = self._entity.grad
        for parameter in self._named.values():
            parameter.grad = None
        if gradient is None or gradient.is_sparse:
            return
        if sys.getrefcount(gradient) <= 2:  # no other object holds the gradient
            self.spares.give(gradient)

    def _join_parts(self) -> None:
        parts, self._parts = self._parts, {}
        for parameter, found in parts.items():
            if parameter.grad is None and self._takes_rows(parameter):
                first, *others = found
                parameter.grad = merge(RowGradients(*first), others).to_sparse(len(parameter))
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            add_to(parameter.grad, found)

    def _takes_rows(self, parameter: Tensor) -> bool:
        """Return whether an update leaves rows without a gradient unchanged."""
        if parameter is self._entity:
            return self._rows is not None
        return isinstance(self._dense, RowAdagrad) and not self._config.weight_decay

    def _ready(self) -> bool:
        """Unscale and clip the gradients; return whether the gradients are fit for a step."""
        clip, scale = self._config.grad_clip, self.scaler.scale
        if not (clip or self.scaler.enabled):
            return True
        named = [it for it in self._named.values() if it.grad is not None]
        named.sort(key=lambda it: it.grad is not None and it.grad.is_sparse)
        gradients = [it.grad for it in named if it.grad is not None]
        norm = self._placement.norm(gradients, [it is self._entity for it in named])
        numbers = [numbers_of(gradient) for gradient in gradients]
        if clip and not self.scaler.enabled and norm.device.type != "cpu":
            torch._foreach_mul_(numbers, (clip / (norm + 1e-6)).clamp_(max=1.0))
            return True
        unscaled = float(norm) / scale  # float16 waits here, to learn whether a step is made
        factor = min(1.0, clip / (unscaled + 1e-6)) / scale if clip else 1 / scale
        if not self.scaler.accepts(unscaled):
            return False
        if factor != 1 and gradients:
            torch._foreach_mul_(numbers, factor)
        return True

    def tensors(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint, by ``<parameter>.<name>``.

        A parameter without a gradient so far has the initial state.
        """
        return {
            f"{name}.{key}": value
            for name in self._named
            for key, value in self._state_of(name).items()
        }

    def check(self, tensors: Mapping[str, Tensor], *, complete: bool = True) -> None:
        """Raise a ValueError unless the tensors of a checkpoint fit.

        Unless ``complete``, parameters may lack state: checkpoints of an earlier kgfast lack the
        state of parameters without a gradient.
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
        """Resume from the tensors of a checkpoint, which :meth:`check` has checked."""
        self.check(tensors, complete=complete)
        for full_name, value in tensors.items():
            name, _, key = full_name.rpartition(".")
            if self._rows is not None and self._has_rows(name):
                self._rows.state_of(self._entity)[key].copy_(value)
            else:
                state: dict[str, Any] = self._dense.state[self._named[name]]
                state[key] = value.to(self._named[name].device, copy=True)

    def _has_rows(self, name: str) -> bool:
        return self._rows is not None and name == self._entity_name

    def _state_of(self, name: str) -> dict[str, Tensor]:
        """Return the state of a parameter; the step of the entity table is that of the run."""
        if self._rows is not None and self._has_rows(name):
            state = self._rows.state_of(self._entity)
            return {key: value for key, value in state.items() if key != "step"}
        if isinstance(self._dense, RowOptimizer):
            return self._dense.state_of(self._named[name])
        return {}
