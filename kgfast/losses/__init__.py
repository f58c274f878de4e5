"""Losses over all entities (no ``[B, N]``) and over sampled negatives (no ``[B, K, D]``).

Functions of a model (:mod:`functional`), modules that hold their hyperparameters (:mod:`modules`),
formulas of scores that are already there (:mod:`formulas`), and penalties (:mod:`regularizers`).
"""

from kgfast.losses import formulas, regularizers
from kgfast.losses.croppable import med_loss, med_of
from kgfast.losses.formulas import smoothed_labels, subsampling_weights
from kgfast.losses.functional import bce, cross_entropy, logistic, margin, med, nssa
from kgfast.losses.modules import BCELoss, CrossEntropyLoss, LogisticLoss, MarginLoss, NSSALoss
from kgfast.losses.relations import relation_logits, relation_prediction
from kgfast.losses.sampled import sampled_scores, with_gamma

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
    "med",
    "med_loss",
    "med_of",
    "nssa",
    "regularizers",
    "relation_logits",
    "relation_prediction",
    "sampled_scores",
    "smoothed_labels",
    "subsampling_weights",
    "with_gamma",
]
