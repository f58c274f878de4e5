"""The config of a run, checked before data are read or memory is allocated.

:mod:`sections` holds the keys, :mod:`schema` the whole and its contradictions, and :mod:`files`
what stands in files.
"""

from kgfast.training.config.files import assigned
from kgfast.training.config.schema import Config, may_change
from kgfast.training.config.sections import (
    MODELS,
    LossConfig,
    RangeConfig,
    SearchConfig,
    is_own,
    losses_of,
)

__all__ = [
    "MODELS",
    "Config",
    "LossConfig",
    "RangeConfig",
    "SearchConfig",
    "assigned",
    "is_own",
    "losses_of",
    "may_change",
]
