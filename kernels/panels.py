"""Candidates that were packed before the calls that read them: :class:`kgfast.Index` keeps them."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Panels:
    """Rows of a whole table as a sweep reads them, of finite numbers; neither bias nor factor.

    ``tensors`` are contiguous, on the CPU. Of ``"float32"`` they are ``panels [P, num_features,
    planes, lanes]`` and ``norms [P]``, upper bounds on those of each panel, and for few queries
    ``bytes`` (csrc/host/byte_rows.h) with their ``scale [1]``, or neither; of ``"int8"`` and
    ``"int16"`` ``panels [P, bytes]`` (csrc/host/int8.h).
    """

    number_format: str  # of the features: "float32", or "int8" and "int16", which are two bytes
    score: str  # that reads them
    lanes: int  # candidates of a panel
    num_rows: int
    num_features: int
    tensors: Mapping[str, Tensor]

    @property
    def nbytes(self) -> int:
        """Count the bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())
