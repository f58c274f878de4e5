"""Builds the C++ extension and maps ``kernels/`` to the import name ``kgfast.kernels``.

Everything else is in pyproject.toml. Each source is compiled for the instruction set in its name
and picked at run time; none may use ``-ffast-math`` (it changes the floating-point mode of the
whole process) or contract products into sums (canonical scores are defined without).

``KGFAST_BUILD_JOBS`` says how many sources are compiled at a time (default: as many as the machine
has cores);
``KGFAST_REQUIRE_EXTENSION=1`` makes the build fail where the compiler fails or is missing.

The extension uses the limited API of Python 3.11, so one wheel of a platform serves every later
version. A free-threaded Python has no limited API: it gets an extension of its own.

On Windows the compiler is clang-cl of Visual Studio's LLVM, for vector attributes, which are not
Microsoft's; ``cl`` is not tried.
"""

import gzip
import json
import os
import re
import shutil
import sys
import sysconfig
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import setuptools
from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist
from setuptools.errors import BaseError, CCompilerError, CompileError

SOURCES = Path("kernels/cpu/csrc")
HAS_LIMITED_API = not sysconfig.get_config_var("Py_GIL_DISABLED")
COMMON_FLAGS = [
    *("-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    *("-fvisibility=hidden", "-g0"),
    "-Werror=switch",  # a switch over kinds of terms or of passes names every kind
]
LINK_FLAGS: list[str] = []
SANITIZERS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}
# Flags of `make sanitize`, which builds in a folder of its own; none by default.
SANITIZER_FLAGS = SANITIZERS.get(os.environ.get("KGFAST_SANITIZE", ""), [])
X86_FLAGS = {
    "isa_avx2.cpp": ["-mavx2", "-mfma", "-mf16c"],
    "isa_avx512.cpp": [
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"),
        "-mprefer-vector-width=512",
    ],
}
X86_FLAGS["isa_avx512vnni.cpp"] = [*X86_FLAGS["isa_avx512.cpp"], "-mavx512vnni"]
X86_FLAGS["isa_avx512vnni_int8.cpp"] = X86_FLAGS["isa_avx512vnni.cpp"]
X86_FLAGS["isa_avx2_int8.cpp"] = X86_FLAGS["isa_avx2.cpp"]
# Code that compilers of the last years may refuse. A source gets its flags only where its code
# compiles, and is empty without these flags.
X86_PROBES = {
    "isa_avx512vnni.cpp": "__m512i f(__m512i x) { return _mm512_dpbusd_epi32(x, x, x); }",
}
X86_PROBES["isa_avx512vnni_int8.cpp"] = X86_PROBES["isa_avx512vnni.cpp"]
if sys.platform == "linux":
    LINK_FLAGS += ["-pthread", "-Wl,-z,relro,-z,now"]  # no table of addresses stays writable
    if not SANITIZER_FLAGS:  # sanitizers have checks of their own
        COMMON_FLAGS += ["-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3"]
if SANITIZER_FLAGS:  # the widest instruction set and plain C++, so that it builds in minutes
    COMMON_FLAGS += ["-O1", "-g1", "-fno-omit-frame-pointer", *SANITIZER_FLAGS]
    del X86_FLAGS["isa_avx2.cpp"]
# The slowest sources come first, so that no slow one is left at the end.
FIRST = [
    *("isa_avx512.cpp", "isa_baseline.cpp", "isa_avx2.cpp", "isa_neon.cpp", "bindings.cpp"),
    "isa_avx512vnni.cpp",
]


class BuildPerFile(build_ext):
    """Compile each source with the flags of its instruction set."""

    unknown: frozenset[str] | set[str] = frozenset()
    """Sources whose flags the compiler does not know."""

    def finalize_options(self) -> None:
        """Keep the objects of an extension in the tree, which a test reads."""
        super().finalize_options()
        if self.inplace:
            self.build_temp = "build/objects"

    def build_extension(self, ext: Any) -> None:
        """Wrap the compiler so that sources get their own flags and are compiled side by side.

        Where that fails and is allowed to, the package is pure Python, and its wheel says so.
        """
        try:
            if self.compiler.compiler_type == "msvc":
                self._use_clang_cl()
            self._compile_each()
            self.unknown = {name for name in X86_PROBES if self._is_x86() and not self._knows(name)}
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

    def _flags_of(self, source: str) -> list[str]:
        """Return the flags of a source alone."""
        name = Path(source).name
        has_flags = self._is_x86() and name not in self.unknown
        return spelled(X86_FLAGS.get(name, [])) if has_flags else []

    def _is_x86(self) -> bool:
        """Return whether the target of the build is x86; this machine may differ."""
        return self.plat_name.endswith(("x86_64", "amd64"))

    def _knows(self, name: str) -> bool:
        """Return whether the compiler and its assembler accept the flags of a source."""
        with tempfile.TemporaryDirectory() as folder:
            probe = Path(folder, name)
            probe.write_text(f"#include <immintrin.h>\n{X86_PROBES[name]}\n")
            try:
                self.compiler.compile([str(probe)], output_dir=folder)
            except CompileError:
                return False
        return True

    def _compile_each(self) -> None:
        """Compile sources one by one, on all cores."""
        compile_all = self.compiler.compile
        jobs = int(os.environ.get("KGFAST_BUILD_JOBS") or os.cpu_count() or 1)

        def compile_each(files: list[str], extra_postargs: Any = None, **rest: Any) -> list[str]:
            def compile_one(file: str) -> list[str]:
                flags = [*(extra_postargs or []), *self._flags_of(file)]
                return compile_all([file], extra_postargs=flags, **rest)  # type: ignore[no-any-return]

            with ThreadPoolExecutor(jobs) as pool:
                return [made for several in pool.map(compile_one, files) for made in several]

        self.compiler.compile = compile_each

    def _use_clang_cl(self) -> None:
        clang_cl = shutil.which("clang-cl")
        if clang_cl is None:
            raise CompileError("kgfast needs clang-cl (Visual Studio: C++ Clang tools for Windows)")
        if not self.compiler.initialized:
            self.compiler.initialize(self.plat_name)
        self.compiler.cc = clang_cl


