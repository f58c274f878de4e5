"""Models made of functions that score queries with a block of candidates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kgfast.models.base import SIDES_AND_RELATIONS, Side
from kgfast.ops import check_int

BlockFunction = Callable[[Tensor, Tensor, Side, Tensor], Tensor]
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_BLOCK, _BATCH = 1024, 64  # a function may make [batch, block, features]: 32 MiB for 128 features


class BlockScorer:
    """Model that is only a function, for :func:`kgfast.rank` and :func:`kgfast.topk`.

    Candidates are streamed in blocks, whose borders depend only on ``block`` and on the number of
    candidates or their ascending list. Ranks are exact with respect to the scores that the function
    returns, compared as float64. The target's score is the score in the target's block.

    Parameters
    ----------
    fn : callable
        ``fn(anchors, relations, side, candidate_ids)`` with int64 ``[B]``, ``[B]`` and ``[C]``
        returns the scores ``[B, C]``: float16, bfloat16, float32 or float64, higher is better.
        Anchors are heads for side ``"tail"`` and tails for ``"head"``. For side ``"relation"``,
        anchors are heads, the second argument holds tails, and candidates are relations. The
        function is called without gradients, perhaps twice for a block. It gets copies of the ids.
    num_entities, num_relations : int
    block : int
        Candidates per block.
    whole : bool
        Call the function exactly once for a batch, always with all candidates, as a network that
        scores all entities at once wants it. Then there is one block, of ``[B, N]`` scores.
    batch_size : int
        Default number of queries per call of the function. If scores depend on other queries in the
        batch, this number is part of the definition of the scores.
    sides : sequence of {"head", "relation", "tail"}
        The sides that the function serves; another side is an error before any call.
    device : torch.device or str
        Device of the ids that the function gets, and of the scores that it must return.

    Raises
    ------
    ValueError, TypeError
        For a wrong argument, and for scores of another shape, dtype or device, and NaN; the message
        names the block. Errors of the function get a note that names the block.

    Examples
    --------
    >>> position = torch.tensor([0.0, 1.0, 3.0])
    >>> def nearest(anchors, relations, side, candidate_ids):
    ...     return -(position[anchors, None] - position[candidate_ids]).abs()
    >>> from kgfast import rank
    >>> scorer = BlockScorer(nearest, num_entities=3, num_relations=1)
    >>> rank(scorer, [(0, 0, 1)]).realistic.tolist()
    [[2.0, 2.0]]
    """

    dim = 1  # a function has no features to crop
    is_in_blocks = True

    def __init__(
        self,
        fn: BlockFunction,
        num_entities: int,
        num_relations: int,
        *,
        block: int = _BLOCK,
        whole: bool = False,
        batch_size: int = _BATCH,
        sides: Sequence[Side] = SIDES_AND_RELATIONS,
        device: torch.device | str = "cpu",
    ) -> None:
        if not callable(fn):
            raise TypeError(f"fn must be callable; got {type(fn).__name__}")
        self.fn, self.sides = fn, tuple(sides)
        sizes = {"num_entities": num_entities, "num_relations": num_relations}
        sizes |= {"block": block, "batch_size": batch_size}
        for name, size in sizes.items():
            check_int(name, size, 1)
        self.num_entities, self.num_relations = num_entities, num_relations
        self.whole, self.batch_size = whole, batch_size
        self.block = max(num_entities, num_relations) if whole else block
        self.device = torch.device(device)
        self._owner = getattr(fn, "__self__", None)  # modules of the owner are set to eval mode

    def crop_width(self, dim: int) -> int | None:
        """Raise a ValueError: a function has no crops."""
        raise ValueError("dims: a BlockScorer has no crops")

    def in_blocks(self, side: Side, dims: int | None = None) -> "BlockScorer":
        """Return the scorer of a side; see :func:`kgfast.models.relations.blocks_at`."""
        if side not in self.sides:
            raise NotImplementedError(
                f"{_name(self.fn)} of this BlockScorer scores {', '.join(self.sides)}, not {side}"
            )
        return self

    def num_candidates(self, side: Side) -> int:
        """Count the candidates of a side."""
        return self.num_relations if side == "relation" else self.num_entities

    def block_at(self, number: int, side: Side, ids: Tensor | None = None) -> "Block":
        """Return one of the blocks of a side's candidates, or of an ascending list ``[M]``."""
        first = number * self.block
        if ids is not None:
            return Block(number, first, side, ids[first : first + self.block])
        end = min(first + self.block, self.num_candidates(side))
        inside = torch.arange(first, end, dtype=torch.int64, device=self.device)
        return Block(number, first, side, inside)

    def scores(
        self, anchors: Tensor, relations: Tensor, block: "Block", *, allows_nan: bool = False
    ) -> Tensor:
        """Return the function's checked scores of a block, ``[B, C]``."""
        shape = (len(anchors), len(block.ids))
        if not shape[0] * shape[1]:
            return torch.empty(shape, dtype=torch.float32, device=self.device)
        try:
            scores = self.fn(anchors.clone(), relations.clone(), block.side, block.ids.clone())
        except Exception as error:
            error.add_note(f"raised by {_name(self.fn)} for {block} of {shape[0]} queries")
            raise
        second = "tail" if block.side == "relation" else "relation"
        batch = f"{shape[0]} queries from anchor {int(anchors[0])}, {second} {int(relations[0])} on"
        self._check(scores, shape, f"{block}, {batch}")
        scores = scores.detach()
        if not allows_nan and bool(scores.isnan().any()):
            row, column = scores.isnan().nonzero()[0].tolist()
            raise ValueError(
                f"{_name(self.fn)}: NaN for {block}, {batch}: the score of candidate "
                f"{int(block.ids[column])} for anchor {int(anchors[row])} and {second} "
                f'{int(relations[row])} (rank(nan="worst") ranks it last)'
            )
        return scores

    def _check(self, scores: Any, shape: tuple[int, int], batch: str) -> None:
        must = f"{batch}: {_name(self.fn)} must return"
        if not isinstance(scores, Tensor):
            raise TypeError(f"{must} a tensor; got {type(scores).__name__}")
        if scores.shape != shape:
            raise ValueError(f"{must} shape {list(shape)}; got {list(scores.shape)}")
        if scores.dtype not in _DTYPES:
            raise TypeError(f"{must} float16, bfloat16, float32 or float64; got {scores.dtype}")
        if scores.device.type != self.device.type:
            raise ValueError(f"{must} scores on {self.device} (device=); got {scores.device}")


@dataclass(frozen=True)
class Block:
    """Block of a side's candidates that are scored together."""

    number: int
    first: int  # place of the first candidate among all, or in the list
    side: Side
    ids: Tensor  # int64 [C], ascending

    def __str__(self) -> str:
        ids = f"{int(self.ids[0])} .. {int(self.ids[-1])}" if len(self.ids) else "none"
        return f"block {self.number} of the {self.side} side (candidates {ids})"


def _name(fn: Any) -> str:
    return str(getattr(fn, "__qualname__", type(fn).__qualname__))
