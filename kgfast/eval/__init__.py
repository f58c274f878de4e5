"""Ranking, prediction and neighbours: ``rank()``, ``topk()``, and others, with their results."""

from kgfast.eval.above_search import above
from kgfast.eval.batches import check_rankable, evaluating
from kgfast.eval.classification import Classification, ClassMetrics, classify
from kgfast.eval.comparison import compare
from kgfast.eval.fact_search import top_facts
from kgfast.eval.facts import Facts
from kgfast.eval.index import Index
from kgfast.eval.intervals import Interval
from kgfast.eval.neighbour_search import Neighbours, neighbours
from kgfast.eval.prediction import topk
from kgfast.eval.predictions import AnswersAbove, Predictions
from kgfast.eval.ranking import rank
from kgfast.eval.ranks import RANK_TYPES, GroupedRanks, Ranks, RankType
from kgfast.eval.tier_pairs import TierPairs

__all__ = [
    "RANK_TYPES",
    "AnswersAbove",
    "ClassMetrics",
    "Classification",
    "Facts",
    "GroupedRanks",
    "Index",
    "Interval",
    "Neighbours",
    "Predictions",
    "RankType",
    "Ranks",
    "TierPairs",
    "above",
    "check_rankable",
    "classify",
    "compare",
    "evaluating",
    "neighbours",
    "rank",
    "top_facts",
    "topk",
]
