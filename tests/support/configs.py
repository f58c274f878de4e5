"""A config that is complete, and such with other values."""

import copy
from typing import Any

BASE = {
    "dataset": {"name": "wn18rr"},
    "model": {"name": "rotate", "base_dim": 80},
    "optim": {"lr": 1e-3},
    "train": {"epochs": 1},
}


def with_values(**dotted: Any) -> dict[str, Any]:
    """Return the config with values of keys ``section__key``, or of whole sections."""
    values = copy.deepcopy(BASE)
    for key, value in dotted.items():
        section, _, name = key.partition("__")
        if name:
            values.setdefault(section, {})[name] = value
        else:
            values[section] = value
    return values
