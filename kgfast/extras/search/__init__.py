"""Search for the values of a config's keys: successive halving over the ranges that it declares.

:mod:`space` is what trials may differ in, :mod:`study` the file that remembers them and decides who
goes on, :mod:`trial` how one is trained, :mod:`searching` the whole; :mod:`trials` and
:mod:`pictures` show what came of it.
"""

from kgfast.extras.search.pictures import plot_trials
from kgfast.extras.search.searching import read_trials, search
from kgfast.extras.search.trials import Trial, Trials

__all__ = ["Trial", "Trials", "plot_trials", "read_trials", "search"]
