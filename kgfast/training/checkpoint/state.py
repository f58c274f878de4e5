"""The state of a run, taken for a checkpoint, or checked as a whole and given back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError
from torch import Tensor

from kgfast.models import Model
from kgfast.training.checkpoint.format import State as Checkpoint
from kgfast.training.checkpoint.format import check_like, check_names, check_tensors, of_part
from kgfast.training.checkpoint.run_folder import RunFolder
from kgfast.training.checkpoint.run_graph import RunGraph
from kgfast.training.checkpoint.shard_files import Kind
from kgfast.training.config import Config
from kgfast.training.optimizer import LossScaler, Optimizer
from kgfast.training.processes.placement import Placement
from kgfast.training.schedule import Patience, Schedule

Write = Callable[[Mapping[str, Tensor], Mapping[str, Any]], None]
_KNOWS_ITS_GRAPH = "graph"  # key of the meta that checkpoints of an earlier kgfast lack
_NEW_NUMBERS = {"seconds_cpu"}  # keys of the state that they lack too, which may be missing


class State(BaseModel):
    """Numbers of a run that are no tensors and do not follow from the step."""

    model_config = ConfigDict(extra="forbid", strict=True)

    step: NonNegativeInt = 0  # steps made
    best: float | None = None  # value of the best metric on valid
    best_step: NonNegativeInt = 0
    valid: dict[str, float] = {}  # all metrics of the best state; for MED, of the widest sub-model
    valid_of_submodels: dict[str, dict[str, float]] = {}  # metrics by width
    loss_sum: float = 0.0  # sum since the last row of the log
    loss_count: NonNegativeInt = 0
    seconds_training: float = 0.0
    seconds_evaluating: float = 0.0
    seconds_cpu: float = 0.0  # part of seconds_training, by all threads of process 0
    stopped_early: bool = False

    @classmethod
    def of(cls, values: Any, *, complete: bool = True) -> Self:
        """Check the values of a checkpoint; unless ``complete``, newer keys may be missing.

        >>> State.of({"step": "3"}, complete=False)
        Traceback (most recent call last):
        ValueError: state.step: Input should be a valid integer; got '3'
        """
        if not isinstance(values, Mapping):
            raise ValueError(f"state must be a mapping; got {values!r:.60}")
        names = set(cls.model_fields)
        optional = _NEW_NUMBERS if complete else names
        check_names("state", values, names - optional | names & set(values))
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, ("state", *first["loc"])))
            raise ValueError(f"{where}: {first['msg']}; got {first['input']!r:.60}") from None


@dataclass(frozen=True)
class Kept:
    """Objects of a run with state in a checkpoint, beside the :class:`State`."""

    config: Config
    model: Model
    optimizer: Optimizer
    schedule: Schedule
    patience: Patience | None
    graph: RunGraph | None
    placement: Placement

    def save(self, folder: RunFolder, kind: Kind, state: State, write: Write) -> None:
        """Write a checkpoint: the rows of shards by all processes, then the head by process 0."""
        head = self.placement.head(folder, kind, (self.tensors(kind), self.meta(state)))
        if self.placement.leads:
            write(*head)

    def load_best(self, folder: RunFolder) -> int:
        """Give the model the tensors of the best state; return the step of that state."""
        tensors, meta = folder.load_best()
        self.model.load_state_dict(of_part("model", tensors))
        return int(meta["step"])

    def tensors(self, kind: Kind = "state") -> dict[str, Tensor]:
        """Return tensors named ``model.<name>``; for a state also ``optim.<name>``."""
        found = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        if kind == "state":
            found |= {f"optim.{name}": it for name, it in self.optimizer.tensors().items()}
        return found

    def meta(self, state: State) -> dict[str, Any]:
        """Return the JSON part of the checkpoint."""
        return {
            "step": state.step,
            "config": self.config.to_dict(),
            "graph": self._rows,
            "state": state.model_dump(),
            **self._numbers(),
        }

    @property
    def _remembering(self) -> dict[str, Schedule | LossScaler | Patience | None]:
        scaler = self.optimizer.scaler
        return {"schedule": self.schedule, "scaler": scaler, "patience": self.patience}

    def _numbers(self) -> dict[str, dict[str, Any] | None]:
        held = self._remembering.items()
        return {name: None if it is None else it.state() for name, it in held}

    @property
    def _rows(self) -> str | None:
        return None if self.graph is None else self.graph.rows

    def load(self, checkpoint: Checkpoint) -> State:
        """Give a checked checkpoint to the objects, and return the state of the run.

        For another config, a ValueError names the keys before any change.
        """
        tensors, meta = checkpoint
        changed = Config.from_dict(meta["config"]).training_differences(self.config)
        if changed:
            raise ValueError(
                "the run was started with another config: "
                + ", ".join(f"{key} was {old!r}, is {new!r}" for key, (old, new) in changed.items())
            )
        complete = _KNOWS_ITS_GRAPH in meta
        self.model.load_state_dict(of_part("model", tensors))
        self.optimizer.load(of_part("optim", tensors), complete=complete)
        for name, it in self._remembering.items():
            if it is not None:
                it.load(meta[name])
        return State.of(meta["state"], complete=complete)

    def check(self, checkpoint: Checkpoint) -> None:
        """Raise a ValueError unless the run can resume from a checkpoint; change nothing.

        A checkpoint of another config passes: :meth:`load` raises for such a checkpoint, so that no
        older one is tried.
        """
        tensors, meta = checkpoint
        complete = _KNOWS_ITS_GRAPH in meta
        config = meta.get("config")
        if not isinstance(config, dict):
            raise ValueError(f"config must be a mapping; got {config!r:.60}")
        try:
            changed = Config.from_dict(config).training_differences(self.config)
        except RecursionError:
            raise ValueError("config is nested too deeply") from None
        except ValueError as error:
            raise ValueError(f"config: {', '.join(str(error).splitlines())}") from None
        if changed:
            return
        if complete and meta[_KNOWS_ITS_GRAPH] != self._rows:
            raise ValueError("the rows belong to other names than those of the run")
        state = State.of(meta.get("state"), complete=complete)
        if type(meta.get("step")) is not int or meta["step"] != state.step:
            raise ValueError(f"step is {meta.get('step')!r:.60}, that of the state {state.step}")
        for name, numbers in self._numbers().items():
            check_like(name, meta.get(name), numbers)
        check_tensors("model", of_part("model", tensors), self.model.state_dict())
        self.optimizer.check(of_part("optim", tensors), complete=complete)
