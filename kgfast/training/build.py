"""The dataset, model, loss and device of a config.

A config may name a user's own model and loss by import path, ``module:Name``. Importing a module
runs its code. So only :func:`follow` imports, for a caller who trusts the config; all other
functions use the classes that :func:`follow` imported.
"""

import inspect
import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

import torch

from kgfast import datasets
from kgfast.datasets import Dataset
from kgfast.losses import LOSSES, Loss, NegativesLoss
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
from kgfast.rng import Stream, mix
from kgfast.tables.mapped import MappedRoom
from kgfast.training.config import Config, is_own
from kgfast.training.config.sections import CONVE_OPTIONS

_MODELS: dict[str, Any] = {
    "rotate": RotatE,
    "transe": TransE,
    "distmult": DistMult,
    "complex": ComplEx,
    "conve": ConvE,
    "cp": CP,
    "rescal": RESCAL,
}
_FOLLOWED: dict[str, Any] = {}
# arguments of a loss, which are no options
_OF_A_STEP = ("side", "mask", "weights", "sparse", "reduction")


def follow(config: Config, *, trust: bool) -> None:
    """Import the model and the loss that a config names by import path.

    Raises
    ------
    ValueError
        If there is an import path and ``trust`` is False; if there is no such module or name, the
        name is not a class of the right kind, or the options do not fit.
    """
    sections: list[tuple[str, Any, type, Sequence[str]]] = [
        ("model", config.model, Model, ("seed",)),
        ("loss", config.loss, NegativesLoss, _OF_A_STEP),
    ]
    sections = [section for section in sections if is_own(section[1].name)]
    for key, section, _, _ in sections:
        if not trust:
            raise ValueError(_refused(key, section.name))
    for key, section, base, reserved in sections:
        cls = _imported(key, section.name, base)
        make: Any = cls
        if key == "model":
            make = partial(inspect.signature(cls.init).bind, 1, 1, 1, seed=0)
            if cls.init.__qualname__ == Model.init.__qualname__:  # hands options on to the class
                make = partial(inspect.signature(cls).bind, 1, 1)
        for option in reserved:
            if option in section.options:
                raise ValueError(f"{key}.options: {option} is an argument that training gives")
        try:
            make(**section.options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{key}.options: {section.name}: {error}") from None
        _FOLLOWED[section.name] = cls


def own_class(key: str, name: str) -> Any:
    """Return an imported class; raise a ValueError for any other."""
    if name not in _FOLLOWED:
        raise ValueError(_refused(key, name))
    return _FOLLOWED[name]


def loss_of(name: str) -> type[Loss]:
    """Return the class of a loss of a config."""
    cls: type[Loss] = own_class("loss", name) if is_own(name) else LOSSES[name]
    return cls


def _refused(key: str, name: str) -> str:
    return (
        f"{key}.name: {name} is a user's own code, which only training runs by default; if you "
        "trust the author, say so with --trust (in Python trust=True)"
    )


def _imported(key: str, path: str, base: type) -> type[Any]:
    """Import a class; modules in the current folder are found, too."""
    module_name, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        cls = getattr(import_module(module_name), name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise  # another module, which this module imports, is missing
        raise ValueError(f"{key}.name: {path}: {error}, nor in {os.getcwd()}") from None
    except AttributeError as error:
        raise ValueError(f"{key}.name: {path}: {error}") from None
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise ValueError(
            f"{key}.name: {path} must be a class that extends kgfast's {base.__name__}"
        )
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        raise ValueError(f"{key}.name: {path} must implement {', '.join(missing)}")
    return cls


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
    folder = source.folder(data)
    return datasets.load(folder, source.name)


def build_model(
    config: Config, num_entities: int, num_relations: int, room: MappedRoom | None = None
) -> Model:
    """Make a fresh, trainable model on the CPU; the seed of the config determines the values."""
    section = config.model
    names = {"rotate": ("gamma",), "transe": ("gamma",), "conve": CONVE_OPTIONS}
    options = {name: getattr(section, name) for name in names.get(section.name, ())}
    if room is not None:
        options["room"] = room
    if section.norm is not None:
        options["norm"] = section.norm
    own = is_own(section.name)
    cls = own_class("model", section.name) if own else _MODELS[section.name]
    model: Model = cls.init(
        num_entities,
        2 * num_relations if section.reciprocal else num_relations,
        section.base_dim,
        seed=mix(config.seed, Stream.MODEL),
        **options,
        **section.options,
    )
    if own and not (isinstance(model, Model) and model.entity.requires_grad):
        raise ValueError(f"model.name: init() of {section.name} must return a trainable model")
    generator = torch.Generator().manual_seed(mix(config.seed, Stream.START))
    for table in (model.entity.detach(), model.relation.detach()):
        if section.init_range is not None:
            table.uniform_(-section.init_range, section.init_range, generator=generator)
        elif section.init_std is not None:
            table.normal_(0.0, section.init_std, generator=generator)
    if config.model.use_rscf:
        model = RSCF(model, seed=mix(config.seed, Stream.FILTERS))
    if config.model.reciprocal:
        model = Reciprocal(model, "appended")
    return model if config.med is None else MED(model, **config.med.model_dump())


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
