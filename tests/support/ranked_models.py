"""Random models of every kind, one whose ranks are plain to see, and triples to rank."""

import torch

from kgfast import CP, RESCAL, ComplEx, DistMult, RotatE, TransE

MODELS = {
    "rotate": lambda n, r, d, seed: RotatE.init(n, r, d, seed=seed),
    "rotate l2": lambda n, r, d, seed: RotatE.init(
        n, r, d, seed=seed, norm="l2", layout="interleaved"
    ),
    "rotate interleaved": lambda n, r, d, seed: RotatE.init(
        n, r, d, seed=seed, layout="interleaved"
    ),
    "transe": lambda n, r, d, seed: TransE.init(n, r, d, seed=seed),
    "transe l2": lambda n, r, d, seed: TransE.init(n, r, d, seed=seed, norm="l2"),
    "distmult": lambda n, r, d, seed: DistMult.init(n, r, d, seed=seed),
    "complex": lambda n, r, d, seed: ComplEx.init(n, r, d, seed=seed),
    "cp": lambda n, r, d, seed: CP.init(n, r, d, seed=seed),
    "rescal": lambda n, r, d, seed: RESCAL.init(n, r, d, seed=seed),
    "complex interleaved": lambda n, r, d, seed: ComplEx.init(
        n, r, d, seed=seed, layout="interleaved"
    ),
}


def random_triples(count: int, entities: int, relations: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    limits = torch.tensor([entities, relations, entities])
    return (torch.rand(count, 3, generator=generator) * limits).long()


def line() -> TransE:
    """Put entities on a line with one relation that stays: the distance is the rank."""
    positions = torch.tensor([[0.0], [1.0], [1.0], [2.0], [-1.0], [9.0]])
    return TransE(positions, torch.zeros(1, 1))
