"""Every key of a config: docs/reference/config.md, made from the sections that check configs.

``benchmarks/pages.py`` writes the page, as all others that are made. Types, ranges and
defaults are those of the schema; meanings stand below the keys.
"""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kgfast.training import Config
from kgfast.training.config import MAY_CHANGE, packaged_configs

INTRO = """# Configs

Written by `python benchmarks/pages.py config` from the sections that check configs; do not edit.

A config is a YAML file of sections (`model:`, `train:`, ...). `--set model.base_dim=128` overrides
a key on the command line; its value is read as YAML, and `--set med=null` leaves a section out. All
keys are checked before data are read: an unknown key, a value out of range and values that
contradict each other are errors that name the key. Numbers such as `1e-3`, which YAML reads as
text, are numbers here. Aliases (`*name`), repeated keys and files beyond 128 KiB are refused.

    kgfast train --config FILE                    a file; it wins over a name of the package
    kgfast train --config wn18rr/rotate_fast      a config that comes with the package
    kgfast train --config NAME --data DIR         on another graph: DIR holds train.txt itself
    kgfast train --data DIR --model rotate        the model's default config, which is printed

The default `-` marks a required key. *may change* marks a key whose value may differ when
`--resume` continues a run. `--data` gives `dataset.name` and `dataset.root`. A gzipped file of a
dataset may unpack to 64 times its size, and to 64 MiB at least.
"""


def page() -> str:
    """Return the whole page."""
    parts = [INTRO]
    for prefix, section in sections(Config, ""):
        title = f"`{prefix}`" if prefix else "At the top"
        parts.append(f"## {title}\n\n{_summary(section)}\n")
        parts.append("| key | takes | default | meaning |\n|---|---|---|---|")
        parts.append("\n".join(rows(section, prefix)) + "\n")
    parts.append("## In the package\n\n" + ", ".join(f"`{it}`" for it in packaged_configs()) + "\n")
    return "\n".join(parts)


def sections(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Dotted name and class of every section, the outer before the inner."""
    yield prefix, section
    for name, field in section.model_fields.items():
        inner = _section_of(field.annotation)
        if inner is not None:
            key = f"{prefix}.{name}" if prefix else name
            yield from sections(
                inner, f"{key}.KEY" if get_origin(field.annotation) is dict else key
            )


def rows(section: type[BaseModel], prefix: str) -> Iterator[str]:
    """Yield a line of the table for each key that is no section."""
    meanings = attributes(section)
    for name, field in section.model_fields.items():
        if _section_of(field.annotation) is not None:
            continue
        key = f"{prefix}.{name}" if prefix else name
        if name not in meanings:
            raise ValueError(f"{section.__name__}: no text says what {name} means")
        default = "-" if field.is_required() else f"`{_yaml(field.default)}`"
        free = " *may change*" if key in MAY_CHANGE else ""
        taken = takes(field.annotation, field.metadata)
        yield f"| `{key}` | {taken} | {default} | {meanings[name]}{free} |"


def takes(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """In words what an annotation allows.

    >>> from pydantic import Field
    >>> takes(Annotated[int, Field(ge=1)] | None)
    'whole number >= 1 or `null`'
    """
    if get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        return takes(annotation, [*metadata, *more])
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(takes(it) for it in get_args(annotation))
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{it}`" for it in get_args(annotation))
    if get_origin(annotation) is dict:
        return "keys and values"
    limits = list(_limits(metadata))
    if get_origin(annotation) is list:
        count = " and ".join(limits)
        return f"list of {takes(*get_args(annotation))}" + (f", {count} of them" if count else "")
    if annotation is str:  # lengths are said by errors
        return ", ".join(["text", *(it for it in limits if it.startswith("like"))])
    said = {
        Any: "values",
        int: "whole number",
        float: "number",
        bool: "`true`, `false`",
    }
    return " ".join([said.get(annotation, "`null`"), ", ".join(limits)]).strip()


def _limits(metadata: Sequence[Any]) -> Iterator[str]:
    """Return the bounds among the metadata of an annotation."""
    for it in metadata:
        if isinstance(it, FieldInfo):
            yield from _limits(it.metadata)
        for name, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<=")):
            if getattr(it, name, None) is not None:
                yield f"{sign} {getattr(it, name):g}"
        for name, words in (("min_length", "at least"), ("max_length", "at most")):
            if getattr(it, name, None) is not None:
                yield f"{words} {getattr(it, name)}"
        if getattr(it, "pattern", None):
            yield f"like `{it.pattern}`".replace("|", "\\|")


def attributes(section: type[BaseModel]) -> dict[str, str]:
    """Return the text that stands below each key of a section, or below several keys."""
    found: dict[str, str] = {}
    for base in section.__mro__[:-2]:  # without BaseModel and object
        names: list[str] = []
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        for it in node.body:
            if isinstance(it, ast.AnnAssign):
                names.append(it.target.id)
            elif isinstance(it, ast.Expr) and names:
                text = _markdown(" ".join(it.value.value.split()))
                found |= {names[0]: text} | dict.fromkeys(names[1:], f"As `{names[0]}`.")
                names = []
    return found


def _summary(section: type[BaseModel]) -> str:
    return _markdown((inspect.getdoc(section) or "").split("\n\n")[0].replace("\n", " "))


def _markdown(text: str) -> str:
    text = re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", text)
    return text.replace("``", "`").replace("|", "\\|")


def _section_of(annotation: Any) -> type[BaseModel] | None:
    for it in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(it, type) and issubclass(it, BaseModel):
            return it
    return None


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
