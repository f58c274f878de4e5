"""What a config stands for: its dataset, its model, its device."""

from typing import Any

import torch

from kgfast import datasets
from kgfast.datasets import Dataset
from kgfast.models import (
    CP,
    MED,
    RESCAL,
    RSCF,
    ComplEx,
    ConvE,
    DistMult,
    Model,
    Reciprocal,
    RotatE,
    TransE,
)
from kgfast.training.config import Config
from kgfast.training.negatives import mix

_MODELS: dict[str, Any] = {
    "rotate": RotatE,
    "transe": TransE,
    "distmult": DistMult,
    "complex": ComplEx,
    "conve": ConvE,
    "cp": CP,
    "rescal": RESCAL,
}
_OPTIONS = {
    "rotate": ("gamma",),
    "transe": ("gamma",),
    "conve": (
        "embedding_height",
        "channels",
        "kernel_size",
        "input_dropout",
        "feature_dropout",
        "hidden_dropout",
        "initial_bias",
    ),
}
_SEEDS = {"model": -1, "range": -2, "filters": -3}  # beside those of steps, which are not negative


def load_dataset(config: Config) -> Dataset:
    """The dataset of a config.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is none, or a file of it is malformed.
    """
    source = config.dataset
    return datasets.load(source.folder(), source.name, columns=source.columns)


def build_model(config: Config, num_entities: int, num_relations: int) -> Model:
    """A fresh model, trainable, on the CPU; the same one for the same config."""
    section = config.model
    options = {name: getattr(section, name) for name in _OPTIONS.get(section.name, ())}
    if section.norm is not None:
        options["norm"] = section.norm
    model: Model = _MODELS[section.name].init(
        num_entities,
        2 * num_relations if section.reciprocal else num_relations,
        section.base_dim,
        seed=mix(config.seed, _SEEDS["model"]),
        **options,
    )
    generator = torch.Generator().manual_seed(mix(config.seed, _SEEDS["range"]))
    with torch.no_grad():
        for table in (model.entity, model.relation):
            if section.init_range is not None:
                table.uniform_(-section.init_range, section.init_range, generator=generator)
            if section.init_std is not None:
                table.normal_(0.0, section.init_std, generator=generator)
    return _wrapped(model, config)


def _wrapped(model: Model, config: Config) -> Model:
    """The model, filtered, with inverse relations and croppable as the config says."""
    section, med = config.model, config.med
    if section.use_rscf:
        filters_relations = section.rscf_relation_transform
        if filters_relations is None:
            filters_relations = section.name in ("rotate", "transe")
        model = RSCF(model, filters_relations, seed=mix(config.seed, _SEEDS["filters"]))
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
    """The device of a config; ``auto`` is a GPU where there is one.

    Raises
    ------
    ValueError
        If the config asks for a GPU and torch sees none.
    """
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if config.device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device: {config.device} was asked for, but torch sees no GPU here")
    return torch.device(config.device)
