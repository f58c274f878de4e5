"""A finished run, or one that still runs, as a model with names."""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from kgfast.datasets import Dataset
from kgfast.eval import Ranks
from kgfast.graph import Vocabulary
from kgfast.losses import LOSSES, EntitiesFormula
from kgfast.models import SIDES, Model, Side
from kgfast.text import escaped
from kgfast.training.build import build_model, device_of, load_dataset, ranks_of
from kgfast.training.checkpoint import State, check_tensors, of_part
from kgfast.training.config import Config
from kgfast.training.run_folder import RunFolder
from kgfast.training.run_graph import RunGraph


class Vocabularies(NamedTuple):
    """The names of a run, in the order of the rows of its tables."""

    entities: Vocabulary
    relations: Vocabulary


@dataclass(frozen=True)
class LoadedRun:
    """What a run folder holds, ready to rank and predict with.

    Attributes
    ----------
    model : Model
        In eval mode, without gradients.
    vocabulary : Vocabularies, optional
        The pair ``entities, relations``. None of a run of an earlier kgfast whose data were not
        found.
    dataset : Dataset, optional
        With the run's ids; None where it was not found.
    config : Config
    step : int, optional
        After which the checkpoint was saved; None where it does not say so.
    """

    model: Model
    vocabulary: Vocabularies | None
    dataset: Dataset | None
    config: Config
    step: int | None = None

    def probabilities(self, scores: Tensor) -> Tensor | None:
        """What a run trained with binary cross entropy takes scores for: probabilities.

        The loss fits ``sigmoid(score + gamma)`` to labels ``a y + c``
        (:func:`kgfast.losses.smoothed_labels`); this is the ``y`` of it, within 0 and 1. None for
        other losses, which say which score is higher and no more.

        Parameters
        ----------
        scores : Tensor
            Those of ranks, predictions and facts, without gamma; any shape.

        Returns
        -------
        Tensor, optional
            float64 of the same shape, NaN where a score is.
        """
        loss = self.config.loss
        formula = LOSSES[loss.name].formula(**loss.hyperparameters())
        if not isinstance(formula, EntitiesFormula) or formula.is_softmax:
            return None
        scale, shift = formula.labels(self.model.num_entities)
        margin = float(getattr(self.model, "gamma", 0.0))
        return (((scores.double() + margin).sigmoid() - shift) / scale).clamp(0.0, 1.0)

    def ranks(self, split: str = "test", sides: Sequence[Side] = SIDES) -> Ranks | dict[int, Ranks]:
        """Return the filtered ranks of a split; of croppable embeddings, those of each sub-model.

        Raises
        ------
        FileNotFoundError
            If the data were not found: says where they were looked for.
        ValueError
            If the run was loaded without its data.
        """
        if self.dataset is None:
            load_dataset(self.config)  # says where it was looked for
            raise ValueError("the run was loaded without its data")
        return ranks_of(self.model, self.dataset, split, self.config, sides)

    def __repr__(self) -> str:
        data = (
            "without data" if self.dataset is None else f"with dataset {escaped(self.dataset.name)}"
        )
        return f"LoadedRun of {self.model!r}, {data}"