class SameBytes(sdist):
    """Write a source archive whose bytes depend on the files alone, not on clocks or owners."""

    def make_archive(self, base_name: str, format: str, **rest: Any) -> str:
        """Pack the folder that setuptools has filled."""
        path, folder = f"{base_name}.tar.gz", Path(rest["base_dir"])
        date = int(os.environ.get("SOURCE_DATE_EPOCH", 0))

        def stripped(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.mtime, member.uid, member.gid, member.uname, member.gname = date, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            return member

        with (
            gzip.GzipFile("", "wb", 9, Path(path).open("wb"), mtime=date) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for file in sorted(folder.rglob("*")):
                archive.add(file, str(file), recursive=False, filter=stripped)
        return path


class WithSbom(bdist_wheel):
    """Add a software bill of materials to a wheel (PEP 770), as CycloneDX."""

    def egg2dist(self, egginfo_path: str, distinfo_path: str) -> None:
        """Write the metadata, and the bill beside the licences."""
        super().egg2dist(egginfo_path, distinfo_path)
        path = Path(distinfo_path, "sboms", "kgfast.cdx.json")
        path.parent.mkdir()
        path.write_text(json.dumps(bill_of_materials(self.distribution), indent=1) + "\n")


def bill_of_materials(distribution: Any) -> dict[str, Any]:
    """Describe the contents of a wheel: no code of others is in it, and these it asks for."""

    def component(requirement: str) -> dict[str, Any]:
        name = re.split(r"[^\w.-]", requirement)[0]
        asked = {"name": "kgfast:requirement", "value": requirement}
        purl = f"pkg:pypi/{name.lower()}"
        own = {"type": "library", "name": name, "purl": purl, "bom-ref": purl}
        return own | {"scope": "required", "properties": [asked]}

    name, version = distribution.get_name(), distribution.get_version()
    own = {"type": "library", "name": name, "version": version, "licenses": []}
    own["licenses"] = [{"license": {"id": "Apache-2.0"}}]
    own["bom-ref"] = own["purl"] = f"pkg:pypi/{name}@{version}"
    needed = [component(it) for it in sorted(distribution.install_requires)]
    tool = {"type": "application", "name": "setuptools", "version": setuptools.__version__}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"tools": {"components": [tool]}, "component": own},
        "components": needed,
        "dependencies": [
            {"ref": own["purl"], "dependsOn": [it["purl"] for it in needed]},
            *({"ref": it["purl"]} for it in needed),
        ],
    }


def spelled(flags: list[str]) -> list[str]:
    """Return flags as the platform's compiler takes them."""
    return [f"/clang:{flag}" for flag in flags] if sys.platform == "win32" else flags


def sources() -> list[str]:
    """Return the sources, the slowest first."""
    paths = {path.name: str(path) for path in SOURCES.glob("*/*.cpp")}
    return [paths[name] for name in [*FIRST, *sorted(paths.keys() - set(FIRST))]]


def extension() -> Extension:
    """Return the extension; ``optional``: an install without a compiler still succeeds."""
    is_windows = sys.platform == "win32"
    macros: list[tuple[str, str | None]] = []
    if HAS_LIMITED_API:
        macros.append(("Py_LIMITED_API", "0x030B0000"))
    is_wheel = sys.platform == "linux" and _is_set("KGFAST_REQUIRE_EXTENSION")
    strip = ["-Wl,-s"] if is_wheel else []  # profilers want symbols, users 30 KB less
    return Extension(
        "kgfast.kernels._cpu",
        sources(),
        depends=sorted(str(path) for path in SOURCES.glob("*/*.h")),
        include_dirs=[str(SOURCES)],
        language="c++",
        define_macros=macros,
        extra_compile_args=[
            *(["/std:c++17", "/EHsc", "/bigobj"] if is_windows else ["-std=c++17"]),
            *spelled(COMMON_FLAGS),
        ],
        extra_link_args=[*LINK_FLAGS, *strip, *SANITIZER_FLAGS],
        py_limited_api=HAS_LIMITED_API,
        optional=not _is_set("KGFAST_REQUIRE_EXTENSION"),
    )


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "0") not in ("", "0")


built = setup(
    ext_modules=[extension()],
    cmdclass={"bdist_wheel": WithSbom, "build_ext": BuildPerFile, "sdist": SameBytes},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if HAS_LIMITED_API else {},
)
if not built.has_ext_modules():
    print(
        "kgfast: no C++ compiler built the kernels, so this package is pure Python, and slow: "
        "install a C++ compiler, then kgfast again",
        file=sys.stderr,
    )
