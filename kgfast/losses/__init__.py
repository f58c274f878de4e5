"""Losses over all entities (no ``[B, N]``) and over sampled negatives (no ``[B, K, D]``).

Each loss is one file: equation and source, a class whose fields are the hyperparameters
(``NSSALoss``), and the function that is made of the class (``nssa``). Losses of sampled negatives
also take given scores (``of_scores``). :mod:`regularizers` has penalties.
"""

from kgfast.losses import regularizers
from kgfast.losses.bce import BCELoss, bce, smoothed_labels
from kgfast.losses.cross_entropy import CrossEntropyLoss, cross_entropy, frequency_weights
from kgfast.losses.entities import EntitiesLoss
from kgfast.losses.logistic import LogisticLoss, logistic
from kgfast.losses.loss import Loss
from kgfast.losses.margin import MarginLoss, margin
from kgfast.losses.med import MEDLoss, med
from kgfast.losses.negatives import NegativesLoss
from kgfast.losses.nssa import NSSALoss, nssa, subsampling_weights
from kgfast.losses.relation_task import relation_logits
from kgfast.losses.sampled import sampled_scores, with_gamma
from kgfast.losses.siglip import SigLIPLoss, siglip

LOSSES: dict[str, type[Loss]] = {
    "nssa": NSSALoss,
    "margin": MarginLoss,
    "logistic": LogisticLoss,
    "bce": BCELoss,
    "cross_entropy": CrossEntropyLoss,
    "med": MEDLoss,
}
"Losses of a model by name."

__all__ = [
    "LOSSES",
    "BCELoss",
    "CrossEntropyLoss",
    "EntitiesLoss",
    "LogisticLoss",
    "Loss",
    "MEDLoss",
    "MarginLoss",
    "NSSALoss",
    "NegativesLoss",
    "SigLIPLoss",
    "bce",
    "cross_entropy",
    "frequency_weights",
    "logistic",
    "margin",
    "med",
    "nssa",
    "regularizers",
    "relation_logits",
    "sampled_scores",
    "siglip",
    "smoothed_labels",
    "subsampling_weights",
    "with_gamma",
]
