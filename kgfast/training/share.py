"""The rows of a batch that a process works on: all, or a part where several train together."""

from dataclasses import dataclass, replace

from torch import Tensor

from kgfast.training.negatives import Batch


@dataclass(frozen=True)
class Share:
    """Rows ``first .. stop - 1`` of a batch of ``count``.

    Examples
    --------
    >>> [len(Share.of_process(rank, 3, 7)) for rank in range(3)]
    [2, 2, 3]
    """

    first: int
    stop: int
    count: int

    @classmethod
    def whole(cls, count: int) -> "Share":
        """All rows."""
        return cls(0, count, count)

    @classmethod
    def of_process(cls, rank: int, size: int, count: int) -> "Share":
        """Those of process ``rank`` of ``size``: as many as any other's, but for one."""
        return cls(count * rank // size, count * (rank + 1) // size, count)

    def __len__(self) -> int:
        return self.stop - self.first

    @property
    def fraction(self) -> float:
        """What the mean over its rows weighs in that over the batch."""
        return len(self) / self.count

    def rows(self, values: Tensor | None) -> Tensor | None:
        """Its rows of ``values [B, ...]``, in place."""
        if values is None or len(self) == self.count:
            return values
        return values[self.first : self.stop]

    def of(self, batch: Batch) -> Batch:
        """Its rows of a batch."""
        if len(self) == self.count:
            return batch
        span = slice(self.first, self.stop)
        return replace(
            batch,
            anchors=batch.anchors[span],
            relations=batch.relations[span],
            targets=self.rows(batch.targets),
            weights=self.rows(batch.weights),
        )
