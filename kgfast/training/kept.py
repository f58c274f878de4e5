"""What a checkpoint holds of a run: taken from its objects, checked against them, given back."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from kgfast.models import Model
from kgfast.training.checkpoint import State as Checkpoint
from kgfast.training.config import Config
from kgfast.training.optim import Optimizer
from kgfast.training.run_graph import RunGraph
from kgfast.training.schedule import Patience, Schedule
from kgfast.training.state import State, check_like, check_tensors

_KNOWS_ITS_GRAPH = "graph"  # of the meta: checkpoints of an earlier kgfast lack it


@dataclass(frozen=True)
class Kept:
    """The objects of a run that remember something, but for its :class:`State`."""

    config: Config
    model: Model
    optimizer: Optimizer
    schedule: Schedule
    patience: Patience | None
    graph: RunGraph | None

    def model_tensors(self) -> dict[str, Tensor]:
        """Those of the model, ``model.`` before their names."""
        return {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}

    def tensors(self) -> dict[str, Tensor]:
        """All: the optimizer's, too, ``optim.`` before their names."""
        of_optimizer = self.optimizer.tensors().items()
        return self.model_tensors() | {f"optim.{name}": tensor for name, tensor in of_optimizer}

    def meta(self, state: State) -> dict[str, Any]:
        """What is no tensor."""
        return {
            "step": state.step,
            "config": self.config.to_dict(),
            "graph": None if self.graph is None else self.graph.rows,
            "state": state.model_dump(),
            "schedule": self.schedule.state(),
            "scaler": self.optimizer.scaler.state(),
            "patience": None if self.patience is None else self.patience.state(),
        }

    def load_model(self, tensors: dict[str, Tensor]) -> None:
        """Give the model its tensors, among others."""
        self.model.load_state_dict(_below("model.", tensors))

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
        self.load_model(tensors)
        self.optimizer.load(_below("optim.", tensors), complete=complete)
        self.optimizer.scaler.load(meta["scaler"])
        self.schedule.load(meta["schedule"])
        if self.patience is not None:
            self.patience.load(meta["patience"])
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
        check_like("schedule", meta.get("schedule"), self.schedule.state())
        check_like("scaler", meta.get("scaler"), self.optimizer.scaler.state())
        patience = None if self.patience is None else self.patience.state()
        check_like("patience", meta.get("patience"), patience)
        check_tensors("model", _below("model.", tensors), self.model.state_dict())
        self.optimizer.check(_below("optim.", tensors), complete=complete)


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose name begins with a prefix, by the rest of it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
