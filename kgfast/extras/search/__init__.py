"""Search for values of a config's keys: successive halving over the ranges of the config.

:mod:`space` checks the ranges, :mod:`study` stores trials and decides which continue, :mod:`trial`
trains a trial, :mod:`searching` runs the search; :mod:`trials` and :mod:`pictures` show results.
"""

from kgfast.extras.search.pictures import plot_trials
from kgfast.extras.search.searching import read_trials, search
from kgfast.extras.search.trials import Trial, Trials

__all__ = ["Trial", "Trials", "plot_trials", "read_trials", "search"]
