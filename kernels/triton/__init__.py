"""Triton kernels for NVIDIA (sm_80 and later) and AMD GPUs.

With ``TRITON_INTERPRET=1`` set before anything here is imported, the same kernels run on CPU
tensors, slowly, which is how their integers are proven without a GPU.
"""

from importlib.util import find_spec


def is_available() -> bool:
    """Whether Triton is installed. Does not import it."""
    return find_spec("triton") is not None


def what_is_missing() -> str:
    """What keeps this backend from serving, where it is not available."""
    return "Triton is not installed: pip install triton"
