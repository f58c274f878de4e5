"""The config of a run, checked before data are read or memory is allocated.

:mod:`sections` holds the keys, and :mod:`schema` the whole, its contradictions and its files.
"""

from kgfast.training.config.schema import MAY_CHANGE, Config, find_config, packaged_configs
from kgfast.training.config.sections import MODELS, LossConfig, is_own, losses_of

__all__ = ["MAY_CHANGE", "MODELS", "Config", "LossConfig", "find_config", "is_own", "losses_of"]
__all__ += ["packaged_configs"]
