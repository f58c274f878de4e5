"""Loading a run folder as a model with names."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from kgfast.datasets import Dataset, load_negatives, with_labels
from kgfast.datasets import load as load_data
from kgfast.eval import Classification, Ranks, classify, rank
from kgfast.eval.candidates import check_constraints
from kgfast.graph import KnownTriples, Names, Triples, TypeConstraints, Vocabulary
from kgfast.graph.ids import read_id
from kgfast.losses import EntitiesLoss
from kgfast.models import SIDES, Model, Side
from kgfast.tables.views import numbered
from kgfast.text import each_key_once, escaped, reading, shown
from kgfast.training.build import build_model, device_of, follow, load_dataset, loss_of
from kgfast.training.checkpoint import check_tensors, of_part
from kgfast.training.config import Config
from kgfast.training.run_folder import RunFolder, RunGraph
from kgfast.training.saved import holds_tables, load_tables, with_data


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
        The data with the ids of the run; None if no data were asked for.
    config : Config, optional
        None for a model that was not trained here.
    step : int, optional
        The step of the checkpoint, if known.
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
        if self.config is None:
            return None
        section = self.config.loss
        loss = loss_of(section.name)(**section.hyperparameters())
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
        if self.dataset is None:
            raise ValueError("no data were loaded to rank: name a dataset, data= or --data")
        if self.config is not None:
            options.setdefault("batch_size", self.config.data.test_bs)
        if options.get("known") is None:
            options["known"] = self.dataset.known()
        triples, dims = self.dataset.split(split), getattr(self.model, "dims", None)
        return rank(self.model, triples, sides=sides, dims=dims, **options)

    def type_constraints(
        self, source: str | os.PathLike[str] | Literal["train"] = "train"
    ) -> TypeConstraints:
        """Return the entities that each relation may have on either side, by the ids of the run.

        Parameters
        ----------
        source : "train" or path
            The heads and tails that each relation has in the training triples; or a file:

            - ``.json``: an object of relations, each with ``{"head": [...], "tail": [...]}`` of
              names, or of ids where the run has no names;
            - ``.json``: an object of entities, each with a list of its types; ``.tsv``: lines
              ``entity<TAB>type``. Both need the training triples
              (:meth:`kgfast.TypeConstraints.from_types`).

        Raises
        ------
        FileNotFoundError, ValueError
            If there is no such file, or the data of the run are needed and were not loaded; if a
            file is damaged, or of more entities or relations, or of other names, than the run.
        """
        if source == "train":
            return TypeConstraints.from_triples(self._train_for("'train'"))
        path, names = Path(source), self.vocabulary or (None, None)
        if not path.is_file():
            raise FileNotFoundError(
                f"types: {path}: no such file; 'train' takes the types of training"
            )
        with reading(path, "not the types of this model"):
            if path.suffix == ".json":
                constraints = self._constraints_of_json(path, names)
            else:
                lines = path.read_text(encoding="utf-8").splitlines()
                pairs = [(entity, kind) for entity, kind in (it.split("\t") for it in lines if it)]
                constraints = TypeConstraints.from_types(self._train_for(path), pairs)
            check_constraints(constraints, self.model, names)
        return constraints

    def _train_for(self, source: str | Path) -> Triples:
        if self.dataset is None:
            raise ValueError(f"types: {source} needs the data of the run, which were not loaded")
        return self.dataset.train

    def _constraints_of_json(self, path: Path, names: Names) -> TypeConstraints:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=each_key_once)
        if not isinstance(content, dict):
            raise ValueError(f"{path}: must hold an object of relations; got {shown(content)}")
        lists = [value for value in content.values() if isinstance(value, list)]
        if lists and all(isinstance(kind, str) for kinds in lists for kind in kinds):
            pairs = [(name, kind) for name, kinds in content.items() for kind in kinds]
            return TypeConstraints.from_types(self._train_for(path), pairs)
        if names[1] is None:  # keys are ids
            content = {read_id(key): sides for key, sides in content.items()}
        return TypeConstraints(content, vocabulary=names)

    def classify(self, folder: str | os.PathLike[str] | None = None) -> Classification:
        """Classify the test triples and false test triples (:func:`kgfast.classify`).

        Errors are those of files, and a ValueError for a run without data.

        Parameters
        ----------
        folder
            The folder of ``valid_negatives.txt`` and ``test_negatives.txt``
            (:func:`kgfast.datasets.load_negatives`); by default the folder of the dataset.
        """
        if self.dataset is None:
            raise ValueError("classify: needs the data of the run, which were not loaded")
        if folder is None:
            if self.config is None:
                raise ValueError("classify: name the folder of the false triples")
            folder = self.config.dataset.folder()
        valid, test = load_negatives(folder, self.dataset)
        return classify(
            self.model, valid=(self.dataset.valid, valid), test=(self.dataset.test, test)
        )

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
    overrides: Sequence[str] | None = None,
    as_table: bool = False,
    trust: bool = False,
) -> LoadedRun:
    """Load the model of a run, or a saved model, with names and, if found, the data.

    Nothing is written: the folder may have been moved, and the run may still be training.

    Parameters
    ----------
    folder
        The folder of a run; or of a model that :func:`kgfast.save`, ``kgfast export`` or ``kgfast
        convert`` wrote, whose entities are mapped from the file.
    data : path, Dataset or False, optional
        The folder of the dataset, or of datasets; by default the folder in the config and, if that
        is missing, the graph that the run stores. False loads no data. With a saved model, the
        folder of its dataset.
    checkpoint : {"best", "last"}
        The best state by the config's metric on valid, or the newest.
    device
        The device of the model; None for the device of the config.
    overrides : sequence of str
        Keys of the config to change, such as ``"dataset.root=DIR"``: see ``kgfast train --set``.
    as_table : bool
        Leave the entities of a saved model in the file as a :class:`kgfast.tables.Table`, which
        :func:`kgfast.rank` reads in blocks within ``max_memory``.
    trust : bool
        Import the user's own model and loss that the config of a run names, which runs their code.

    Returns
    -------
    LoadedRun

    Raises
    ------
    FileNotFoundError
        If the folder is not that of a run, holds no checkpoint, or ``data`` does not exist.
    ValueError
        If a file is damaged or of another format, the checkpoint does not fit the config or the
        names, or the data are another graph: the message lists the first five differences. If the
        config names code of the user's own and ``trust`` is False.
    """
    path = Path(folder)
    if holds_tables(path):
        if overrides:
            raise ValueError(f"overrides: {folder} holds tables, not a run, and has no config.yaml")
        return loaded_tables(path, *load_tables(path, as_table=as_table), data, device)
    run = RunFolder(path)
    config = run.read_config(overrides)
    if as_table:
        raise ValueError(f"as_table: {folder} is a run, not a folder of tables")
    if checkpoint not in ("best", "last"):
        raise ValueError(f"checkpoint must be 'best' or 'last'; got {checkpoint!r}")
    follow(config, trust=trust)
    state = run.load_best() if checkpoint == "best" else run.load_last()
    if state is None:
        raise FileNotFoundError(f"{run.path} holds no checkpoint")
    tensors, meta = state
    in_file = run.read_config() if overrides else config
    changed = Config.from_dict(meta["config"]).training_differences(in_file)
    for key, (was, now) in changed.items():
        raise ValueError(
            f"{run.config}: {key} is {shown(now)}, in the checkpoint {shown(was)}: the file "
            "was changed or is damaged"
        )
    graph = run.load_graph()
    if meta.get("graph") != graph.rows:
        raise ValueError(
            f"{run.path}: the rows of the {checkpoint} checkpoint belong to other names than "
            f"those of {run.graph.name}: one of the two comes from another run"
        )
    is_named = data is not None or any(key.startswith("dataset.") for key in overrides or ())
    dataset = _data(config, data, graph, is_named=is_named)
    names = names_of_run(run, config, graph, dataset)
    model = model_of(run, config, tensors, names)
    model.to(device_of(config) if device is None else device)
    return LoadedRun(model, Vocabularies(*names), dataset, config, meta.get("step"))


def loaded_tables(
    folder: str | os.PathLike[str],
    model: Any,
    names: Names,
    known: KnownTriples | None,
    data: str | os.PathLike[str] | Dataset | Literal[False] | None,
    device: torch.device | str | None = None,
) -> LoadedRun:
    dataset = None
    if data is not None and data is not False:
        source = data if isinstance(data, Dataset) else load_data(data)
        names, dataset = with_data(Path(folder), model, names, source)
    if device is not None and model.entity.device != numbered(device):
        model.to(device)  # refuses a table in a file
    vocabulary = Vocabularies(*names) if any(names) else None
    return LoadedRun(model, vocabulary, dataset, None, None, known)


def names_of_run(
    run: RunFolder, config: Config, graph: RunGraph, dataset: Dataset | None = None
) -> tuple[Vocabulary, Vocabulary]:
    """Return the names of a run with labels from the folder, else from the data."""
    names = graph.entities, graph.relations
    labelled = with_labels(run.path, names)
    if labelled is not names:
        return labelled
    if dataset is None:
        return with_labels(Path(config.dataset.root, config.dataset.name), names)
    labels = dataset.entities.labels, dataset.relations.labels
    return names[0].labelled(labels[0]), names[1].labelled(labels[1])


def _data(
    config: Config,
    data: str | os.PathLike[str] | Dataset | Literal[False] | None,
    graph: RunGraph,
    *,
    is_named: bool,
) -> Dataset | None:
    """Return the dataset with the ids of the run, from its graph if no data are named, or None."""
    if data is False:
        return None
    if isinstance(data, Dataset):
        return graph.read(data, f"dataset {data.name}")
    try:
        dataset = load_dataset(config, data)
    except FileNotFoundError:
        if is_named:
            raise
        return graph.named(config.dataset.name)
    root = config.dataset.root if data is None else data
    return graph.read(dataset, f"dataset {dataset.name} in {root}")


def model_of(
    run: RunFolder,
    config: Config,
    tensors: Mapping[str, Tensor],
    names: tuple[Vocabulary, Vocabulary],
) -> Model:
    """Make the model of a config with the tensors of a checkpoint, in eval mode.

    Raises
    ------
    ValueError
        If the tensors do not fit the config or the names.
    """
    state = of_part("model", tensors)
    model = build_model(config, len(names[0]), len(names[1]))
    try:
        check_tensors("model", state, model.state_dict())
        model.load_state_dict(state)
    except (ValueError, RuntimeError) as error:
        why = " ".join(str(error).split())
        raise ValueError(f"{run.path}: the checkpoint does not fit the model: {why}") from None
    return model.eval().requires_grad_(False)
