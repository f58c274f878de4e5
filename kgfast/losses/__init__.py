"""Losses over all entities (no ``[B, N]``) and over sampled negatives (no ``[B, K, D]``).

A loss is one file: its equation and source, its formula of scores (``NSSAFormula``), its function
of a model (``nssa``), and the module that holds its hyperparameters (``NSSALoss``). :data:`LOSSES`
lists those of a model, and :mod:`regularizers` has penalties. :func:`siglip` is of two batches of
rows.
"""

from kgfast.losses import regularizers
from kgfast.losses.bce import BCELoss, bce, smoothed_labels
from kgfast.losses.cross_entropy import CrossEntropyLoss, cross_entropy
from kgfast.losses.formula import EntitiesFormula, NegativesFormula
from kgfast.losses.logistic import LogisticFormula, LogisticLoss, logistic
from kgfast.losses.margin import MarginFormula, MarginLoss, margin
from kgfast.losses.med import MEDLoss, med, med_of_scores, med_of_submodels
from kgfast.losses.module import LossModule
from kgfast.losses.nssa import NSSAFormula, NSSALoss, nssa, subsampling_weights
from kgfast.losses.relation_task import relation_logits, relation_prediction
from kgfast.losses.sampled import sampled_scores, with_gamma
from kgfast.losses.siglip import SigLIPLoss, siglip

LOSSES: dict[str, type[LossModule]] = {
    "nssa": NSSALoss,
    "margin": MarginLoss,
    "logistic": LogisticLoss,
    "bce": BCELoss,
    "cross_entropy": CrossEntropyLoss,
    "med": MEDLoss,
}
"""Every loss by its name: ``function`` is that of a model, ``formula`` says what it is."""

__all__ = [
    "LOSSES",
    "BCELoss",
    "CrossEntropyLoss",
    "EntitiesFormula",
    "LogisticFormula",
    "LogisticLoss",
    "LossModule",
    "MEDLoss",
    "MarginFormula",
    "MarginLoss",
    "NSSAFormula",
    "NSSALoss",
    "NegativesFormula",
    "SigLIPLoss",
    "bce",
    "cross_entropy",
    "logistic",
    "margin",
    "med",
    "med_of_scores",
    "med_of_submodels",
    "nssa",
    "regularizers",
    "relation_logits",
    "relation_prediction",
    "sampled_scores",
    "siglip",
    "smoothed_labels",
    "subsampling_weights",
    "with_gamma",
]
