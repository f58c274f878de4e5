"""Builds the C++ extension and maps ``kernels/`` to the import name ``kgfast.kernels``.

Everything else is in pyproject.toml. Each source is compiled for the instruction set in its name
and picked at run time; none may use ``-ffast-math`` (it changes the floating-point mode of the
whole process) or contract products into sums (canonical scores are defined without).

``KGFAST_BUILD_BASELINE=1`` adds the kernels of x86 machines without AVX2; ``KGFAST_BUILD_JOBS``
says how many sources are compiled at a time (default: as many as the machine has cores);
``KGFAST_REQUIRE_EXTENSION=1`` fails where a compiler does, as a wheel without kernels is none.

On Windows the compiler is clang-cl of Visual Studio's LLVM, for vector attributes, which are not
Microsoft's; ``cl`` is not tried.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

try:
    from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
except ImportError:  # reading the metadata needs no compiler
    Pybind11Extension = None  # type: ignore[assignment, misc]
else:
    ParallelCompile("KGFAST_BUILD_JOBS").install()

SOURCES = Path("kernels/cpu/csrc")
COMMON_FLAGS = [
    *("-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    "-Werror=switch",  # what is said of each kind of terms, or of passes, is said of all
]
SANITIZERS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}
# What `make sanitize` asks for, in a build folder of its own: none by default.
SANITIZER_FLAGS = SANITIZERS.get(os.environ.get("KGFAST_SANITIZE", ""), [])
X86_FLAGS = {
    "isa_avx2.cpp": ["-mavx2", "-mfma", "-mf16c"],
    "isa_avx512.cpp": [
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"),
        "-mprefer-vector-width=512",
    ],
}
X86_FLAGS["isa_avx512fp16.cpp"] = [*X86_FLAGS["isa_avx512.cpp"], "-mavx512fp16"]
X86_FLAGS["isa_avx512vnni.cpp"] = [*X86_FLAGS["isa_avx512.cpp"], "-mavx512vnni"]
X86_FLAGS["isa_avx512vnni_int8.cpp"] = X86_FLAGS["isa_avx512vnni.cpp"]
X86_FLAGS["isa_avx2_int8.cpp"] = X86_FLAGS["isa_avx2.cpp"]
X86_FLAGS["isa_avx512bf16.cpp"] = [*X86_FLAGS["isa_avx512.cpp"], "-mavx512bf16"]
X86_FLAGS["isa_amx.cpp"] = [
    *X86_FLAGS["isa_avx512.cpp"],
    *("-mavx512vbmi", "-mamx-tile", "-mamx-int8"),
]
X86_FLAGS["isa_amx_bf16.cpp"] = [
    *X86_FLAGS["isa_avx512.cpp"],
    *("-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
]
# What compilers of the last years may lack: sources that they get the flags of only where this
# compiles, and which are empty without.
X86_PROBES = {
    "isa_avx512fp16.cpp": "__m512h f(__m512h x) { return _mm512_rsqrt_ph(x); }",
    "isa_avx512vnni.cpp": "__m512i f(__m512i x) { return _mm512_dpbusd_epi32(x, x, x); }",
    "isa_avx512bf16.cpp": "__m512 f(__m512 s, __m512bh x) { return _mm512_dpbf16_ps(s, x, x); }",
    "isa_amx.cpp": "void f() { _tile_dpbssd(0, 1, 2); }",
    "isa_amx_bf16.cpp": "void f() { _tile_dpbf16ps(0, 1, 2); }",
}
X86_PROBES["isa_avx512vnni_int8.cpp"] = X86_PROBES["isa_avx512vnni.cpp"]
if SANITIZER_FLAGS:  # the widest instruction set and plain C++, so that it builds in minutes
    COMMON_FLAGS += ["-O1", "-g1", "-fno-omit-frame-pointer", *SANITIZER_FLAGS]
    del X86_FLAGS["isa_avx2.cpp"]
# The sources that take longest come first, so that none of them is left over at the end.
FIRST = [
    *("isa_avx512.cpp", "isa_baseline.cpp", "isa_avx2.cpp", "isa_neon.cpp", "bindings.cpp"),
    *("isa_avx512fp16.cpp", "isa_amx.cpp", "isa_avx512vnni.cpp", "isa_amx_bf16.cpp"),
    "isa_avx512bf16.cpp",
]


class BuildPerFile(build_ext):
    """Compile each source with the flags of its instruction set."""

    unknown: frozenset[str] | set[str] = frozenset()
    """Sources whose flags the compiler does not know."""

    def build_extension(self, ext: Any) -> None:
        """Wrap the compiler so that a source gets its own flags."""
        if self.compiler.compiler_type == "msvc":
            self._use_clang_cl()
        else:
            self._wrap_unix()
        self.unknown = {name for name in X86_PROBES if self._is_x86() and not self._knows(name)}
        super().build_extension(ext)

    def _flags_of(self, source: str) -> list[str]:
        """Return the flags of a source alone."""
        name = Path(source).name
        has_flags = self._is_x86() and name not in self.unknown
        return spelled(X86_FLAGS.get(name, [])) if has_flags else []

    def _is_x86(self) -> bool:
        """Whether the target is, which may not be this machine."""
        return self.plat_name.endswith(("x86_64", "amd64"))

    def _knows(self, name: str) -> bool:
        """Whether the compiler, and the assembler behind it, take the flags of a source."""
        with tempfile.TemporaryDirectory() as folder:
            probe = Path(folder, name)
            probe.write_text(f"#include <immintrin.h>\n{X86_PROBES[name]}\n")
            try:
                self.compiler.compile([str(probe)], output_dir=folder)
            except CompileError:
                return False
        return True

    def _wrap_unix(self) -> None:
        compile_one = self.compiler._compile

        def compile_with_flags(
            obj: str, src: str, suffix: str, cc_args: Any, extra: list[str], pp_opts: Any
        ) -> None:
            compile_one(obj, src, suffix, cc_args, [*extra, *self._flags_of(src)], pp_opts)

        self.compiler._compile = compile_with_flags

    def _use_clang_cl(self) -> None:
        clang_cl = shutil.which("clang-cl")
        if clang_cl is None:
            raise CompileError("kgfast needs clang-cl (Visual Studio: C++ Clang tools for Windows)")
        if not self.compiler.initialized:
            self.compiler.initialize(self.plat_name)
        self.compiler.cc = clang_cl
        compile_all = self.compiler.compile

        def compile_each(files: list[str], extra_postargs: Any = None, **rest: Any) -> list[str]:
            objects: list[str] = []
            for file in files:
                flags = [*(extra_postargs or []), *self._flags_of(file)]
                objects += compile_all([file], extra_postargs=flags, **rest)
            return objects

        self.compiler.compile = compile_each


def spelled(flags: list[str]) -> list[str]:
    """Return flags as the platform's compiler takes them."""
    return [f"/clang:{flag}" for flag in flags] if sys.platform == "win32" else flags


def sources() -> list[str]:
    """Return the sources, the slowest first."""
    paths = {path.name: str(path) for path in SOURCES.glob("*/*.cpp")}
    return [paths[name] for name in [*FIRST, *sorted(paths.keys() - set(FIRST))]]


def extensions() -> list[Any]:
    """Return the one extension; ``optional``: an install without a compiler still succeeds."""
    if Pybind11Extension is None:
        return []
    extension = Pybind11Extension(
        "kgfast.kernels._cpu",
        sources(),
        depends=sorted(str(path) for path in SOURCES.glob("*/*.h")),
        include_dirs=[str(SOURCES)],
        cxx_std=17,
        define_macros=[("KGFAST_BUILD_BASELINE", "1")] if _is_set("KGFAST_BUILD_BASELINE") else [],
        extra_compile_args=spelled(COMMON_FLAGS),
        extra_link_args=[
            *([] if sys.platform in ("darwin", "win32") else ["-pthread"]),
            *SANITIZER_FLAGS,
        ],
        optional=not _is_set("KGFAST_REQUIRE_EXTENSION"),
    )
    return [extension]


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "0") not in ("", "0")


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildPerFile})
