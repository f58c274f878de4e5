"""Losses over all entities (no ``[B, N]``) and over sampled negatives (no ``[B, K, D]``).

Each loss is one file: equation and source, a formula of scores (``NSSAFormula``), a function of a
model (``nssa``), and a module with hyperparameters (``NSSALoss``). :data:`LOSSES` lists the losses
of a model, and :mod:`regularizers` has penalties. :func:`siglip` takes two batches of rows instead
of a model.
"""

from kgfast.losses import regularizers
from kgfast.losses.bce import BCELoss, bce, smoothed_labels
from kgfast.losses.cross_entropy import CrossEntropyLoss, cross_entropy, frequency_weights
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
"Losses by name: ``function`` takes a model, ``formula`` is the loss of scores."

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
    "frequency_weights",
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
