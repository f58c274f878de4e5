"""The dataset, the model, the device and the evaluations of a config."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from kgfast import datasets
from kgfast.datasets import Dataset
from kgfast.eval import Index, Ranks, rank
from kgfast.graph import KnownTriples
from kgfast.models import (
    CP,
    MED,
    RESCAL,
    RSCF,
    SIDES,
    ComplEx,
    ConvE,
    DistMult,
    Model,
    Reciprocal,
    RotatE,
    Side,
    TransE,
)
from kgfast.models.fresh import ALL_ROWS, Fill, Fresh, normal, uniform
from kgfast.rng import Stream, mix
from kgfast.tables.mapped import MappedRoom
from kgfast.training.config import Config, is_own
from kgfast.training.config.sections import OPTIONS
from kgfast.training.own import own_class

_MODELS: dict[str, Any] = {
    "rotate": RotatE,
    "transe": TransE,
    "distmult": DistMult,
    "complex": ComplEx,
    "conve": ConvE,
    "cp": CP,
    "rescal": RESCAL,
}


def load_dataset(config: Config, data: str | os.PathLike[str] | None = None) -> Dataset:
    """Load the dataset of a config.

    Parameters
    ----------
    config : Config
    data : path, optional
        The folder of the dataset, or of datasets, instead of ``dataset.root``.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no dataset, or one of its files is malformed.
    """
    source = config.dataset
    folder = dataset_folder(config, data)
    return datasets.load(folder, source.name, columns=source.columns, clean=source.clean)


def dataset_folder(config: Config, data: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of the dataset of a config, which lies in ``data`` or is ``data``."""
    return config.dataset.folder(data)


def build_model(
    config: Config, num_entities: int, num_relations: int, fresh: Fresh = ALL_ROWS
) -> Model:
    """Make a fresh, trainable model on the CPU, with the entities that ``fresh`` names.

    The seed of the config determines the values.
    """
    section = config.model
    options: dict[str, Any] = {
        name: getattr(section, name) for name in OPTIONS.get(section.name, ())
    }
    if fresh is not ALL_ROWS:
        options["fresh"] = fresh
    if section.norm is not None:
        options["norm"] = section.norm
    own = is_own(section.name)
    make = (own_class("model", section.name) if own else _MODELS[section.name]).init
    model: Model = make(
        num_entities,
        2 * num_relations if section.reciprocal else num_relations,
        section.base_dim,
        seed=mix(config.seed, Stream.MODEL),
        **options,
        **section.options,
    )
    if own and not (isinstance(model, Model) and model.entity.requires_grad):
        raise ValueError(f"model.name: init() of {section.name} must return a trainable model")
    draw = _start_of(config)
    if draw is not None:
        with torch.no_grad():
            fresh.draw_into(model.entity, num_entities, draw)
            draw(model.relation)
    return _wrapped(model, config)


def _start_of(config: Config) -> Fill | None:
    """Return the distribution from which the config draws tables; None for the model's own."""
    section = config.model
    generator = torch.Generator().manual_seed(mix(config.seed, Stream.START))
    if section.init_range is not None:
        return uniform(section.init_range, generator)
    return None if section.init_std is None else normal(section.init_std, generator)


def _wrapped(model: Model, config: Config) -> Model:
    section, med = config.model, config.med
    if section.use_rscf:
        filters_relations = section.rscf_relation_transform
        if filters_relations is None:
            filters_relations = section.name in ("rotate", "transe")
        model = RSCF(model, filters_relations, seed=mix(config.seed, Stream.FILTERS))
    if section.reciprocal:
        model = Reciprocal(model, "appended")
    if med is None or not med.enabled:
        return model
    return MED(
        model,
        med.dims,
        med.submodels_per_step,
        med.crop,
        med.loss_weight,
        med.positive_weight,
        scales=med.scales,
        learnable=med.learnable,
    )


def device_of(config: Config) -> torch.device:
    """Return the device of a config; each process of torchrun has its own GPU.

    Raise a ValueError if the config names a GPU and torch sees none.
    """
    name = config.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device: is {name}, but torch sees no GPU here")
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    return torch.device(name)


def room_of(config: Config) -> MappedRoom | None:
    """Return an allocator of tables in files, if the config has a folder for them."""
    folder = config.train.table_folder
    return None if folder is None else MappedRoom(folder)


def ranks_of(
    model: Model,
    dataset: Dataset,
    split: str,
    config: Config | None,
    sides: Sequence[Side] = SIDES,
    index: Index | None = None,
    most: int | None = None,
    known: KnownTriples | None = None,
    **options: Any,
) -> Ranks | dict[int, Ranks]:
    """Rank the first ``most`` triples of a split, by each sub-model of croppable embeddings.

    An index is packed again if the model has changed since. ``known`` defaults to the triples of
    all splits, ``options`` are those of :func:`kgfast.rank`.
    """
    triples = dataset.split(split)[:most]
    if config is not None:
        options.setdefault("batch_size", config.data.test_bs)
    if index is not None and not index.is_current:
        index.refresh()
    return rank(
        model,
        triples,
        known=dataset.known() if known is None else known,
        sides=sides,
        dims=model.dims,
        index=index,
        **options,
    )
