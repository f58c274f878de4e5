"""The states of a model along its training, with the learning rate at each."""

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kgfast.datasets import Dataset
from kgfast.extras.influence.examples import Mode
from kgfast.models import Model, RankableModel, check_model
from kgfast.text import shown
from kgfast.training import Config, RunFolder, follow, model_of, read_rows
from kgfast.training.config import LossConfig, losses_of


@dataclass(frozen=True)
class Origin:
    """Run that wrote a checkpoint, and the step of the checkpoint."""

    config: Config
    graph: Dataset
    step: int


@dataclass(frozen=True)
class Checkpoint:
    """A state of a model."""

    name: str  # name in messages
    open: Callable[[], Any]  # returns the model
    sizes: tuple[int, int]  # entities, relations
    rate: float | None  # learning rate; None: unknown
    origin: Origin | None  # None for a model in memory


@dataclass(frozen=True)
class Stages:
    """Checkpoints of one training, with the loss of that training."""

    checkpoints: list[Checkpoint]
    rates: list[float]
    loss: LossConfig
    mode: Mode


# Checkpoints that callers may pass.
_One = str | os.PathLike[str] | RankableModel
Checkpoints = _One | Sequence[_One]


def stages_of(
    checkpoints: Checkpoints,
    loss: str | LossConfig | None,
    mode: Mode | None,
    rates: Sequence[float] | None,
    device: torch.device | str,
    trust: bool,
) -> Stages:
    """Read the checkpoints of :func:`tracin` and check them against each other."""
    stages = list(_each(checkpoints, device, trust))
    if not stages:
        raise ValueError("checkpoints: there are none")
    for other in stages[1:]:
        _check_pair(stages[0], other)
    chosen, of_mode = _loss_of(stages[0], loss, mode)
    return Stages(stages, _rates_of(stages, rates), chosen, of_mode)


def _each(checkpoints: Any, device: torch.device | str, trust: bool) -> Iterable[Checkpoint]:
    if isinstance(checkpoints, str | os.PathLike):
        path = Path(checkpoints)
        for file in _files_of(RunFolder(path)) if path.is_dir() else [path]:
            yield _of_file(file, device, trust)
    elif isinstance(checkpoints, list | tuple):
        for one in checkpoints:
            yield from _each(one, device, trust)
    else:
        check_model(checkpoints, "dim")
        sizes = int(checkpoints.num_entities), int(checkpoints.num_relations)
        name = f"the {type(checkpoints).__name__}"
        yield Checkpoint(name, lambda: checkpoints, sizes, None, None)


def _files_of(folder: RunFolder) -> list[Path]:
    """List the models that a run saved; without any, the best or last state."""
    states = [path for path in (folder.best, folder.last) if path.exists()]
    files = folder.models() or states[:1]
    if not files:
        raise FileNotFoundError(f"{folder.path} holds no checkpoint")
    return files


def _of_file(path: Path, device: torch.device | str, trust: bool) -> Checkpoint:
    folder = RunFolder(path.parent)
    _, meta = folder.load(path)
    graph = folder.load_graph(meta)
    config, step = Config.from_dict(meta["config"]), int(meta["step"])
    follow(config, trust=trust)

    def opened() -> Model:
        names = graph.entities, graph.relations
        return model_of(folder, config, folder.load(path)[0], names).to(device)

    sizes = len(graph.entities), len(graph.relations)
    rows = [row for row in read_rows(path.parent) if isinstance(row.get("lr"), int | float)]
    # the last logged rate up to the step, or the first one after it
    chosen = [row for row in rows if row["step"] <= step][-1:] or rows[:1]
    rate = float(chosen[0]["lr"]) if chosen else None
    return Checkpoint(str(path), opened, sizes, rate, Origin(config, graph, step))


def _check_pair(first: Checkpoint, other: Checkpoint) -> None:
    both = f"checkpoints: {first.name} and {other.name}"
    one, two = first.origin, other.origin
    is_same = first.sizes == other.sizes
    if one is not None and two is not None:
        is_same &= one.graph.entities == two.graph.entities
        is_same &= one.graph.relations == two.graph.relations
        is_same &= torch.equal(one.graph.train.hrt, two.graph.train.hrt)
        if is_same and _trained_with(one.config) != _trained_with(two.config):
            raise ValueError(f"{both} were trained with different losses")
    if not is_same:
        raise ValueError(f"{both} are of different graphs")


def _trained_with(config: Config) -> tuple[LossConfig, Mode, bool]:
    return config.loss, config.train.mode, config.data.target_weights


def _loss_of(
    first: Checkpoint, loss: str | LossConfig | None, mode: Mode | None
) -> tuple[LossConfig, Mode]:
    """Return loss and mode; a run names both itself."""
    if first.origin is not None:
        config = first.origin.config
        if loss is not None or mode is not None:
            raise ValueError(
                f"{first.name} was trained with {config.loss.name} ({config.train.mode}); leave "
                "loss and mode out"
            )
        if config.data.target_weights:
            raise ValueError(
                f"{first.name} was trained with data.target_weights, which divide an example by "
                "the others of its batch; influence does not support them"
            )
        return config.loss, config.train.mode
    of_mode: Mode = mode or "1vsall"
    name = loss.name if isinstance(loss, LossConfig) else loss
    if of_mode not in ("1vsall", "kvsall"):
        raise ValueError(f"mode must be 1vsall or kvsall for a model; got {shown(mode)}")
    if name not in losses_of(of_mode):
        raise ValueError(
            f"loss of a model must be one of {', '.join(losses_of(of_mode))} with {of_mode}; got "
            f"{shown(name)} (sampled losses need the negatives of a run: give its folder)"
        )
    chosen = loss if isinstance(loss, LossConfig) else LossConfig.model_validate({"name": name})
    return chosen, of_mode


def _rates_of(stages: list[Checkpoint], rates: Sequence[float] | None) -> list[float]:
    """Return the given rates, else the logged rates."""
    values = [stage.rate for stage in stages] if rates is None else [float(rate) for rate in rates]
    if len(values) != len(stages):
        raise ValueError(f"rates must have one per checkpoint, {len(stages)}; got {len(values)}")
    for stage, rate in zip(stages, values, strict=True):
        if rate is None:
            raise ValueError(f"{stage.name} has no learning rate in a log; give rates")
        if not (math.isfinite(rate) and rate > 0):
            raise ValueError(f"rates must be finite and above 0; got {rate}")
    return [rate for rate in values if rate is not None]
