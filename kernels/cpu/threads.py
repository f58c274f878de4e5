"""Number of threads of the extension: torch's, unless the extension has the cores alone.

After a parallel operator, torch's threads spin for milliseconds on the cores that the next kernel
needs. ``OMP_WAIT_POLICY`` can stop the spinning; kgfast sets this variable if kgfast is imported
before torch. If no operator of torch is large, torch needs only one thread.

After ``os.fork()`` the extension makes new threads for the child. Torch's OpenMP does not. If the
parent has computed on several threads of torch, an operator of torch that is large enough for
threads (more than 32,768 numbers) waits for ever in the child. Start children by ``spawn`` or
``forkserver``, or call ``torch.set_num_threads(1)`` first in a child.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

OWN: ContextVar[int | None] = ContextVar("kgfast_own_threads", default=None)
_libraries = ctypes.CDLL(torch._C.__file__)  # torch's library, with the libraries linked to it
# Both set the number of the calling thread. MKL's function returns the number before.
_set_openmp: Any = getattr(_libraries, "omp_set_num_threads", None)
_set_mkl = getattr(_libraries, "MKL_Set_Num_Threads_Local", lambda number: 0)
HAS_OWN_NUMBERS = _set_openmp is not None and torch.backends.openmp.is_available()


def count() -> int:
    """Count the threads of a kernel of the extension."""
    return OWN.get() or torch.get_num_threads()


@contextmanager
def alone() -> Iterator[None]:
    """Give operators of torch one thread within; kernels keep their number of threads."""
    threads = count()
    before, token = torch.get_num_threads(), OWN.set(threads)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        OWN.reset(token)


@contextmanager
def one_here() -> Iterator[None]:
    """Leave operators of torch one thread in the calling thread, and change no other thread.

    :func:`alone` also changes MKL's number for all threads, and the number of threads new to torch.
    If :data:`HAS_OWN_NUMBERS` is False, this function is ``alone``.
    """
    if not HAS_OWN_NUMBERS:
        with alone():
            yield
        return
    threads, before = count(), torch.get_num_threads()
    token = OWN.set(threads)
    _set_openmp(1)
    mkl = _set_mkl(1)
    try:
        yield
    finally:
        _set_mkl(mkl)
        _set_openmp(before)
        OWN.reset(token)
