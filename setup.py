"""Builds the C++ extension and maps ``kernels/`` to the import name ``kgfast.kernels``.

Everything else is in pyproject.toml. Each source is compiled for the instruction set in its name
and picked at run time; none may use ``-ffast-math`` (it changes the floating-point mode of the
whole process) or contract products into sums (canonical scores are defined without).

``KGFAST_BUILD_JOBS`` says how many sources are compiled at a time (default: as many as the machine
has cores);
``KGFAST_REQUIRE_EXTENSION=1`` makes the build fail where the compiler fails or is missing.

On Windows the compiler is clang-cl of Visual Studio's LLVM, for vector attributes, which are not
Microsoft's; ``cl`` is not tried.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError, CompileError

SOURCES = Path("kernels/cpu/csrc")
COMMON_FLAGS = [
    *("-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    "-Werror=switch",  # a switch over kinds of terms or of passes names every kind
]
LINK_FLAGS: list[str] = []
SANITIZERS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}
# Flags of `make sanitize`, which builds in a folder of its own; none by default.
SANITIZER_FLAGS = SANITIZERS.get(os.environ.get("KGFAST_SANITIZE", ""), [])
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [
    *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"),
    "-mprefer-vector-width=512",
]
X86_FLAGS = {
    "isa_avx2.cpp": AVX2,
    "isa_avx512.cpp": AVX512,
    "isa_avx512vnni_int8.cpp": [*AVX512, "-mavx512vnni"],
}
if sys.platform == "linux":
    LINK_FLAGS += ["-pthread", "-Wl,-z,relro,-z,now"]  # no table of addresses stays writable
    if not SANITIZER_FLAGS:  # sanitizers have checks of their own
        COMMON_FLAGS += ["-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3"]
if SANITIZER_FLAGS:  # the widest instruction set and plain C++, so that it builds in minutes
    COMMON_FLAGS += ["-O1", "-g1", "-fno-omit-frame-pointer", *SANITIZER_FLAGS]
    del X86_FLAGS["isa_avx2.cpp"]
# The slowest sources come first, so that no slow one is left at the end.
FIRST = ["isa_avx512.cpp", "isa_baseline.cpp", "isa_avx2.cpp", "isa_neon.cpp", "bindings.cpp"]


class BuildPerFile(build_ext):
    """Compile each source with the flags of its instruction set."""

    def finalize_options(self) -> None:
        """Keep the objects of an extension in the tree, which a test reads."""
        super().finalize_options()
        if self.inplace:
            self.build_temp = "build/objects"

    def build_extension(self, ext: Any) -> None:
        """Build with flags per source; where that fails and is allowed to, a pure wheel says so."""
        try:
            if self.compiler.compiler_type == "msvc":
                self._use_clang_cl()
            name = "call" if hasattr(self.compiler, "call") else "spawn"
            run = getattr(self.compiler, name)
            add_flags = lambda command, **rest: run(self._with_flags(command), **rest)  # noqa: E731
            setattr(self.compiler, name, add_flags)
            super().build_extension(ext)
        except (BaseError, CCompilerError):
            Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)  # an earlier build's
            self.distribution.ext_modules = []
            self.get_finalized_command("bdist_wheel").root_is_pure = True
            raise

    def copy_extensions_to_source(self) -> None:
        """Copy the extension; delete an earlier one, whose name would be found first."""
        for path in Path("kernels").glob("_cpu.*"):
            if path.suffix in (".so", ".pyd"):
                path.unlink()
        super().copy_extensions_to_source()

    def _with_flags(self, command: list[str]) -> list[str]:
        """Return the command of a compiler with the flags of its source."""
        is_x86 = self.plat_name.endswith(("x86_64", "amd64"))  # the target; this machine may differ
        for name, flags in X86_FLAGS.items():
            if is_x86 and any(word.endswith(name) for word in command):
                return [*command, *spelled(flags)]
        return command

    def _use_clang_cl(self) -> None:
        clang_cl = shutil.which("clang-cl")
        if clang_cl is None:
            raise CompileError("kgfast needs clang-cl (Visual Studio: C++ Clang tools for Windows)")
        if not self.compiler.initialized:
            self.compiler.initialize(self.plat_name)
        self.compiler.cc = clang_cl


def spelled(flags: list[str]) -> list[str]:
    """Return flags as the platform's compiler takes them."""
    return [f"/clang:{flag}" for flag in flags] if sys.platform == "win32" else flags


def sources() -> list[str]:
    """Return the sources, the slowest first."""
    paths = {path.name: str(path) for path in SOURCES.glob("*/*.cpp")}
    return [paths[name] for name in [*FIRST, *sorted(paths.keys() - set(FIRST))]]


def extension() -> Pybind11Extension:
    """Return the extension; ``optional``: an install without a compiler still succeeds."""
    is_wheel = sys.platform == "linux" and _is_set("KGFAST_REQUIRE_EXTENSION")
    strip = ["-Wl,-s"] if is_wheel else []  # profilers want symbols, users 30 KB less
    return Pybind11Extension(
        "kgfast.kernels._cpu",
        sources(),
        cxx_std=17,
        depends=sorted(str(path) for path in SOURCES.glob("*/*.h")),
        include_dirs=[str(SOURCES)],
        extra_compile_args=spelled(COMMON_FLAGS),
        extra_link_args=[*LINK_FLAGS, *strip, *SANITIZER_FLAGS],
        optional=not _is_set("KGFAST_REQUIRE_EXTENSION"),
    )


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "0") not in ("", "0")


ParallelCompile("KGFAST_BUILD_JOBS").install()
built = setup(ext_modules=[extension()], cmdclass={"build_ext": BuildPerFile})
if not built.has_ext_modules():
    print(
        "kgfast: no C++ compiler built the kernels, so this package is pure Python, and slow: "
        "install a C++ compiler, then kgfast again",
        file=sys.stderr,
    )
