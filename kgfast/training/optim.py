"""The optimizer of a run: one for whole parameters, a lazy one for the rows of a table."""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kgfast import ops
from kgfast.kernels.spares import Spares
from kgfast.ops.row_gradients import RowGradients, add_to, merge, numbers_of
from kgfast.training.checkpoint import Room, check_tensors
from kgfast.training.config.sections import OptimConfig
from kgfast.training.parallel.placement import ALONE, Placement
from kgfast.training.row_optim import EPS, RowAdagrad, RowAdam, RowOptimizer


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
    placement : Placement
        Where gradients come from, and which rows are held.
    room : callable, optional
        Makes the zeros that a ``row_*`` optimizer begins with, float32 of a shape.

    Attributes
    ----------
    spares : Spares
        The memory of the last gradient of the table, for the next.
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
        self._parts: dict[Tensor, list[RowGradients]] = {}
        self.scaler = LossScaler(scaled)
        self.spares = Spares()

    @property
    def is_lazy(self) -> bool:
        """Whether a step changes few rows of the entity table."""
        return self._rows is not None

    @property
    def runs_on_kernels(self) -> bool:
        """Whether no operator of torch is large in a step of it."""
        is_served = all(ops.serves_adagrad(it) for it in self._whole)
        return self.is_lazy or (isinstance(self._dense, RowAdagrad) and is_served)

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
        """Fused ones: they make no temporaries of the size of a table."""
        config = self._config
        if kind == "sgd":
            return torch.optim.SGD(
                parameters, config.lr, weight_decay=config.weight_decay, fused=True
            )
        return self._row_optimizer(kind, parameters)

    def collect(self, of_entities: Sequence[RowGradients] = ()) -> None:
        """Take the gradients of rows that a backward left: torch would copy them to add the next.

        Parameters
        ----------
        of_entities : sequence of RowGradients
            More of them, of rows of the entity table.
        """
        for gradients in of_entities:
            self.add(self._entity, gradients)
        for parameter in self._named.values():
            if parameter.grad is not None and parameter.grad.is_sparse:
                self.add(parameter, RowGradients.of(parameter.grad))
                parameter.grad = None

    def add(self, parameter: Tensor, gradients: RowGradients) -> None:
        """Keep gradients of rows until the step."""
        self._parts.setdefault(parameter, []).append(gradients)

    @torch.no_grad()
    def step(self, step: int, lr: float) -> None:
        """Apply the gradients of the parameters and of the rows, and forget them."""
        self._join_parts()
        whole = [it.grad for it in self._whole if it is not self._entity and it.grad is not None]
        self._placement.align([numbers_of(gradient) for gradient in whole])
        if self._ready():
            optimizers = [self._dense] if self._rows is None else [self._dense, self._rows]
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = lr
            if self._rows is not None:  # steps that are skipped count, too
                self._rows.state_of(self._entity)["step"].fill_(step)
            for optimizer in optimizers:
                optimizer.step()
        gradient = self._entity.grad
        for parameter in self._named.values():
            parameter.grad = None
        if gradient is None or gradient.is_sparse:
            return
        if sys.getrefcount(gradient) <= 2:  # nobody else holds it
            self.spares.give(gradient)

    def _join_parts(self) -> None:
        """Make the gradients of rows that were collected those of their parameters."""
        parts, self._parts = self._parts, {}
        for parameter, found in parts.items():
            if parameter.grad is None and self._takes_rows(parameter):
                first, *others = found
                joined = merge(first, [(part.ids, part.rows) for part in others])
                parameter.grad = joined.to_sparse(len(parameter))
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            add_to(parameter.grad, found)

    def _takes_rows(self, parameter: Tensor) -> bool:
        """Whether rows without a gradient stay as they are."""
        if parameter is self._entity:
            return self._rows is not None
        return isinstance(self._dense, RowAdagrad) and not self._config.weight_decay

    def _ready(self) -> bool:
        """Unscale and clip; whether the gradients are fit for a step."""
        clip, scale = self._config.grad_clip, self.scaler.scale
        if not (clip or self.scaler.enabled):
            return True
        named = [it for it in self._named.values() if it.grad is not None]
        named.sort(key=lambda it: it.grad is not None and it.grad.is_sparse)
        gradients = [it.grad for it in named if it.grad is not None]
        norm = self._placement.norm(gradients, [it is self._entity for it in named]) / scale
        factor = min(1.0, clip / (norm + 1e-6)) / scale if clip else 1 / scale
        if not self.scaler.accepts(norm):
            return False
        if factor != 1 and gradients:
            torch._foreach_mul_([numbers_of(gradient) for gradient in gradients], factor)
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
        rows = {} if self._rows is None else self._rows.state_of(self._entity)
        return states | {
            f"{self._entity_name}.{key}": value for key, value in rows.items() if key != "step"
        }

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
                self._rows.state_of(self._entity)[key].copy_(value)
            else:
                state: dict[str, Any] = self._dense.state[self._named[name]]
                state[key] = value.to(self._named[name].device, copy=True)

    def _has_rows(self, name: str) -> bool:
        """Whether a parameter is the table of the lazy optimizer."""
        return self._rows is not None and name == self._entity_name

    def _dense_state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """What the optimizer holds of a parameter, or would begin with."""
        if isinstance(self._dense, RowOptimizer):
            return self._dense.state_of(parameter)
        return {}
