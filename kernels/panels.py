"""Candidates that were packed before the calls that read them, for :class:`kgfast.Index`."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Panels:
    """Rows of a whole table in the form of a sweep, of finite numbers; no bias, no factor.

    ``tensors`` are contiguous, on the CPU. For ``"float32"`` they are ``panels [P, num_features,
    planes, lanes]`` and ``norms [P]``, upper bounds on the norms in each panel. For few queries
    there are also ``bytes`` (csrc/host/byte_rows.h) with ``scale [1]``, or neither. For
    ``"int16"`` they are ``panels [P, bytes]`` (csrc/host/int8.h).
    """

    # format of the features: "float32", or "int16", which is two bytes
    number_format: str
    score: str  # score that reads the panels
    lanes: int  # candidates of a panel
    num_rows: int
    num_features: int
    tensors: Mapping[str, Tensor]

    @property
    def nbytes(self) -> int:
        """Count the bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())