def load_run(
    folder: str | os.PathLike[str],
    data: str | os.PathLike[str] | Dataset | Literal[False] | None = None,
    *,
    checkpoint: Literal["best", "last"] = "best",
    device: torch.device | str | None = "cpu",
    overrides: Sequence[str] | None = None,
) -> LoadedRun:
    """Load a run: its model, the names of its rows and, where they are at hand, its data.

    The folder may have been moved, and the run may still be going on: nothing is written.

    Parameters
    ----------
    folder
        Of the run.
    data : path, Dataset or False, optional
        A folder that holds the dataset, or the folder of datasets that it is in; it must be there.
        By default where the config says, if it is there. False: without data.
    checkpoint : {"best", "last"}
        The best by the config's metric on valid, or the newest.
    device
        Where to put the model; None: on the device of the config.
    overrides : sequence of str
        ``"dataset.root=DIR"``: keys of the config to change, as ``kgfast train --set`` does.

    Returns
    -------
    LoadedRun

    Raises
    ------
    FileNotFoundError
        If the folder is not that of a run, holds no checkpoint, or ``data`` is not there.
    ValueError
        If a file is damaged, the checkpoint does not fit the config or the names, or the data are
        another graph than the run began with: names the first five names or triples.

    Examples
    --------
    >>> import tempfile
    >>> from kgfast.datasets import synthetic
    >>> from kgfast.training import Trainer
    >>> config = Config.from_dict({
    ...     "dataset": {"name": "synthetic"},
    ...     "model": {"name": "rotate", "base_dim": 8},
    ...     "optim": {"lr": 0.01},
    ...     "train": {"steps": 5},
    ...     "data": {"train_bs": 64, "neg_size": 16},
    ... })
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     graph = synthetic(200, 6, 500, 50, 50)
    ...     _ = Trainer(config, folder, dataset=graph, progress=False).fit()
    ...     run = load_run(folder, data=False)
    >>> run.vocabulary.entities == graph.entities
    True
    """
    run = RunFolder(folder)
    config = run.read_config(overrides)
    tensors, meta = _state(run, checkpoint)
    graph = run.load_graph()
    if graph is not None and meta.get("graph", graph.rows) != graph.rows:
        raise ValueError(
            f"{run.path}: the rows of its {checkpoint} checkpoint belong to other names than those "
            f"of {run.graph.name}: one of the two comes from another run"
        )
    dataset = _data(run, config, data, graph)
    named = graph or dataset
    vocabulary = None if named is None else Vocabularies(named.entities, named.relations)
    model = model_of(run, config, tensors, vocabulary)
    model.to(device_of(config) if device is None else device)
    return LoadedRun(model, vocabulary, dataset, config, meta.get("step"))


def _state(run: RunFolder, checkpoint: str) -> State:
    if checkpoint not in ("best", "last"):
        raise ValueError(f"checkpoint must be 'best' or 'last'; got {checkpoint!r}")
    state = run.load_best() if checkpoint == "best" else run.load_last()
    if state is None:
        raise FileNotFoundError(f"{run.path} holds no checkpoint")
    return state


def _data(
    run: RunFolder,
    config: Config,
    data: str | os.PathLike[str] | Dataset | Literal[False] | None,
    graph: RunGraph | None,
) -> Dataset | None:
    """The dataset with the ids of the run, if it is wanted and there."""
    if data is False:
        return None
    if isinstance(data, Dataset):
        dataset, source = data, f"dataset {data.name}"
    else:
        try:
            dataset = load_dataset(config, data)
        except FileNotFoundError:
            if data is not None:
                raise
            return None
        source = f"dataset {dataset.name} in {config.dataset.root if data is None else data}"
    if graph is not None:
        return graph.read(dataset, source)
    warnings.warn(
        f"{run.path} was made by an earlier kgfast and does not say which graph it began with: "
        f"{source} is taken for it",
        stacklevel=4,
    )
    return dataset


def model_of(
    run: RunFolder, config: Config, tensors: Mapping[str, Tensor], names: Vocabularies | None
) -> Model:
    """The model of a config with the tensors of a checkpoint, in eval mode, without gradients.

    Raises
    ------
    ValueError
        If they do not fit each other, or the names.
    """
    state = of_part("model", tensors)
    if names is None:
        sizes = _sizes(run, config, state)
    else:
        sizes = len(names.entities), len(names.relations)
    model = build_model(config, *sizes)
    try:
        check_tensors("model", state, model.state_dict())
        model.load_state_dict(state)
    except (ValueError, RuntimeError) as error:
        why = " ".join(str(error).split())
        raise ValueError(f"{run.path}: the checkpoint does not fit the model: {why}") from None
    return model.eval().requires_grad_(False)


def _sizes(run: RunFolder, config: Config, state: Mapping[str, Tensor]) -> tuple[int, int]:
    """Numbers of entities and relations by the tables, where nobody has their names."""
    rows = {}
    for name in ("entity", "relation"):
        tables = [table for key, table in state.items() if f".{key}".endswith(f".{name}")]
        if len(tables) != 1 or tables[0].ndim != 2:
            raise ValueError(f"{run.path}: the checkpoint does not fit the model: no {name} table")
        rows[name] = len(tables[0])
    return rows["entity"], rows["relation"] // (2 if config.model.has_inverses else 1)
