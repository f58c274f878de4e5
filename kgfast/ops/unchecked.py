"""Switch of the checks of values."""

from collections.abc import Iterator
from contextlib import contextmanager

from kgfast.kernels.checks import checks_values, without_values


@contextmanager
def unchecked() -> Iterator[None]:
    """Skip the checks of values in a ``with`` block: nothing waits for a device to look at them.

    Numbers may then be NaN or infinite, ids out of range, positives missing. Shapes, dtypes and
    devices are checked as ever. An id out of range is forced into it, so that nothing is read out
    of bounds, but the result is undefined. Use the block for input that was checked before.

    A step of training with shared negatives and fixed shapes then makes no wait, so that it can be
    captured in a CUDA graph (docs/reference/losses.md says which). The block holds in its own
    thread and context (as :mod:`contextvars` has it), for the calls that are made in it;
    their backward may run after it. Blocks may be nested. ``rank()`` and ``topk()`` refuse it, as
    their integers would mean nothing. On the CPU :func:`kgfast.ops.row_adam` checks its ids
    nonetheless, as it writes;
    on a GPU ids out of range change nothing.

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
            f"{name} checks the values that it is given, or its result would mean nothing: call it "
            f"outside of kgfast.unchecked()"
        )
