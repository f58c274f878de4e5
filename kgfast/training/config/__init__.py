"""The config of a run, checked before data are read or memory is allocated.

:mod:`sections` holds the keys, :mod:`schema` the whole and its contradictions, and :mod:`files`
what stands in files.
"""

from kgfast.training.config.schema import MAY_CHANGE, Config
from kgfast.training.config.sections import MODELS, LossConfig, is_own, losses_of

__all__ = ["MAY_CHANGE", "MODELS", "Config", "LossConfig", "is_own", "losses_of"]
