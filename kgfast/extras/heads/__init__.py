"""Output layers over very many outputs, which never hold the scores of all of them.

The layer (:mod:`streamed`), its draws (:mod:`sampling`, :mod:`noise`) and the outputs that a
sampled loss compares (:mod:`drawn`). :class:`kgfast.RowAdam` changes the rows that a step used.
"""

from kgfast.extras.heads.streamed import StreamedHead

__all__ = ["StreamedHead"]
