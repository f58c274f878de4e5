"""Which config is meant: a file, one that comes with the package, or a model's default one."""

import json
import os
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from kgfast.graph import did_you_mean, nearest_names
from kgfast.text import shown

_DEFAULT = "default"
_SUFFIX = ".yaml"


class Chosen(NamedTuple):
    """What a command line chose.

    Attributes
    ----------
    path : Path
        The file.
    overrides : list of str
        What it says of the dataset, as ``--set`` does.
    run_name : str
        What to call the run.
    """

    path: Path
    overrides: list[str]
    run_name: str


def find_config(name: str | os.PathLike[str]) -> Path:
    """The file of a config.

    Parameters
    ----------
    name
        A file, or the name of a config of the package: ``wn18rr/rotate_fast``, also with ``.yaml``
        and ``configs/``. An existing file wins.

    Raises
    ------
    FileNotFoundError
        If it is neither; the message has the nearest names.

    Examples
    --------
    >>> find_config("wn18rr/rotate_fast").name
    'rotate_fast.yaml'
    """
    path = Path(name)
    try:
        if path.is_file():
            return path
    except OSError:  # longer than any file's name
        pass
    packaged = packaged_configs()
    plain_name = path.as_posix().removeprefix("./").removeprefix("configs/").removesuffix(_SUFFIX)
    if plain_name in packaged:
        return packaged[plain_name]
    raise FileNotFoundError(f"{_said(name)}: no such config file{_instead(plain_name, packaged)}")


def packaged_configs() -> dict[str, Path]:
    """The configs that come with the package: name and file, sorted.

    Examples
    --------
    >>> "default/rotate" in packaged_configs()
    True
    """
    root = Path(str(resources.files("kgfast.configs")))
    files = sorted(root.glob(f"*/*{_SUFFIX}"))
    return {file.relative_to(root).with_suffix("").as_posix(): file for file in files}


def choose(
    config: str | os.PathLike[str] | None,
    model: str | None,
    data: str | os.PathLike[str] | None,
) -> Chosen:
    """What ``kgfast train`` with these options trains.

    Parameters
    ----------
    config
        As of :func:`find_config`.
    model
        Instead: take the default config of this model.
    data
        The folder of a graph, which holds its train file itself; goes before the config's.

    Raises
    ------
    ValueError
        If not exactly one of config and model is given, the model has no default config, or it has
        no data.
    FileNotFoundError
        If there is no such config or folder.
    """
    if (config is None) == (model is None):
        which = "neither" if config is None else "both"
        raise ValueError(f"name either a --config or a --model and its --data; got {which}")
    path = find_config(config) if config is not None else _default_of(str(model))
    if data is None:
        if model is not None:
            raise ValueError(f"--model {model} needs --data, the folder of the graph")
        return Chosen(path, [], f"{path.resolve().parent.name}-{path.stem}")
    folder = Path(data)
    if not folder.is_dir():
        raise FileNotFoundError(f"--data {_said(data)}: no such folder")
    if folder.name in ("", ".."):
        folder = folder.resolve()
    values = {"dataset.root": str(folder.parent), "dataset.name": folder.name}
    overrides = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    return Chosen(path, overrides, f"{folder.name}-{path.stem}")


def _default_of(model: str) -> Path:
    defaults = {
        name.removeprefix(f"{_DEFAULT}/"): path
        for name, path in packaged_configs().items()
        if name.startswith(f"{_DEFAULT}/")
    }
    if model.lower() not in defaults:
        known = ", ".join(defaults)
        raise ValueError(f"--model {_said(model)}: has no default config; known are {known}")
    return defaults[model.lower()]


def _instead(plain_name: str, packaged: dict[str, Path]) -> str:
    """What to say of a name that is not among those of the package."""
    whole = did_you_mean(plain_name, packaged)
    if whole:
        return f", nor one of the package{whole}"
    within = [name for name in packaged if name.partition("/")[2] == plain_name]
    if not within:  # a slip in the second part alone: rotate_fst
        last = nearest_names(plain_name, {name.partition("/")[2] for name in packaged}, 1)
        within = [name for name in packaged if [name.partition("/")[2]] == last]
    if within:
        return f", nor one of the package; did you mean {' or '.join(map(shown, within[:3]))}?"
    folders = ", ".join(sorted({name.partition("/")[0] for name in packaged}))
    return f", nor one of the package (in {folders})"


def _said(name: str | os.PathLike[str]) -> str:
    text = str(name)
    return text if len(text) <= 200 else f"{text[:200]}..."
