"""Loading a run folder as a model with names."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from kgfast.datasets import Dataset, load_negatives, with_labels
from kgfast.datasets import load as load_data
from kgfast.datasets.identity import check_same_graph
from kgfast.datasets.query_files import read_types
from kgfast.eval import Classification, Ranks, classify, rank
from kgfast.eval.candidates import check_constraints
from kgfast.graph import KnownTriples, TypeConstraints, Vocabulary
from kgfast.losses import EntitiesLoss
from kgfast.models import SIDES, Model, Side
from kgfast.models.saved import is_saved, load_tables, with_data
from kgfast.tables.files import check_tensors
from kgfast.tables.views import numbered
from kgfast.text import escaped, reading, shown
from kgfast.training.build import build_model, device_of, follow, loss_of
from kgfast.training.checkpoint import RunFolder, of_part
from kgfast.training.config import Config


class Vocabularies(NamedTuple):
    """Names of entities and relations, in the order of the rows of tables.

    A vocabulary is None if :func:`kgfast.save` wrote the folder without it.
    """

    entities: Vocabulary | None
    relations: Vocabulary | None


@dataclass(frozen=True)
class LoadedRun:
    """Run, or model that :func:`kgfast.save` saved, loaded to rank and predict.

    Attributes
    ----------
    model : Model
        The model, in eval mode, without gradients.
    vocabulary : Vocabularies, optional
        The pair ``entities, relations``; None if neither has names.
    dataset : Dataset, optional
        The data with the ids of the run, if any were loaded.
    config, step : Config and int, optional
        Of the run; None for a saved model.
    saved_known : KnownTriples, optional
        The known triples that were saved with a model.
    """

    model: Model
    vocabulary: Vocabularies | None
    dataset: Dataset | None
    config: Config | None
    step: int | None = None
    saved_known: KnownTriples | None = None

    def known(self) -> KnownTriples | None:
        """Return the triples of all splits, else known triples saved with the model, or None."""
        return self.saved_known if self.dataset is None else self.dataset.known()

    def probabilities(self, scores: Tensor) -> Tensor | None:
        """Turn scores into probabilities, for a run trained with binary cross entropy.

        The loss fits ``sigmoid(score + gamma)`` to labels ``a y + c``
        (:func:`kgfast.losses.smoothed_labels`); the probability is that ``y``, clamped to [0, 1].

        ``scores`` have any shape, without gamma. The result is float64, NaN where a score is NaN;
        None for other losses, and for models that were not trained here.
        """
        loss = self.config and loss_of(self.config.loss)
        if not isinstance(loss, EntitiesLoss) or loss.is_softmax:
            return None
        scale, shift = loss.labels(self.model.num_entities)
        margin = float(getattr(self.model, "gamma", 0.0))
        return (((scores.double() + margin).sigmoid() - shift) / scale).clamp(0.0, 1.0)

    def ranks(
        self, split: str = "test", sides: Sequence[Side] = SIDES, **options: Any
    ) -> Ranks | dict[int, Ranks]:
        """Return the filtered ranks of a split; for croppable embeddings, of each sub-model.

        A ValueError says that no data were loaded.

        Parameters
        ----------
        split : {"train", "valid", "test"}
        sides : sequence of {"head", "relation", "tail"}
        options
            Further arguments of :func:`kgfast.rank`; ``known`` replaces the triples of all splits.
        """
        dataset = self._data("rank")
        if self.config is not None:
            options.setdefault("batch_size", self.config.data.test_bs)
        if options.get("known") is None:
            options["known"] = dataset.known()
        triples, dims = dataset.split(split), self.model.dims
        return rank(self.model, triples, sides=sides, dims=dims, **options)

    def type_constraints(
        self, source: str | os.PathLike[str] | Literal["train"] = "train"
    ) -> TypeConstraints:
        """Return the entities that each relation may have on either side, by the ids of the run.

        ``source`` is "train": the heads and tails that each relation has in the training triples;
        or a ``.json`` file of relations, each with ``{"head": [...], "tail": [...]}`` of names, or
        of ids where the run has no names; or types of entities
        (:meth:`kgfast.TypeConstraints.from_types`): a ``.json`` file of entities, each with a list,
        or lines ``entity<TAB>type``. A FileNotFoundError or a ValueError names a file that is
        missing, damaged, or of another graph, and data that were not loaded.
        """
        if source == "train":
            return TypeConstraints.from_triples(self._data("types").train)
        path, names = Path(source), self.vocabulary or (None, None)
        if not path.is_file():
            raise FileNotFoundError(
                f"types: {path}: no such file; 'train' takes the types of training"
            )
        with reading(path, "not the types of this model"):
            constraints = read_types(path, names, lambda: self._data("types").train)
            check_constraints(constraints, self.model, names)
        return constraints

    def classify(self, folder: str | os.PathLike[str]) -> Classification:
        """Classify the test triples and the false test triples of a folder.

        See :func:`kgfast.classify` and :func:`kgfast.datasets.load_negatives`.
        """
        dataset = self._data("classify")
        valid, test = load_negatives(folder, dataset)
        return classify(self.model, valid=(dataset.valid, valid), test=(dataset.test, test))

    def _data(self, what: str) -> Dataset:
        if self.dataset is None:
            raise ValueError(f"{what}: no data were loaded: name a dataset, data= or --data")
        return self.dataset

    def __repr__(self) -> str:
        data = self.dataset
        words = "without data" if data is None else f"with dataset {escaped(data.name)}"
        return f"LoadedRun of {self.model!r}, {words}"


def load_run(
    folder: str | os.PathLike[str],
    data: str | os.PathLike[str] | Dataset | Literal[False] | None = None,
    *,
    checkpoint: Literal["best", "last"] = "best",
    device: torch.device | str | None = "cpu",
    as_table: bool = False,
    trust: bool = False,
) -> LoadedRun:
    """Load the model of a run, or a saved model, with names and, if there are any, the data.

    Nothing is written: the folder may have been moved, and the run may still be training.

    Parameters
    ----------
    folder
        The folder of a run; or of a model that :func:`kgfast.save`, ``kgfast export`` or ``kgfast
        convert`` wrote, whose entities are mapped from the file.
    data : path, Dataset or False, optional
        The dataset of a saved model, read by name. A run has the graph that it stores: other data
        are an error. False: no data.
    checkpoint : {"best", "last"}
        The best state by the config's metric on valid, or the newest.
    device
        The device of the model; None for the device of the config.
    as_table : bool
        Leave the entities of a saved model in the file as a :class:`kgfast.tables.Table`, which
        :func:`kgfast.rank` reads in blocks within ``max_memory``.
    trust : bool
        Import the user's own model and loss that the config of a run names, which runs their code.

    Raises
    ------
    FileNotFoundError
        If the folder is not that of a run, holds no checkpoint, or ``data`` does not exist.
    ValueError
        If a file is damaged or of another format, the checkpoint does not fit the config or the
        names, or the data are another graph; if there is code to ``trust``.
    """
    run = RunFolder(folder)
    if is_saved(run.path) and not run.config.is_file():
        model, saved_names, known = load_tables(run.path, as_table=as_table)
        data_of_saved = None
        if data is not None and data is not False:
            source = data if isinstance(data, Dataset) else load_data(data)
            data_of_saved = with_data(run.path, saved_names, source)
        if device is not None and model.entity.device != numbered(device):
            model.to(device)  # refuses a table in a file
        vocabulary = Vocabularies(*saved_names) if any(saved_names) else None
        return LoadedRun(model, vocabulary, data_of_saved, None, None, known)
    config = run.read_config()
    if as_table:
        raise ValueError(
            f"{folder} is a run, which is read whole: kgfast export --to safetensors makes a "
            "folder of tables"
        )
    if checkpoint not in ("best", "last"):
        raise ValueError(f"checkpoint must be 'best' or 'last'; got {checkpoint!r}")
    follow(config, trust=trust)
    tensors, meta = run.load_best() if checkpoint == "best" else run.load_last()
    for key, (was, now) in Config.from_dict(meta["config"]).training_differences(config).items():
        raise ValueError(
            f"{run.config}: {key} is {shown(now)}, in the checkpoint {shown(was)}: the file "
            "was changed or is damaged"
        )
    graph = run.load_graph(meta)
    names = names_of_run(run, config, graph)
    dataset = replace(graph, name=config.dataset.name)
    if data is not None and data is not False:
        source = data if isinstance(data, Dataset) else config.dataset.load(data)
        check_same_graph(dataset, source)
        dataset = replace(dataset, types=source.types)
        labels = source.entities.labels, source.relations.labels
        names = names[0].labelled(labels[0]), names[1].labelled(labels[1])
    model = model_of(run, config, tensors, names)
    model.to(device_of(config) if device is None else device)
    loaded = None if data is False else dataset
    return LoadedRun(model, Vocabularies(*names), loaded, config, meta.get("step"))


def names_of_run(run: RunFolder, config: Config, graph: Dataset) -> tuple[Vocabulary, Vocabulary]:
    """Return the names of a run, with labels from its folder or from the folder of its data."""
    names = graph.entities, graph.relations
    labelled = with_labels(run.path, names)
    with suppress(FileNotFoundError):
        return with_labels(config.dataset.folder(), names) if labelled is names else labelled
    return labelled


def model_of(
    run: RunFolder,
    config: Config,
    tensors: Mapping[str, Tensor],
    names: tuple[Vocabulary, Vocabulary],
) -> Model:
    """Make the model of a config with the tensors of a checkpoint, in eval mode.

    A ValueError says that the tensors do not fit the config or the names.
    """
    state = of_part("model", tensors)
    model = build_model(config, len(names[0]), len(names[1]), names[1].num_times)
    with reading(run.path, "the checkpoint does not fit the model"):
        check_tensors("model", state, model.state_dict())
        model.load_state_dict(state)
    return model.eval().requires_grad_(False)
