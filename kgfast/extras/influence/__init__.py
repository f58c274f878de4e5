"""Training examples that influenced a prediction most: TracIn (Pruthi et al. 2020).

`examples.py` defines a training example; `checkpoints.py` reads the states of the model and the
learning rates. `dense.py` computes gradients of losses over all entities, `sampled.py` of losses of
sampled negatives. `tracing.py` is the loop and the public API.
"""

from kgfast.extras.influence.tracing import Influences, Strongest, self_influence, tracin

__all__ = ["Influences", "Strongest", "self_influence", "tracin"]
