"""Output layers over very many outputs, which never store the scores of all outputs.

:mod:`streamed` is the layer, and :mod:`sampling` draws outputs. :class:`kgfast.RowAdam` updates
only the rows that a step used.
"""

from kgfast.extras.heads.streamed import StreamedHead

__all__ = ["StreamedHead"]
