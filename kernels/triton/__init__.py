"""Triton kernels for NVIDIA (sm_80 and later) and AMD GPUs.

With ``TRITON_INTERPRET=1`` set before anything here is imported, the same kernels run on CPU
tensors, slowly, which is how their integers are proven without a GPU.
"""

import re
from functools import cache
from importlib import metadata

OLDEST = (3, 6)  # tests compile every kernel with it; older ones lack what kernels are written in


def is_available() -> bool:
    """Return whether a Triton that compiles the kernels is installed, without importing it."""
    return _version() >= OLDEST


def what_is_missing() -> str:
    """Return what keeps this backend from serving, where it is not available."""
    needs = ".".join(map(str, OLDEST))
    if not _version():
        return f"Triton is not installed: pip install 'triton>={needs}'"
    found = ".".join(map(str, _version()))
    return f"Triton {found} is installed, {needs} is needed: pip install 'triton>={needs}'"


@cache
def _version() -> tuple[int, ...]:
    """Return the major and the minor version that is installed; nothing where none is."""
    for name in ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-windows"):
        try:
            found = re.match(r"(\d+)\.(\d+)", metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
        if found is not None:
            return tuple(map(int, found.groups()))
    return ()
