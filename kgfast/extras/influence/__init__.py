"""Which training examples a trained model owes an answer to: TracIn (Pruthi et al. 2020).

`examples.py` says what a training example is, `checkpoints.py` at which states of the model and
with which rates; `dense.py` has the losses over all entities, `sampled.py` those of drawn
negatives, `query_side.py` what both do with relations, anchors and encoders; `tracing.py` is the
loop over all of it and what a user calls.
"""

from kgfast.extras.influence.results import Influences, Strongest
from kgfast.extras.influence.tracing import self_influence, tracin

__all__ = ["Influences", "Strongest", "self_influence", "tracin"]
