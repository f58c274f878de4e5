"""Small models of every kind, with the triples, negatives and scores that losses take."""

import torch
from torch import nn

from kgfast import Candidates, ComplEx, DistMult, RotatE, TransE
from support import oracles

N, R, B, K = 11, 3, 6, 4
MODELS = {
    "rotate": lambda: RotatE.init(N, R, 6, gamma=4.0, seed=0),
    "rotate l2": lambda: RotatE.init(N, R, 6, seed=0, norm="l2", layout="interleaved"),
    "rotate interleaved": lambda: RotatE.init(N, R, 6, seed=0, layout="interleaved"),
    "transe": lambda: TransE.init(N, R, 6, gamma=2.0, seed=0),
    "transe l2": lambda: TransE.init(N, R, 6, seed=0, norm="l2"),
    "distmult": lambda: DistMult.init(N, R, 6, seed=0),
    "complex": lambda: ComplEx.init(N, R, 6, seed=0),
    "complex interleaved": lambda: ComplEx.init(N, R, 6, seed=0, layout="interleaved"),
    "biased": lambda: Biased.init(N, R, 6, seed=0),
}


class Biased(DistMult):
    """DistMult with a bias per entity and a gamma."""

    gamma = 1.5

    def candidates(self, side):
        if not hasattr(self, "bias"):
            self.bias = nn.Parameter(torch.linspace(-1, 1, len(self.entity)))
        return Candidates(self.entity, self.bias)


def some_triples() -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return (torch.rand(B, 3, generator=generator) * torch.tensor([N, R, N])).long()


def some_negatives(pool: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(6)
    return torch.randint(N, (K,) if pool else (B, K), generator=generator)


def query_of(triples: torch.Tensor, side: str) -> tuple[torch.Tensor, ...]:
    """Return anchors, relations, targets."""
    heads, relations, tails = triples.T
    return (heads, relations, tails) if side == "tail" else (tails, relations, heads)


def random_scores(*leading: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    positive = 3 * torch.randn(*leading, B, generator=generator, dtype=torch.float64)
    return positive, 3 * torch.randn(*leading, B, K, generator=generator, dtype=torch.float64)


def dense_scores(model, anchors, relations, side, dim=None) -> torch.Tensor:
    """Scores ``[B, N]`` of the same queries in float64, gamma and bias included."""
    queries = model.queries(anchors, relations, side, dims=dim).double()
    candidates = model.candidates(side)
    width = None if dim is None else model.crop_width(dim)
    scores = oracles.dense_scores(
        queries[:, None], candidates.table.double(), model.score, dim=width
    )
    if candidates.bias is not None:
        scores = scores + candidates.bias.double()
    return scores + getattr(model, "gamma", 0.0)
