"""Search for values of a config's keys, with the sampler, the pruner and the storage of optuna.

:mod:`space` checks the ranges of a config and draws from them; :mod:`searching` runs the trials.
"""

from kgfast.extras.search.searching import load_search, rows_of, search

__all__ = ["load_search", "rows_of", "search"]
