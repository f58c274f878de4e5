"""The optimizer of a run: torch's for whole parameters, a lazy one for the rows of a table."""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kgfast import ops
from kgfast.kernels.spares import Spares
from kgfast.training.checkpoint import Room, check_tensors
from kgfast.training.config.sections import OptimConfig
from kgfast.training.parallel.placement import ALONE, Placement
from kgfast.training.row_gradients import RowGradients, add_to, merge
from kgfast.training.row_optim import EPS, RowAdagrad, RowAdam, RowOptimizer

# Of torch's optimizers, beside the number of steps. Adagrad's are there from the start.
_MOMENTS = {"adam": ("exp_avg", "exp_avg_sq"), "adagrad": ("sum",), "sgd": ()}


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
        self._config, self._placement, self._room = config, placement, room
        self._named = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        self._entity_name = next(name for name in self._named if f".{name}".endswith(".entity"))
        self._entity = self._named[self._entity_name]
        relations = [it for name, it in self._named.items() if f".{name}".endswith(".relation")]
        self._relation = relations[0] if relations else None
        self._rows = self._row_optimizer() if lazy and config.name.startswith("row_") else None
        named = self._named.values()
        self._whole = [each for each in named if self._rows is None or each is not self._entity]
        self._dense = self._dense_optimizer(self._whole)
        self._parts: list[RowGradients] = []
        self._of_relations: list[RowGradients] = []
        self.scaler = LossScaler(scaled)
        self.spares = Spares()

    @property
    def is_lazy(self) -> bool:
        """Whether a step changes few rows of the entity table."""
        return self._rows is not None

    @property
    def runs_on_kernels(self) -> bool:
        """Whether no operator of torch is large in a step of it."""
        of_kernels = isinstance(self._dense, _Adagrad) and self._dense.is_served
        return self.is_lazy or of_kernels

    def _row_optimizer(self) -> RowOptimizer:
        config = self._config
        kind = config.name.removeprefix("row_")
        eps = EPS[kind] if config.eps is None else config.eps
        names = RowAdam.names if kind == "adam" else RowAdagrad.names
        room, shape = self._room, self._entity.shape
        states = None if room is None else {name: room(shape) for name in names}
        if kind == "adam":
            return RowAdam(self._entity, config.betas, eps, config.weight_decay, states)
        return RowAdagrad(self._entity, eps, config.weight_decay, states)

    def _dense_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Fused ones: they make no temporaries of the size of a table."""
        config = self._config
        kind = config.name.removeprefix("row_")
        on_cpu = self._entity.device.type == "cpu"
        if kind == "sgd":
            return torch.optim.SGD(
                parameters, config.lr, weight_decay=config.weight_decay, fused=True
            )
        eps = EPS[kind] if config.eps is None else config.eps
        if kind == "adam":
            betas = (config.betas[0], config.betas[1])
            return torch.optim.Adam(
                parameters, config.lr, betas, eps, config.weight_decay, fused=True
            )
        return _Adagrad(
            parameters, config.lr, weight_decay=config.weight_decay, eps=eps, fused=on_cpu
        )

    def add(self, parts: Sequence[RowGradients], of_relations: Sequence[RowGradients] = ()) -> None:
        """Keep gradients of rows of the entity table, and of the relation table, until the step."""
        self._parts += parts
        self._of_relations += of_relations

    @torch.no_grad()
    def step(self, step: int, lr: float) -> None:
        """Apply the gradients of the parameters and of the rows, and forget them."""
        rows = self._gathered_rows()
        of_relations = self._gathered_relations()
        whole = [it.grad for it in self._whole if it is not self._entity and it.grad is not None]
        self._placement.align([*whole, *(part.rows for part in of_relations)])
        if self._ready(rows, of_relations):
            for group in self._dense.param_groups:
                group["lr"] = lr
            self._dense.step()
            if of_relations and isinstance(self._dense, _Adagrad) and self._relation is not None:
                self._dense.step_rows(self._relation, of_relations)
            if self._rows is not None:
                for part in rows:
                    self._rows.step(part.ids, part.rows, lr, step)
        gradient = self._entity.grad
        for parameter in self._named.values():
            parameter.grad = None
        if gradient is not None and sys.getrefcount(gradient) <= 2:  # nobody else holds it
            self.spares.give(gradient)

    def _gathered_rows(self) -> list[RowGradients]:
        """Disjoint parts for the lazy optimizer; a dense one gets them in the table's gradient."""
        parts, self._parts = self._parts, []
        if self._rows is not None:
            return self._placement.merged(parts)
        parts = list(self._placement.gathered(parts))
        if parts:
            if self._entity.grad is None:
                self._entity.grad = torch.zeros_like(self._entity)
            add_to(self._entity.grad, parts)
        return []

    def _gathered_relations(self) -> list[RowGradients]:
        """Disjoint parts, where rows without a gradient stay as they are; else in that of all."""
        parts, self._of_relations = self._of_relations, []
        if not parts:
            return []
        relation = self._relation
        assert relation is not None
        of_rows = isinstance(self._dense, _Adagrad) and self._dense.is_of_rows
        if of_rows:
            return merge(parts)
        if relation.grad is None:
            relation.grad = torch.zeros_like(relation)
        add_to(relation.grad, parts)
        return []

    def _ready(self, rows: Sequence[RowGradients], of_relations: Sequence[RowGradients]) -> bool:
        """Unscale and clip; whether the gradients are fit for a step."""
        clip, scale = self._config.grad_clip, self.scaler.scale
        if not (clip or self.scaler.enabled):
            return True
        named = [it for it in self._named.values() if it.grad is not None]
        gradients = [it.grad for it in named if it.grad is not None]
        of_table = [it is self._entity for it in named]
        wholes = [*self._placement.wholes(rows), *(part.rows for part in of_relations)]
        norm = self._placement.norm([*gradients, *wholes], of_table + [False] * len(wholes)) / scale
        gradients += [part.rows for part in (*rows, *of_relations)]
        factor = min(1.0, clip / (norm + 1e-6)) / scale if clip else 1 / scale
        if not self.scaler.accepts(norm):
            return False
        if factor != 1 and gradients:
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


class _Adagrad(torch.optim.Adagrad):
    """Torch's, whose updates are the extension's where that serves all parameters."""

    @property
    def is_served(self) -> bool:
        """Whether it does."""
        return all(ops.serves_adagrad(it) for group in self.param_groups for it in group["params"])

    @property
    def is_of_rows(self) -> bool:
        """Whether a row whose gradient is 0 stays as it is, and :meth:`step_rows` serves others."""
        (group,) = self.param_groups
        return self.is_served and not group["weight_decay"]

    def step_rows(self, parameter: Tensor, parts: Sequence[RowGradients]) -> None:
        """Apply gradients of distinct rows: the bits of a step where those of others are 0."""
        (group,) = self.param_groups
        numbers = {name: group[name] for name in ("lr", "eps", "weight_decay")}
        state = self.state[parameter]
        state["step"] += 1
        for part in parts:
            for row, gradient in zip(part.ids.tolist(), part.rows, strict=True):
                ops.adagrad(parameter[row], state["sum"][row], gradient, **numbers)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Apply the gradients that there are; the same bits as torch's."""
        if not self.is_served:
            return super().step(closure)
        for group in self.param_groups:
            numbers = {name: group[name] for name in ("lr", "eps", "weight_decay")}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    state["step"] += 1
                    ops.adagrad(parameter, state["sum"], parameter.grad, **numbers)
        return None
