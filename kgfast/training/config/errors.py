"""Messages for the mistakes of a config, a line per key."""

from collections.abc import Iterator, Sequence

from pydantic import ValidationError

from kgfast.graph import nearest_names
from kgfast.text import shown

_MOST = 20  # messages at most
_SAYS = {
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "list_type": "must be a list",
    "dict_type": "must be a section with keys",
    "finite_number": "must be finite",
    "model_type": "must be a section with keys",
    "model_attributes_type": "must be a section with keys",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "too_short": "must have at least {min_length} values",
    "too_long": "must have at most {max_length} values",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "literal_error": "must be one of {expected}",
    "string_pattern_mismatch": "must be auto, cpu, cuda or cuda:<index>",
}


def describe(error: ValidationError, keys: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield a dotted key and a message for each mistake; ``keys`` are all existing keys."""
    mistakes = error.errors(include_url=False)
    for mistake in mistakes[:_MOST]:
        key = _cut(".".join(str(part) for part in mistake["loc"]))
        kind = mistake["type"]
        if kind == "extra_forbidden":
            yield key, f"unknown key {key}{_nearest(key, keys)}"
        elif kind == "value_error":
            for line in str(mistake["ctx"]["error"]).split("\n"):
                yield line.partition(":")[0], _cut(line, 400)
        elif kind == "missing":
            yield key, f"{key} is missing"
        else:
            says = _SAYS.get(kind)
            limits = mistake.get("ctx", {})
            what = says.format(**limits).replace("'", "") if says else mistake["msg"]
            yield key, f"{key} {what}; got {shown(mistake['input'])}"
    if len(mistakes) > _MOST:
        yield "", f"... and {len(mistakes) - _MOST:,} more"


def _cut(text: str, limit: int = 100) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."


def _nearest(key: str, keys: Sequence[str]) -> str:
    """Suggest the most similar key of the section, else a key of that name elsewhere."""
    section, _, name = key.rpartition(".")
    prefix = f"{section}." if section else ""
    siblings = [other.removeprefix(prefix) for other in keys if other.rpartition(".")[0] == section]
    similar = [prefix + sibling for sibling in nearest_names(name, siblings, 1)]
    similar = similar or [other for other in keys if other.rpartition(".")[2] == name]
    if similar:
        return f"; did you mean {similar[0]}?"
    return f"; {section or 'the file'} may hold {', '.join(siblings)}" if siblings else ""
