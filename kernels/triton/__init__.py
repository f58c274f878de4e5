"""Triton kernels for NVIDIA (sm_80 and later) and AMD GPUs.

With ``TRITON_INTERPRET=1`` set before the import of this package, the kernels run on CPU tensors,
slowly. Tests prove the integers of the kernels in this way, without a GPU.
"""

import re
from functools import cache
from importlib import metadata

# tests compile every kernel with this version; older versions lack features that kernels use
OLDEST = (3, 6)


def is_available() -> bool:
    """Return whether a Triton that compiles the kernels is installed, without importing it."""
    return _version() >= OLDEST


def what_is_missing() -> str:
    """Return the reason why this backend cannot serve, if it is not available."""
    needs = ".".join(map(str, OLDEST))
    if not _version():
        return f"Triton is not installed: pip install 'triton>={needs}'"
    found = ".".join(map(str, _version()))
    return f"Triton {found} is installed, {needs} is needed: pip install 'triton>={needs}'"


@cache
def _version() -> tuple[int, ...]:
    """Return the installed major and minor version; an empty tuple without Triton."""
    for name in ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-windows"):
        try:
            found = re.match(r"(\d+)\.(\d+)", metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
        if found is not None:
            return tuple(map(int, found.groups()))
    return ()
