"""Search for values of a config's keys, with the sampler, the pruner and the storage of optuna."""

from kgfast.extras.search.searching import load_search, rows_of, search

__all__ = ["load_search", "rows_of", "search"]
