"""Small models in float64, alone and within RSCF."""

import torch

from kgfast import RSCF, ComplEx, DistMult, RotatE, TransE

N, R, D = 23, 3, 8
TRIPLES = torch.tensor([[0, 0, 1], [5, 1, 2], [7, 2, 7], [22, 0, 3], [5, 1, 9]])


def base(kind):
    made = {
        "rotate": lambda: RotatE.init(N, R, D, gamma=6.0, seed=0),
        "transe l1": lambda: TransE.init(N, R, D, seed=0),
        "transe l2": lambda: TransE.init(N, R, D, norm="l2", seed=0),
        "distmult": lambda: DistMult.init(N, R, D, seed=0),
        "complex": lambda: ComplEx.init(N, R, D, seed=0),
    }[kind]()
    return made.double()


def wrapped(kind, is_filtered=True, seed=1):
    """Return a model, and RSCF around the model or None."""
    model = base(kind)
    return model, RSCF(model, seed=seed).double() if is_filtered else None
