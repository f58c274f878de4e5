"""Switch of the checks of values."""

from collections.abc import Iterator
from contextlib import contextmanager

from kgfast.kernels.checks import checks_values, without_values


@contextmanager
def unchecked() -> Iterator[None]:
    """Skip the checks of values in a ``with`` block: the host waits for no device.

    Numbers may then be NaN or infinite, ids out of range, positives missing. Shapes, dtypes and
    devices are still checked. An id out of range is clamped, so that nothing is read out of bounds,
    but the result is undefined. Use the block for input that was checked before.

    A step of training with shared negatives and fixed shapes then never waits, so that a CUDA graph
    can capture the step (docs/reference/losses.md lists the steps). The block applies to its own
    thread and context (:mod:`contextvars`), for the calls within; a backward may run after the
    block. Blocks may be nested. ``rank()`` and ``topk()`` refuse the block, since their integers
    would mean nothing. On the CPU :func:`kgfast.ops.row_adam` still checks ids, because it writes
    rows; on a GPU ids out of range change nothing.

    Examples
    --------
    >>> import torch
    >>> from kgfast import ops
    >>> rows, table = torch.zeros(1, 2), torch.tensor([[0.0, 1.0], [3.0, 4.0]])
    >>> with unchecked():
    ...     ops.indexed_scores(rows, table, torch.tensor([[1, 7]]), "l2").tolist()
    [[-5.0, -5.0]]
    """
    with without_values():
        yield


def refuse_unchecked(name: str) -> None:
    """Raise a RuntimeError within :func:`unchecked`."""
    if not checks_values():
        raise RuntimeError(
            f"{name} must check the values of its arguments: call {name} outside of "
            "kgfast.unchecked()"
        )
