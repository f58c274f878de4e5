"""The path-star graphs of Bachmann & Nagarajan (2024), stored in the weights of a model.

``d`` arms of ``l`` nodes share one node, the root: ``d (l - 1) + 1`` nodes. The graph is fixed. A
sample gives the last node of an arm and a token that asks for the path from the root to that node:
``l`` nodes. Training shows the edges of all arms, and leaves the paths of some arms out. Nodes are
named by distinct tokens drawn from a vocabulary that is larger than the graph.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Star:
    """Star, and the names of its nodes.

    Attributes
    ----------
    arms : Tensor
        int64 ``[d, l]``: tokens of each arm, the root first.
    asks : int
        The token that asks for a path.
    vocabulary : int
    held_out : Tensor
        bool ``[d]``: arms whose paths are not shown.
    """

    arms: Tensor
    asks: int
    vocabulary: int
    held_out: Tensor

    @classmethod
    def make(cls, d: int, length: int, vocabulary: int, holdout: float, seed: int) -> "Star":
        """Make a star of ``d`` arms of ``length`` nodes; hold out a share ``holdout`` of them.

        Raises ValueError for sizes that do not fit.
        """
        if d < 1 or length < 2:
            raise ValueError(f"graph_d and graph_l must be at least 1 and 2; got {d}, {length}")
        count = d * (length - 1) + 1
        if vocabulary <= count:
            raise ValueError(
                f"graph_vocab_size must be above {count}, the nodes of {d} arms of {length}; got "
                f"{vocabulary}"
            )
        held = round(d * holdout)
        if not 0 <= holdout < 1 or held == d:
            raise ValueError(
                f"graph_holdout_percentage must be in [0, 1) and leave a path; got {holdout}"
            )
        generator = torch.Generator().manual_seed(seed)
        tokens = _distinct(count + 1, vocabulary, generator)
        root = tokens[:1].expand(d, 1)
        arms = torch.cat([root, tokens[1:count].view(d, length - 1)], dim=1)
        held_out = torch.zeros(d, dtype=torch.bool)
        held_out[torch.randperm(d, generator=generator)[:held]] = True
        return cls(arms, int(tokens[count]), vocabulary, held_out)

    @property
    def length(self) -> int:
        """Number of nodes of an arm."""
        return self.arms.shape[1]

    @property
    def nodes(self) -> Tensor:
        """Tokens in use, ascending."""
        return self.arms.unique()

    def paths(self, *, held_out: bool) -> Tensor:
        """Return samples ``[n, 2 + l]``: last node of an arm, ``asks``, path from the root."""
        arms = self.arms[self.held_out == held_out]
        return torch.cat([arms[:, -1:], torch.full_like(arms[:, :1], self.asks), arms], dim=1)

    def edges(self) -> Tensor:
        """Return each edge of each arm in both directions, ``[2 d (l - 1), 2]``."""
        forward = torch.stack([self.arms[:, :-1], self.arms[:, 1:]], dim=2).view(-1, 2)
        return torch.cat([forward, forward.flip(1)])


def _distinct(count: int, vocabulary: int, generator: torch.Generator) -> Tensor:
    """Draw distinct tokens in random order, without a permutation of the vocabulary."""
    tokens = torch.empty(0, dtype=torch.int64)
    while len(tokens) < count:
        more = torch.randint(vocabulary, (2 * count,), generator=generator)
        tokens = torch.cat([tokens, more]).unique()
    return tokens[torch.randperm(len(tokens), generator=generator)[:count]]
