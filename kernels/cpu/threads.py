"""How many threads the extension computes on: torch's number, unless it has the cores for itself.

After an operator that torch spreads over its threads, those spin for milliseconds on the cores that
the next kernel needs (unless ``OMP_WAIT_POLICY`` says otherwise, which kgfast sets where it comes
before torch). Where no operator of torch is large, one thread is enough for it.

After ``os.fork()`` the extension makes threads of its own for the child. Torch's OpenMP does not:
where the parent has computed on several threads of torch, an operator of torch that is large
enough for threads (more than 32,768 numbers) waits for ever in the child. Children should be
started by ``spawn`` or ``forkserver``, or call ``torch.set_num_threads(1)`` before anything else.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_own: ContextVar[int | None] = ContextVar("kgfast_own_threads", default=None)


def count() -> int:
    """Threads of a kernel of the extension."""
    return _own.get() or torch.get_num_threads()


@contextmanager
def alone() -> Iterator[None]:
    """Inside, kernels keep their number of threads and operators of torch have one."""
    threads = count()
    before, token = torch.get_num_threads(), _own.set(threads)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _own.reset(token)
