"""What is wrong with a config, in a line per key that a person can act on."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from kgfast.graph import nearest_names, shown

_MOST = 20  # mistakes that are named
_SAYS: dict[str, Callable[[dict[str, Any]], str]] = {
    "missing": lambda it: "is missing",
    "float_type": lambda it: "must be a number",
    "int_type": lambda it: "must be a whole number",
    "int_from_float": lambda it: "must be a whole number",
    "bool_type": lambda it: "must be true or false",
    "string_type": lambda it: "must be text",
    "list_type": lambda it: "must be a list",
    "finite_number": lambda it: "must be finite",
    "model_type": lambda it: "must be a section with keys",
    "model_attributes_type": lambda it: "must be a section with keys",
    "greater_than": lambda it: f"must be greater than {it['gt']:g}",
    "greater_than_equal": lambda it: f"must be at least {it['ge']:g}",
    "less_than": lambda it: f"must be less than {it['lt']:g}",
    "less_than_equal": lambda it: f"must be at most {it['le']:g}",
    "too_short": lambda it: f"must have at least {it['min_length']} values",
    "too_long": lambda it: f"must have at most {it['max_length']} values",
    "string_too_short": lambda it: "must not be empty",
    "string_too_long": lambda it: f"must have at most {it['max_length']} characters",
    "literal_error": lambda it: f"must be one of {it['expected']}".replace("'", ""),
    "string_pattern_mismatch": lambda it: "must be auto, cpu, cuda or cuda:<index>",
}


def describe(error: ValidationError, keys: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(dotted key, message) of everything that is wrong; ``keys`` are all that exist."""
    found = error.errors(include_url=False)
    for it in found[:_MOST]:
        key = _cut(".".join(str(part) for part in it["loc"]))
        kind = it["type"]
        if kind == "extra_forbidden":
            yield key, f"unknown key {key}{_nearest(key, keys)}"
        elif kind == "value_error":
            for line in str(it["ctx"]["error"]).split("\n"):
                yield line.partition(":")[0], _cut(line, 400)
        elif kind == "missing":
            yield key, f"{key} is missing"
        else:
            says = _SAYS.get(kind)
            what = says(it.get("ctx", {})) if says else it["msg"]
            yield key, f"{key} {what}; got {shown(it['input'])}"
    if len(found) > _MOST:
        yield "", f"... and {len(found) - _MOST:,} more"


def _cut(text: str, limit: int = 100) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."


def _nearest(key: str, keys: Sequence[str]) -> str:
    """A key of the same name in another section, else the most similar."""
    section, _, name = key.rpartition(".")
    prefix = f"{section}." if section else ""
    siblings = [it.removeprefix(prefix) for it in keys if it.rpartition(".")[0] == section]
    similar = nearest_names(name, siblings, 1)
    found = [prefix + it for it in similar] or [it for it in keys if it.rpartition(".")[2] == name]
    if found:
        return f"; did you mean {found[0]}?"
    return f"; {section or 'the file'} may hold {', '.join(siblings)}" if siblings else ""
