"""Files of configs: their names, and their values with those of ``--set``, unchecked."""

import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from kgfast import safe_yaml
from kgfast.graph import did_you_mean
from kgfast.text import reading, shortened, shown

_DEEPEST = 24  # sections in each other: no config has more than three


def find_config(name: str | os.PathLike[str]) -> Path:
    """Return the path of a file, else of a packaged config such as ``wn18rr/rotate_fast``.

    The name may begin with ``configs/`` and end with ``.yaml``. The FileNotFoundError for an
    unknown name has the nearest names.

    >>> find_config("wn18rr/rotate_fast").name
    'rotate_fast.yaml'
    """
    path, packaged = Path(name), packaged_configs()
    if len(path.name) < 256 and path.is_file():
        return path
    plain_name = path.as_posix().removeprefix("configs/").removesuffix(".yaml")
    if plain_name in packaged:
        return packaged[plain_name]
    second = sorted({key.partition("/")[2] for key in packaged})  # names without folders
    hint = did_you_mean(plain_name, packaged) or did_you_mean(plain_name, second)
    folders = {key.partition("/")[0]: key for key in packaged}
    hint = hint or f"; the package has {', '.join(folders.values())}"
    raise FileNotFoundError(
        f"{shortened(str(name), 200)}: no such config file, nor one of the package{hint}"
    )


def packaged_configs() -> dict[str, Path]:
    """Return the files of the packaged configs by name, sorted.

    >>> "default/rotate" in packaged_configs()
    True
    """
    root = Path(str(resources.files("kgfast.configs")))
    files = sorted(root.glob("*/*.yaml"))
    return {file.relative_to(root).with_suffix("").as_posix(): file for file in files}


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a file; raise a ValueError unless it is a YAML mapping in UTF-8."""
    with reading(path, "not a config"), path.open("rb") as file:
        text = file.read(safe_yaml.MOST_BYTES + 1).decode("utf-8-sig")
        values = safe_yaml.parse(text, path)
        if not isinstance(values, dict):
            raise ValueError(f"{path}: expected sections such as 'model:'; got {shown(values)}")
    return values


def override(values: dict[str, Any], overrides: Sequence[str]) -> None:
    """Put every ``a.b=c`` into the values of a file, ``c`` read as YAML.

    An override of ``train.epochs`` or ``train.steps`` unsets the other one of the file.

    >>> values = {"train": {"epochs": 5, "mode": "1vsall"}}
    >>> override(values, ["train.steps=300"])
    >>> values
    {'train': {'epochs': None, 'mode': '1vsall', 'steps': 300}}
    """
    keys = []
    for text in overrides:
        key, equals, value = text.partition("=")
        source = f"--set {shortened(text, 80)}"
        if not equals or not all(key.split(".")) or key.count(".") > _DEEPEST:
            raise ValueError(f"{source}: expected key=value, such as optim.lr=1e-3")
        put(values, key, safe_yaml.parse(value, source, numbered=False))
        keys.append(key)
    for key, other in (("epochs", "steps"), ("steps", "epochs")):
        is_alone = f"train.{key}" in keys and f"train.{other}" not in keys
        if is_alone and values["train"][key] is not None:
            values["train"][other] = None


def put(values: dict[str, Any], dotted: str, value: Any) -> None:
    """Set the value of a dotted key in nested values."""
    is_range = dotted.startswith("search.ranges.")  # of a key with dots
    *sections, last = dotted.split(".", 2 if is_range else -1)
    for section in sections:
        inside = values.get(section)
        if not isinstance(inside, dict):
            inside = values[section] = {}
        values = inside
    values[last] = value
