"""What a checkpoint holds of a run: its tensors and its state, and what they must be to go on with.

Everything is checked before anything is changed: a state that does not fit is refused as a whole.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError
from torch import Tensor

from kgfast.models import Model
from kgfast.training.checkpoint import State as Checkpoint
from kgfast.training.checkpoint import check_like, check_names, check_tensors, of_part
from kgfast.training.config import Config
from kgfast.training.optim import LossScaler, Optimizer
from kgfast.training.parallel.placement import Placement
from kgfast.training.run_folder import RunFolder
from kgfast.training.run_graph import RunGraph
from kgfast.training.schedule import Patience, Schedule
from kgfast.training.shard_files import Kind

Write = Callable[[Mapping[str, Tensor], Mapping[str, Any]], None]
_KNOWS_ITS_GRAPH = "graph"  # of the meta: checkpoints of an earlier kgfast lack it


class State(BaseModel):
    """What of a run is neither a tensor nor follows from its step.

    Attributes
    ----------
    step : int
        Steps that were made.
    best, best_step, valid, valid_of_submodels
        The best metric on valid, when it was seen, and all metrics then; of croppable embeddings
        those of the widest, and of each by its width.
    loss_sum, loss_count
        Since the last row of the log.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    step: NonNegativeInt = 0
    best: float | None = None
    best_step: NonNegativeInt = 0
    valid: dict[str, float] = {}
    valid_of_submodels: dict[str, dict[str, float]] = {}
    loss_sum: float = 0.0
    loss_count: NonNegativeInt = 0
    seconds_training: float = 0.0
    seconds_evaluating: float = 0.0
    stopped_early: bool = False

    @classmethod
    def of(cls, values: Any, *, complete: bool = True) -> Self:
        """The state that a checkpoint holds.

        Parameters
        ----------
        values : mapping
            What ``model_dump`` made.
        complete : bool
            Whether all keys must be there; those of an earlier kgfast may lack the newer ones.

        Raises
        ------
        ValueError
            If a key is missing or unknown, or a value of another type.

        Examples
        --------
        >>> State.of({"step": "3"}, complete=False)
        Traceback (most recent call last):
        ValueError: state.step: Input should be a valid integer; got '3'
        """
        if not isinstance(values, Mapping):
            raise ValueError(f"state must be a mapping; got {values!r:.60}")
        names = set(cls.model_fields)
        check_names("state", values, names if complete else names & set(values))
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, ("state", *first["loc"])))
            raise ValueError(f"{where}: {first['msg']}; got {first['input']!r:.60}") from None


@dataclass(frozen=True)
class Kept:
    """Objects of a run that remember something beside its :class:`State`.

    A checkpoint is taken from them and written, or read, checked against them and given back.
    Nothing is written without a folder.
    """

    config: Config
    model: Model
    optimizer: Optimizer
    schedule: Schedule
    patience: Patience | None
    graph: RunGraph | None
    folder: RunFolder | None
    placement: Placement

    def save(self, state: State) -> None:
        """Write the newest state."""
        if self.folder is not None:
            write = partial(self.folder.save_last, keep=self.config.train.keep)
            self._write("state", self.tensors(), state, write)

    def save_best(self, state: State) -> None:
        """Write the model as that of the best state."""
        if self.folder is not None:
            self._write("model", self.model_tensors(), state, self.folder.save_best)

    def save_model(self, state: State) -> None:
        """Write the model as one that is kept."""
        if self.folder is not None:
            write = partial(self.folder.save_model, state.step)
            self._write("model", self.model_tensors(), state, write)

    def _write(self, kind: Kind, tensors: dict[str, Tensor], state: State, write: Write) -> None:
        """Write a checkpoint: its rows, where they are no part of it, and then itself."""
        assert self.folder is not None
        head = self.placement.head(self.folder, kind, (tensors, self.meta(state)))
        if self.placement.leads:
            write(*head)

    def resume(self) -> State | None:
        """Go on from the newest state of the folder, and return it; None if there is none."""
        checkpoint = None if self.folder is None else self.folder.load_last(self.check)
        return None if checkpoint is None else self.load(checkpoint)

    def load_best(self) -> int:
        """Give the model the tensors of the best state, and return the step of that."""
        assert self.folder is not None
        tensors, meta = self.folder.load_best()
        self._load_model(tensors)
        return int(meta["step"])

    def model_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the model, ``model.`` before their names."""
        return {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the model and, ``optim.`` before their names, the optimizer's."""
        of_optimizer = self.optimizer.tensors().items()
        return self.model_tensors() | {f"optim.{name}": tensor for name, tensor in of_optimizer}

    def meta(self, state: State) -> dict[str, Any]:
        """Return the JSON part of the checkpoint."""
        return {
            "step": state.step,
            "config": self.config.to_dict(),
            "graph": None if self.graph is None else self.graph.rows,
            "state": state.model_dump(),
            **self._numbers(),
        }

    @property
    def _remembering(self) -> dict[str, Schedule | LossScaler | Patience | None]:
        """The objects that remember numbers, by their names in the meta."""
        scaler = self.optimizer.scaler
        return {"schedule": self.schedule, "scaler": scaler, "patience": self.patience}

    def _numbers(self) -> dict[str, dict[str, Any] | None]:
        held = self._remembering.items()
        return {name: None if it is None else it.state() for name, it in held}

    def _load_model(self, tensors: dict[str, Tensor]) -> None:
        """Give the model its tensors, among others."""
        self.model.load_state_dict(of_part("model", tensors))

    def load(self, checkpoint: Checkpoint) -> State:
        """Give a checkpoint that was checked to the objects, and return the run's state.

        Raises
        ------
        ValueError
            If it is one of another config: names the keys. Nothing is changed then.
        """
        tensors, meta = checkpoint
        changed = Config.from_dict(meta["config"]).training_differences(self.config)
        if changed:
            raise ValueError(
                "the run was started with another config: "
                + ", ".join(f"{key} was {old!r}, is {new!r}" for key, (old, new) in changed.items())
            )
        complete = _KNOWS_ITS_GRAPH in meta
        self._load_model(tensors)
        self.optimizer.load(of_part("optim", tensors), complete=complete)
        for name, it in self._remembering.items():
            if it is not None:
                it.load(meta[name])
        return State.of(meta["state"], complete=complete)

    def check(self, checkpoint: Checkpoint) -> None:
        """Raise a ValueError unless the run can go on from a checkpoint; changes nothing.

        One of another config passes: none of the folder can be gone on with then.
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
        graph = None if self.graph is None else self.graph.rows
        if complete and meta[_KNOWS_ITS_GRAPH] != graph:
            raise ValueError("its rows belong to other names than those of the run")
        state = State.of(meta.get("state"), complete=complete)
        if type(meta.get("step")) is not int or meta["step"] != state.step:
            raise ValueError(f"step is {meta.get('step')!r:.60}, that of its state {state.step}")
        for name, numbers in self._numbers().items():
            check_like(name, meta.get(name), numbers)
        check_tensors("model", of_part("model", tensors), self.model.state_dict())
        self.optimizer.check(of_part("optim", tensors), complete=complete)
