"""The config of a run, checked before data are read or memory is allocated.

:mod:`sections` holds the keys, :mod:`fields` the types of values, :mod:`checks` the contradictions,
:mod:`schema` the whole, and :mod:`files` what stands in files.
"""

from kgfast.training.config.fields import is_own, losses_of
from kgfast.training.config.files import IGNORED, assigned
from kgfast.training.config.schema import Config, may_change
from kgfast.training.config.sections import LossConfig, RangeConfig, SearchConfig

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
