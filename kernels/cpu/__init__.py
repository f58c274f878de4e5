"""C++17 SIMD kernels for the CPU: AVX-512, AVX2, NEON or the baseline, probed at run time.

The baseline, plain C++, is part of every build. It serves x86 machines without AVX2, and
architectures other than x86 and ARM.

The extension takes pointers, sizes and strides only, so that it links no torch. These modules turn
tensors into pointers, sizes and strides, and name errors in them.
"""

import os
import sys

try:
    from .. import _cpu as extension
except ImportError:  # installed without a compiler: the reference backend serves instead
    extension = None  # type: ignore[assignment]

__all__ = ["ISAS", "available_isas", "extension", "is_available", "isa", "what_is_missing"]

ISAS = ("avx512", "avx2", "neon", "baseline")


def is_available() -> bool:
    """Return whether the C++ extension was built."""
    return extension is not None


def what_is_missing() -> str:
    """Say why this backend cannot serve, if it is not available."""
    compiler = "Visual Studio's C++ Clang tools" if sys.platform == "win32" else "g++ or clang++"
    return f"the C++ extension is not built: install a C++ compiler ({compiler}), then kgfast again"


def isa() -> str:
    """Return the instruction set in use: ``KGFAST_CPU_ISA``, or the best of this machine.

    A ValueError says that ``KGFAST_CPU_ISA`` is unknown, or that this machine lacks it.
    """
    name = os.environ.get("KGFAST_CPU_ISA", "")
    if name and name not in ISAS:
        raise ValueError(f"KGFAST_CPU_ISA must be one of {', '.join(ISAS)}; got {name!r}")
    best = extension.find_isa(name)
    if not best:
        raise ValueError(f"KGFAST_CPU_ISA={name}: this machine lacks {name}")
    return str(best)


def available_isas() -> list[str]:
    """Return the instruction sets that this machine and build have, best first."""
    return [name for name in ISAS if extension is not None and extension.find_isa(name)]
