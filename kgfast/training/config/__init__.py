"""The config of a run: what a YAML file may say, checked before anything is read or allocated.

The keys are those that people's configs use today, plus what this trainer adds. Values are checked
strictly, because a misspelt key or a number that YAML read as text otherwise shows up as a bad MRR
hours later.

:mod:`sections` hold the keys, :mod:`search` those of a search, :mod:`fields` what a value may be,
:mod:`checks` what contradicts each other, :mod:`schema` the whole; :mod:`names`, :mod:`files` and
:mod:`errors` are the way there.
"""

from kgfast.training.config.fields import losses_of
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
    "losses_of",
    "may_change",
]
