"""The states of a model along its training, with the learning rate at each."""

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kgfast.extras.influence.examples import Mode
from kgfast.models import Model, RankableModel, check_model
from kgfast.text import shown
from kgfast.training import Config, RunFolder, RunGraph, follow, model_of, read_rows
from kgfast.training.config import LossConfig, losses_of

_LOSSES = {mode: losses_of(mode) for mode in ("negative", "1vsall", "kvsall")}


@dataclass(frozen=True)
class Origin:
    """Run that wrote a checkpoint, and the step of the checkpoint."""

    config: Config
    graph: RunGraph
    step: int


@dataclass(frozen=True)
class Checkpoint:
    """A state of a model."""

    name: str  # name in messages
    open: Callable[[], Any]  # returns the model, in eval mode
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
    found = list(_each(checkpoints, device, trust))
    if not found:
        raise ValueError("checkpoints: there are none")
    for other in found[1:]:
        _check_pair(found[0], other)
    chosen, of_mode = _loss_of(found[0], loss, mode)
    return Stages(found, _rates_of(found, rates), chosen, of_mode)


def _each(checkpoints: Any, device: torch.device | str, trust: bool) -> Iterable[Checkpoint]:
    if isinstance(checkpoints, str | os.PathLike):
        path = Path(checkpoints)
        if not path.is_dir():
            yield _of_file(path, device, trust)
            return
        for file in _files_of(RunFolder(path)):
            yield _of_file(file, device, trust)
    elif isinstance(checkpoints, list | tuple):
        for one in checkpoints:
            yield from _each(one, device, trust)
    else:
        check_model(checkpoints, "dim")
        sizes = int(checkpoints.num_entities), int(checkpoints.num_relations)
        yield Checkpoint(
            f"the {type(checkpoints).__name__}", lambda: checkpoints, sizes, None, None
        )


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
    graph = folder.load_graph()
    if meta.get("graph") != graph.rows:
        raise ValueError(f"{path}: the rows belong to other names than those of {folder.graph}")
    config, step = Config.from_dict(meta["config"]), int(meta["step"])
    follow(config, trust=trust)

    def opened() -> Model:
        names = graph.entities, graph.relations
        return model_of(folder, config, folder.load(path)[0], names).to(device)

    sizes = len(graph.entities), len(graph.relations)
    rate = _logged_rate(path.parent, step)
    return Checkpoint(str(path), opened, sizes, rate, Origin(config, graph, step))


def _logged_rate(folder: Path, step: int) -> float | None:
    """Return the last logged rate up to a step, or the first one after it."""
    rows = [row for row in read_rows(folder) if isinstance(row.get("lr"), int | float)]
    before = [row for row in rows if row["step"] <= step]
    chosen = before[-1:] or rows[:1]
    return float(chosen[0]["lr"]) if chosen else None


def _check_pair(first: Checkpoint, other: Checkpoint) -> None:
    both = f"checkpoints: {first.name} and {other.name}"
    if first.sizes != other.sizes:
        raise ValueError(
            f"{both} are of different graphs: {first.sizes[0]:,} entities and "
            f"{first.sizes[1]:,} relations, {other.sizes[0]:,} and {other.sizes[1]:,}"
        )
    one, two = first.origin, other.origin
    if one is None or two is None:
        return
    if one.graph.rows != two.graph.rows or one.graph.fingerprint != two.graph.fingerprint:
        raise ValueError(f"{both} are of different graphs")
    if _trained_with(one.config) != _trained_with(two.config):
        raise ValueError(
            f"{both} were trained with different losses: {_named(one.config)} and "
            f"{_named(two.config)}"
        )


def _trained_with(config: Config) -> tuple[LossConfig, Mode, bool]:
    return config.loss, config.train.mode, config.data.target_weights


def _named(config: Config) -> str:
    options = config.loss.model_dump(exclude_defaults=True, exclude={"name"})
    if config.data.target_weights:
        options["target_weights"] = True
    said = [config.train.mode, *(f"{key} {value}" for key, value in options.items())]
    return f"{config.loss.name} ({', '.join(said)})"


def _loss_of(
    first: Checkpoint, loss: str | LossConfig | None, mode: Mode | None
) -> tuple[LossConfig, Mode]:
    """Return loss and mode; a run names both itself."""
    name = loss.name if isinstance(loss, LossConfig) else loss
    known = sorted({name for names in _LOSSES.values() for name in names})
    if name is not None and name not in known:
        raise ValueError(f"loss must be one of {', '.join(known)}; got {shown(name)}")
    if mode is not None and mode not in _LOSSES:
        raise ValueError(f"mode must be one of {', '.join(_LOSSES)}; got {shown(mode)}")
    if first.origin is not None:
        config = first.origin.config
        own, of_run = config.loss, config.train.mode
        if config.data.target_weights:
            raise ValueError(
                f"{first.name} was trained with data.target_weights, which divide an example by "
                "the others of its batch; influence does not support them"
            )
        differs = loss != own if isinstance(loss, LossConfig) else name not in (None, own.name)
        if differs or mode not in (None, of_run):
            raise ValueError(
                f"{first.name} was trained with {_named(config)}; leave loss and mode out"
            )
        return own, of_run
    if name is None:
        raise ValueError("loss: a model does not store the loss of its training; name the loss")
    chosen = loss if isinstance(loss, LossConfig) else LossConfig.model_validate({"name": name})
    of_mode: Mode = mode or ("1vsall" if name in _LOSSES["1vsall"] else "negative")
    if chosen.name not in _LOSSES[of_mode]:
        raise ValueError(f"loss {chosen.name} does not go with mode {of_mode}")
    if of_mode == "negative":
        raise ValueError(
            f"loss {chosen.name} needs the negatives of the run: give the folder or the "
            "checkpoints of the run, not a model"
        )
    return chosen, of_mode


def _rates_of(found: list[Checkpoint], rates: Sequence[float] | None) -> list[float]:
    """Return the given rates, else the logged rates."""
    if rates is not None:
        values = [float(rate) for rate in rates]
        if len(values) != len(found):
            raise ValueError(f"rates must have one per checkpoint, {len(found)}; got {len(values)}")
        bad = [rate for rate in values if not (math.isfinite(rate) and rate > 0)]
        if bad:
            raise ValueError(f"rates must be finite and above 0; got {bad[0]}")
        return values
    for checkpoint in found:
        if checkpoint.rate is None:
            raise ValueError(
                f"{checkpoint.name} has no learning rate"
                + ("" if checkpoint.origin is None else ": the run's log has none")
                + "; give rates"
            )
    return [checkpoint.rate for checkpoint in found if checkpoint.rate is not None]
