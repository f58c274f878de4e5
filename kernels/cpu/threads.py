"""Number of threads of the extension: torch's, unless the extension has the cores for itself.

After an operator that torch spreads over its threads, those spin for milliseconds on the cores that
the next kernel needs (unless ``OMP_WAIT_POLICY`` says otherwise, which kgfast sets where it comes
before torch). Where no operator of torch is large, one thread is enough for it.

After ``os.fork()`` the extension makes threads of its own for the child. Torch's OpenMP does not:
where the parent has computed on several threads of torch, an operator of torch that is large
enough for threads (more than 32,768 numbers) waits for ever in the child. Children should be
started by ``spawn`` or ``forkserver``, or call ``torch.set_num_threads(1)`` before anything else.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

_own: ContextVar[int | None] = ContextVar("kgfast_own_threads", default=None)
_libraries = ctypes.CDLL(torch._C.__file__)  # torch's, and those that it is linked to
# Both set the number of the calling thread. That of MKL returns the number before.
_set_openmp: Any = getattr(_libraries, "omp_set_num_threads", None)
_set_mkl = getattr(_libraries, "MKL_Set_Num_Threads_Local", lambda number: 0)
HAS_OWN_NUMBERS = _set_openmp is not None and torch.backends.openmp.is_available()


def count() -> int:
    """Count the threads of a kernel of the extension."""
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


@contextmanager
def one_here() -> Iterator[None]:
    """Leave operators of torch one thread in the calling thread, and in no other.

    :func:`alone` also changes MKL's number for all threads, and that of threads new to torch. Where
    :data:`HAS_OWN_NUMBERS` is False, this is ``alone``.
    """
    if not HAS_OWN_NUMBERS:
        with alone():
            yield
        return
    threads, before = count(), torch.get_num_threads()
    token = _own.set(threads)
    _set_openmp(1)
    mkl = _set_mkl(1)
    try:
        yield
    finally:
        _set_mkl(mkl)
        _set_openmp(before)
        _own.reset(token)
