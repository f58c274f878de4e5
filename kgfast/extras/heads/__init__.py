"""Output layers over very many outputs, which never hold the scores of all of them.

:mod:`streamed` is the layer, :mod:`sampling` its draws. :class:`kgfast.RowAdam` updates only the
rows that a step used.
"""

from kgfast.extras.heads.streamed import StreamedHead

__all__ = ["StreamedHead"]
