"""Ranking and prediction: ``rank()``, ``topk()``, and others, with their results."""

from kgfast.eval.answers import AnswersAbove, Facts, Predictions
from kgfast.eval.classification import Classification, ClassMetrics, classify
from kgfast.eval.comparison import compare
from kgfast.eval.facts import top_facts
from kgfast.eval.index import Index
from kgfast.eval.intervals import Interval
from kgfast.eval.metrics import HITS
from kgfast.eval.prediction import above, topk
from kgfast.eval.preparation import check_rankable, evaluating
from kgfast.eval.ranking import rank
from kgfast.eval.ranks import RANK_TYPES, GroupedRanks, Ranks, RankType, RowRanks
from kgfast.eval.vectors import rank_rows, topk_rows

__all__ = [
    "HITS",
    "RANK_TYPES",
    "AnswersAbove",
    "ClassMetrics",
    "Classification",
    "Facts",
    "GroupedRanks",
    "Index",
    "Interval",
    "Predictions",
    "RankType",
    "Ranks",
    "RowRanks",
    "above",
    "check_rankable",
    "classify",
    "compare",
    "evaluating",
    "rank",
    "rank_rows",
    "top_facts",
    "topk",
    "topk_rows",
]
