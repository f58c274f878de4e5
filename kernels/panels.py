"""Candidates that were packed before the calls that read them: what :class:`kgfast.Index` keeps."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Panels:
    """All rows of a table as a sweep reads them, of finite numbers.

    They hold neither bias nor factor.

    Attributes
    ----------
    number_format : str
        Of the features: ``"float32"``, or ``"int8"``, which are pairs of bytes.
    score : str
        The score that reads them.
    lanes : int
        Candidates of a panel.
    num_rows, num_features : int
        Of the table.
    tensors : mapping of str to Tensor
        What the format needs, on the CPU, contiguous: of ``"float32"`` they are ``panels``
        ``[P, num_features, planes, lanes]`` and ``norms [P]``, upper bounds on those of each panel,
        and for few queries ``bytes`` (csrc/host/byte_rows.h) with their ``scale [1]``, or neither;
        of ``"int8"`` ``panels [P, bytes]`` (csrc/host/int8.h).
    """

    number_format: str
    score: str
    lanes: int
    num_rows: int
    num_features: int
    tensors: Mapping[str, Tensor]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())
