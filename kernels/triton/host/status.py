"""Bad rows and sizes of bands, as kernels find them; the host reads them once."""

import torch
from torch import Tensor

from ...checks import Checks, nonfinite_error

_NO_ROW = 2**63 - 1
_WORDS = 2  # 64-bit words of a cursor, so that each lies on a boundary of 16 bytes
_HEAD = 3 * _WORDS


def raise_if_bad(rows: list[int]) -> None:
    """Raise for the least bad query, candidate or row of the factor, if there is one."""
    for name, row in zip(("queries", "candidates", "factor"), rows, strict=True):
        if row != _NO_ROW:
            raise nonfinite_error(name, row)


class Status:
    """Bad rows, whether the index is unsorted, and the size of every band."""

    def __init__(self, num_bands: int, device: torch.device) -> None:
        self._words = torch.zeros(_HEAD + _WORDS * num_bands, dtype=torch.int64, device=device)
        self.rows = self._words[:3]  # bad rows
        self.rows.fill_(_NO_ROW)
        self.unsorted = self._words[4:5]

    def cursors(self, band: int) -> Tensor:
        """Return the size of a band, and a second number of no meaning here, ``[2]``."""
        start = _HEAD + _WORDS * band
        return self._words[start : start + _WORDS]

    def read(self, checks: Checks) -> tuple[list[int], bool]:
        """Wait for the sizes of bands, and whether the index is unsorted; raise if a row is bad.

        Deferred checks come first.
        """
        words = checks.read(self._words)
        raise_if_bad(words[:3])
        return words[_HEAD::_WORDS], bool(words[4])
