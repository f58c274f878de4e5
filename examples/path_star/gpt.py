"""A small GPT in plain torch (Radford et al. 2019), whose output layer is a StreamedHead.

Token embeddings are the rows of the head: one table of the vocabulary, tied.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from kgfast.extras.heads import StreamedHead

_ROWS = 4096  # sequences in the trunk at once in evaluation


@dataclass(frozen=True)
class Shape:
    """The sizes of a GPT."""

    vocab_size: int
    block_size: int
    n_layer: int
    n_head: int
    n_embd: int


class Block(nn.Module):
    """Attention and a perceptron, each after a norm and with a residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.n_embd
        self.n_head = shape.n_head
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[B, T, D]`` of ``[B, T, D]``."""
        batch, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).view(batch, length, 3, self.n_head, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)  # [B, heads, T, D / heads] each
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    """A trunk that turns tokens to hidden states, and a head over the vocabulary."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.head = StreamedHead(shape.vocab_size, shape.n_embd, sparse=True)
        self.position = nn.Parameter(torch.randn(shape.block_size, shape.n_embd) * 0.02)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.n_layer)))
        self.norm = nn.LayerNorm(shape.n_embd)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return hidden states ``[B, T, D]`` for tokens ``[B, T]``."""
        x = self.head.embed(tokens) + self.position[: tokens.shape[1]]
        hidden: Tensor = self.norm(self.blocks(x))
        return hidden

    @torch.no_grad()
    def last_hidden(self, tokens: Tensor) -> Tensor:
        """Return the hidden states of the last tokens, ``[B, D]``, in blocks of sequences."""
        hidden = torch.empty(len(tokens), self.shape.n_embd, dtype=torch.float32)
        for first in range(0, len(tokens), _ROWS):
            part = slice(first, first + _ROWS)
            hidden[part] = self(tokens[part])[:, -1]
        return hidden

    @torch.no_grad()
    def generate(
        self,
        context: Tensor,
        count: int,
        *,
        candidate_ids: Tensor | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        seed: int = 0,
    ) -> Tensor:
        """Extend ``context [B, T]`` by ``count`` tokens, for all sequences in one call.

        Tokens are greedy without a temperature, else drawn. Every position is one call of the head
        with all ``B`` hidden states: no batches, and no ``[B, vocabulary]``.
        """
        for step in range(count):
            hidden = self.last_hidden(context)
            if temperature is None:
                token = self.head.greedy(hidden, candidate_ids=candidate_ids)
            else:
                options = {"seed": seed + step, "candidate_ids": candidate_ids}
                token = self.head.sample(hidden, temperature, top_k, **options)
            context = torch.cat([context, token[:, None]], dim=1)
        return context
