"""Files of configs: their names, and their values with those of ``--set``, unchecked."""

import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from kgfast import safe_yaml
from kgfast.graph import did_you_mean
from kgfast.text import shown

# Section and two keys; only one may be set: an override of one replaces the other.
_ONE_OF_TWO = (("train", "epochs", "steps"), ("model", "init_range", "init_std"))
_DEEPEST = 24  # levels of sections: no config has more than three
_SUFFIX = ".yaml"


def find_config(name: str | os.PathLike[str]) -> Path:
    """Return the path of a file, else of a packaged config such as ``wn18rr/rotate_fast``.

    The name may begin with ``configs/`` and end with ``.yaml``. The FileNotFoundError for an
    unknown name has the nearest names.

    >>> find_config("wn18rr/rotate_fast").name
    'rotate_fast.yaml'
    """
    path, packaged = Path(name), packaged_configs()
    plain_name = path.as_posix().removeprefix("./").removeprefix("configs/").removesuffix(_SUFFIX)
    if len(path.name) < 256 and path.is_file():
        return path
    if plain_name in packaged:
        return packaged[plain_name]
    inside = [key for key in packaged if key.startswith(f"{plain_name}/")]
    second = {key.partition("/")[2] for key in packaged}  # rotate_fst: of wn18rr/rotate_fast
    hint = did_you_mean(plain_name, packaged) or did_you_mean(plain_name, sorted(second))
    if inside or not hint:
        folders = {key.partition("/")[0]: key for key in packaged}
        hint = f"; the package has {', '.join(inside or folders.values())}"
    raise FileNotFoundError(f"{said(name)}: no such config file, nor one of the package{hint}")


def packaged_configs() -> dict[str, Path]:
    """Return the files of the packaged configs by name, sorted.

    >>> "default/rotate" in packaged_configs()
    True
    """
    root = Path(str(resources.files("kgfast.configs")))
    files = sorted(root.glob(f"*/*{_SUFFIX}"))
    return {file.relative_to(root).with_suffix("").as_posix(): file for file in files}


def said(name: str | os.PathLike[str]) -> str:
    """Return a name for a message, cut if long."""
    text = str(name)
    return text if len(text) <= 200 else f"{text[:200]}..."


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a file; raise a ValueError with the line unless it is a YAML mapping in UTF-8."""
    with path.open("rb") as file:
        raw = file.read(safe_yaml.MOST_BYTES + 1)
    if len(raw) > safe_yaml.MOST_BYTES:
        raise ValueError(f"{path}: a config holds at most {safe_yaml.MOST_BYTES:,} bytes")
    try:
        values = safe_yaml.parse(raw.decode("utf-8-sig"), path)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}:{line}: not valid UTF-8: {error.reason}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected sections such as 'model:'; got {shown(values)}")
    try:
        return nested(values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def nested(values: Mapping[Any, Any], depth: int = 0) -> dict[str, Any]:
    """Return a copy with dotted keys, as in LibKGE's configs, turned into sections."""
    if depth > _DEEPEST:
        raise ValueError(f"sections are nested more than {_DEEPEST} levels deep")
    result: dict[str, Any] = {}
    for key, value in values.items():
        inside = nested(value, depth + 1) if isinstance(value, Mapping) else value
        _put(result, str(key), inside)
    return result


def override(values: dict[str, Any], overrides: Sequence[str]) -> list[str]:
    """Put every ``a.b=c`` into the values of a file; return each ``a.b``.

    If an override sets one of two keys that exclude each other, the other key of the file is unset.

    >>> values = {"train": {"epochs": 5, "mode": "1vsall"}}
    >>> override(values, ["train.steps=300"])
    ['train.steps']
    >>> values
    {'train': {'epochs': None, 'mode': '1vsall', 'steps': 300}}
    """
    overriding: dict[str, Any] = {}
    keys = []
    for text in overrides:
        assign(overriding, text)
        keys.append(assign(values, text))
    for section, *both in _ONE_OF_TWO:
        new = overriding.get(section)
        for key, other in (both, reversed(both)):
            if isinstance(new, dict) and new.get(key) is not None and other not in new:
                values[section][other] = None
    return keys


def assign(values: dict[str, Any], override: str) -> str:
    """Put ``a.b=c`` into the values, ``c`` read as YAML; return ``a.b``."""
    key, equals, text = override.partition("=")
    key = key.strip()
    source = f"--set {override if len(override) <= 80 else f'{override[:80]}...'}"
    if not equals or not all(key.split(".")):
        raise ValueError(f"{source}: expected key=value, such as optim.lr=1e-3")
    value = safe_yaml.parse(text, source, numbered=False)
    try:
        _put(values, key, nested(value) if isinstance(value, Mapping) else value)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    return key


def assigned(values: Mapping[str, Any], by_key: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of nested values with the values of dotted keys.

    Examples
    --------
    >>> assigned({"optim": {"lr": 0.1}}, {"optim.lr": 0.2, "seed": 1})
    {'optim': {'lr': 0.2}, 'seed': 1}
    """
    result = nested(values)
    for key, value in by_key.items():
        _put(result, key, value)
    return result


def _put(values: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, last = dotted.split(".")
    if len(sections) > _DEEPEST:
        raise ValueError(f"key {shown(dotted)} has {len(sections) + 1:,} parts")
    for section in sections:
        inside = values.get(section)
        if not isinstance(inside, dict):
            inside = values[section] = {}
        values = inside
    if isinstance(value, dict) and isinstance(values.get(last), dict):
        values[last] |= value
    else:
        values[last] = value
