"""The model, loss and device of a config.

A config may name a user's own model and loss by import path, ``module:Name``. Importing a module
runs its code. So only :func:`follow` imports, for a caller who trusts the config; all other
functions use the classes that :func:`follow` imported.
"""

import os
import sys
from pkgutil import resolve_name
from typing import Any

import torch

from kgfast.losses import LOSSES, NegativesLoss
from kgfast.models import MED, RSCF, Model, Reciprocal
from kgfast.rng import Stream, mix
from kgfast.tables.mapped import MappedRoom
from kgfast.training.config import MODELS, Config, LossConfig, is_own

_FOLLOWED: dict[str, Any] = {}


def follow(config: Config, *, trust: bool) -> None:
    """Import the model and the loss that a config names by import path, also of this folder.

    A ValueError says that there is an import path and ``trust`` is False, no such module or name,
    no class of the right kind, or an option that a loss does not take.
    """
    sections: list[tuple[str, str, type]] = [
        ("model.name", config.model.name, Model),
        ("loss.name", config.loss.name, NegativesLoss),
    ]
    for key, path, base in sections:
        if not is_own(path):
            continue
        if not trust:
            raise ValueError(
                f"{key}: {path} is a user's own code, which only training runs by default; if you "
                "trust the author, say so with --trust (in Python trust=True)"
            )
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            cls = resolve_name(path)
        except (ModuleNotFoundError, AttributeError) as error:
            is_path = f"{path.partition(':')[0]}.".startswith(f"{error.name}.")
            if isinstance(error, ModuleNotFoundError) and not is_path:
                raise  # another module, which this module imports, is missing
            raise ValueError(f"{key}: {path}: {error}; looked in {os.getcwd()}, too") from None
        if not (isinstance(cls, type) and issubclass(cls, base)):
            raise ValueError(f"{key}: {path} must be a class that extends kgfast's {base.__name__}")
        _FOLLOWED[path] = cls
    try:
        loss_of(config.loss)
    except (TypeError, ValueError) as error:
        raise ValueError(f"loss.options: {config.loss.name}: {error}") from None


def loss_of(section: LossConfig, **of_call: str | bool) -> Any:
    """Make the loss of a config, with options of its calls, such as ``reduction``."""
    cls = (LOSSES | _FOLLOWED)[section.name]
    options = section.options if is_own(section.name) else section.arguments_of(cls)
    return cls(**options, **of_call)


def build_model(
    config: Config,
    num_entities: int,
    num_relations: int,
    num_times: int | None = None,
    room: MappedRoom | None = None,
) -> Model:
    """Make a fresh, trainable model on the CPU; the seed of the config determines the values.

    With ``num_times``, ``num_relations`` counts pairs of a relation and a time.
    """
    section = config.model
    if not is_own(section.name) and (num_times is None) == (section.name == "tntcomplex"):
        kind = "triples (h, r, t)" if num_times is None else "quads (h, r, t, time)"
        raise ValueError(f"model.name: {section.name} does not fit a dataset of {kind}")
    cls = (MODELS | _FOLLOWED)[section.name]
    options = section.options if is_own(section.name) else section.arguments_of(cls)
    if room is not None:
        options = options | {"room": room}
    if num_times is not None:
        options, num_relations = options | {"num_times": num_times}, num_relations // num_times
    num_rows = 2 * num_relations if section.reciprocal else num_relations
    sizes, seed = (num_entities, num_rows, section.base_dim), mix(config.seed, Stream.MODEL)
    try:
        model: Model = cls.init(*sizes, seed=seed, **options)
    except TypeError as error:
        raise ValueError(f"model.options: {section.name}: {error}") from error
    if not (isinstance(model, Model) and model.entity.requires_grad):
        raise ValueError(f"model.name: init() of {section.name} must return a trainable model")
    generator = torch.Generator().manual_seed(mix(config.seed, Stream.START))
    for table in (getattr(model, name).detach() for name in model.table_names):
        if section.init_range is not None:
            table.uniform_(-section.init_range, section.init_range, generator=generator)
        elif section.init_std is not None:
            table.normal_(0.0, section.init_std, generator=generator)
    if section.use_rscf:
        model = RSCF(model, seed=mix(config.seed, Stream.FILTERS))
    if section.reciprocal:
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
