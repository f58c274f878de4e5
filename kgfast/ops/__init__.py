"""The operators: checks, dispatch by device, fake kernels, autograd.

Everything that kgfast computes goes through these. An operator checks its arguments before any
kernel runs, picks a backend by the device of its tensors (or by :func:`use_backend`), and is
registered with ``torch.library``, so that it works under ``torch.compile``.
"""

from kgfast.ops.checks import TABLE_DTYPES
from kgfast.ops.dispatch import BACKENDS, backend_for, use_backend
from kgfast.ops.rank import rank_counts

__all__ = ["BACKENDS", "TABLE_DTYPES", "backend_for", "rank_counts", "use_backend"]
