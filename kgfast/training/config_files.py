"""From a file and ``--set`` to a nested dict of values, before any of them is checked."""

import os
import warnings
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

# Keys of configs in use that say how another program works; they change nothing here.
IGNORED = {
    "dataset.source": "datasets are read from dataset.root",
    "dataset.hf_name": "datasets are read from dataset.root",
    "dataset.prefer_ids": "the layout of a dataset is detected",
    "dataset.filtered_eval": "ranks are raw and filtered at once",
    "data.num_workers": "batches are made on the training device",
    "model.rscf_alpha": "no published formula has it",
    "sched.total_steps": "a schedule spans the run",
}


class _Loader(yaml.SafeLoader):
    """A loader that refuses a key given twice: YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f"key {key_node.value} was given before",
                    problem_mark=key_node.start_mark,
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The values of a file.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is not UTF-8, not YAML (with the line), or not a mapping.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such config file")
    try:
        values = yaml.load(path.read_text("utf-8-sig"), _Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{path}{_line_of(error)}: {_problem_of(error)}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not valid UTF-8: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected sections such as 'model:'; got {values!r:.80}")
    return nested(values)


def nested(values: Mapping[Any, Any]) -> dict[str, Any]:
    """A copy whose dotted keys are sections; LibKGE's configs write either."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        _put(result, str(key), nested(value) if isinstance(value, Mapping) else value)
    return result


def assign(values: dict[str, Any], override: str) -> str:
    """Put ``a.b=c`` into the values, c read as YAML; returns ``a.b``.

    Raises
    ------
    ValueError
        If it is not of that form.
    """
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or not all(key.split(".")):
        raise ValueError(f"--set {override}: expected key=value, such as optim.lr=1e-3")
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"--set {override}: {_problem_of(error)}") from None
    _put(values, key, nested(value) if isinstance(value, Mapping) else value)
    return key


def drop_ignored(values: dict[str, Any], source: str) -> None:
    """Take out the keys that change nothing, with a warning for each."""
    for dotted, why in IGNORED.items():
        section, _, key = dotted.partition(".")
        inside = values.get(section)
        if isinstance(inside, dict) and key in inside:
            del inside[key]
            warnings.warn(f"{source}{dotted} is ignored: {why}", stacklevel=4)


def _put(values: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, last = dotted.split(".")
    for section in sections:
        inside = values.get(section)
        if not isinstance(inside, dict):
            inside = values[section] = {}
        values = inside
    if isinstance(value, dict) and isinstance(values.get(last), dict):
        values[last] |= value
    else:
        values[last] = value


def _line_of(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f":{mark.line + 1}" if mark else ""


def _problem_of(error: yaml.YAMLError) -> str:
    return getattr(error, "problem", None) or str(error)
