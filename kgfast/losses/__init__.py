"""Losses over all entities (no ``[B, N]``) and over sampled negatives (no ``[B, K, D]``).

Functions of a model (:mod:`functional`), modules that hold their hyperparameters (:mod:`modules`),
and formulas of scores that are already there (:mod:`formulas`).
"""

from kgfast.losses import formulas
from kgfast.losses.formulas import smoothed_labels, subsampling_weights
from kgfast.losses.functional import bce, cross_entropy, logistic, margin, nssa, sampled_scores
from kgfast.losses.modules import BCELoss, CrossEntropyLoss, LogisticLoss, MarginLoss, NSSALoss

__all__ = [
    "BCELoss",
    "CrossEntropyLoss",
    "LogisticLoss",
    "MarginLoss",
    "NSSALoss",
    "bce",
    "cross_entropy",
    "formulas",
    "logistic",
    "margin",
    "nssa",
    "sampled_scores",
    "smoothed_labels",
    "subsampling_weights",
]
