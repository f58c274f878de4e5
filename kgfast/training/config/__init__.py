"""The config of a run, checked before data are read or memory is allocated.

:mod:`sections` and :mod:`search` hold the keys, :mod:`fields` the types of values, :mod:`checks`
the contradictions, :mod:`schema` the whole, :mod:`files` and :mod:`errors` files and messages.
"""

from kgfast.training.config.fields import is_own, losses_of
from kgfast.training.config.files import IGNORED, assigned
from kgfast.training.config.schema import Config, may_change
from kgfast.training.config.search import RangeConfig, SearchConfig
from kgfast.training.config.sections import LossConfig

__all__ = [
    "IGNORED",
    "Config",
    "LossConfig",
    "RangeConfig",
    "SearchConfig",
    "assigned",
    "is_own",
    "losses_of",
    "may_change",
]
