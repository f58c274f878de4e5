"""Output layers over very many outputs, which never hold the scores of all of them.

The layer (:mod:`streamed`), its draws (:mod:`sampling`, :mod:`noise`), the outputs that a sampled
loss compares (:mod:`drawn`), and an optimizer of the rows that a step used (:mod:`optimizer`).
"""

from kgfast.extras.heads.optimizer import RowWiseAdam
from kgfast.extras.heads.streamed import StreamedHead

__all__ = ["RowWiseAdam", "StreamedHead"]
