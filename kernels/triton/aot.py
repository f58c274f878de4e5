"""Compiling without a GPU: what the launcher would launch, for which arguments, in which code.

:func:`recorded` runs the host side with launches written down instead of made; :func:`compile_for`
compiles one of them, with the specialisation that its real arguments get, and reads the result:
registers, stack, shared memory, and the issue slots of the innermost loop from the SASS. The tests
assert and ``benchmarks/static_roofline.py`` reports what is found here.
"""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from . import rank
from .host import crop

_POINTERS = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
}
_ALIGNED = [["tt.divisibility", 16]]


@dataclass(frozen=True)
class Launch:
    """A launch that was recorded instead of made."""

    kernel: Any
    grid: tuple[int, ...]
    args: dict[str, Any]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(self.kernel.__name__)


@contextmanager
def recorded(arch: int) -> Iterator[list[Launch]]:
    """Within, :func:`rank.rank_counts` takes CPU tensors and fills the list; its results are void.

    ``arch`` is 80, 90, 100 for NVIDIA, 0 for AMD.
    """
    launches: list[Launch] = []

    def record(kernel: Any, grid: tuple[int, ...], args: dict[str, Any], **options: Any) -> None:
        launches.append(Launch(kernel, grid, args, options))

    with (
        patch.object(crop, "launch", record),
        patch.object(rank, "architecture", lambda device: arch),
    ):
        yield launches


def specialisation(launch: Launch) -> tuple[dict[str, str], dict[str, Any], tuple[str, ...]]:
    """Types, constants and the names of the arguments known to be multiples of 16.

    As Triton's launcher finds them: an integer 1 and None are constants, and so is what the
    kernel declares as one.
    """
    types: dict[str, str] = {}
    constants: dict[str, Any] = {}
    aligned = []
    for parameter in launch.kernel.params:
        value = launch.args[parameter.name]
        is_one = type(value) is int and value == 1 and not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or is_one:
            types[parameter.name], constants[parameter.name] = "constexpr", value
            continue
        if isinstance(value, torch.Tensor):
            types[parameter.name] = _POINTERS[value.dtype]
            value = value.data_ptr()
        elif isinstance(value, float):
            types[parameter.name] = "fp32"
            continue
        else:
            types[parameter.name] = "i32" if -(2**31) <= value < 2**31 else "i64"
        if value % 16 == 0 and not parameter.do_not_specialize:
            aligned.append(parameter.name)
    return types, constants, tuple(aligned)


def compile_for(launch: Launch, arch: int | str) -> "Code":
    """Compile a launch for ``arch``: 80, 90, ... for NVIDIA, ``"gfx942"`` for AMD."""
    types, constants, aligned = specialisation(launch)
    key = tuple(types.items()), tuple(constants.items()), aligned, tuple(launch.options.items())
    return _compile(launch.kernel, arch, *key)


@cache
def _compile(
    kernel: Any,
    arch: int | str,
    types: tuple[tuple[str, str], ...],
    constants: tuple[tuple[str, Any], ...],
    aligned: tuple[str, ...],
    options: tuple[tuple[str, Any], ...],
) -> "Code":
    place = {name: (i,) for i, (name, _) in enumerate(types)}
    source = ASTSource(
        fn=kernel,
        signature=dict(types),
        constexprs={place[name]: value for name, value in constants},
        attrs={place[name]: _ALIGNED for name in aligned},
    )
    is_nvidia = isinstance(arch, int)
    target = GPUTarget("cuda", arch, 32) if is_nvidia else GPUTarget("hip", arch, 64)
    compiled = triton.compile(source, target=target, options=dict(options))
    return (NvidiaCode if is_nvidia else AmdCode)(compiled.asm, compiled.metadata.shared)


@dataclass
class Code:
    """A compiled kernel, as Triton's stages left it."""

    asm: dict[str, Any]
    shared: int  # bytes of shared memory of a program

    @property
    def registers(self) -> int:
        """Vector registers of a thread."""
        raise NotImplementedError

    @property
    def stack(self) -> int:
        """Bytes of stack and of spills of a thread."""
        raise NotImplementedError


class NvidiaCode(Code):
    """PTX, and the SASS that ptxas made of it."""

    @property
    def registers(self) -> int:
        """Registers of a thread."""
        return self._resources["REG"]

    @property
    def stack(self) -> int:
        """Bytes of stack and of local memory of a thread."""
        return self._resources["STACK"] + self._resources["LOCAL"]

    @property
    def ptx(self) -> str:
        """The PTX."""
        return str(self.asm["ptx"])

    @cached_property
    def _resources(self) -> dict[str, int]:
        text = _cuobjdump("--dump-resource-usage", self.asm["cubin"])
        return {name: int(value) for name, value in re.findall(r"\b([A-Z]+):(\d+)", text)}

    @cached_property
    def loops(self) -> list[Counter[str]]:
        """The operations of every loop, innermost (shortest) first."""
        lines = re.findall(
            r"^\s+/\*([0-9a-f]{4,5})\*/\s+(.*?)\s*;",
            _cuobjdump("--dump-sass", self.asm["cubin"]),
            re.MULTILINE,
        )
        code = [(int(address, 16), text) for address, text in lines]
        spans = []
        for address, text in code:
            branch = re.search(r"\bBRA\S*\s+(?:\S+,\s*)?0x([0-9a-f]+)", text)
            if branch and int(branch.group(1), 16) < address:
                spans.append((int(branch.group(1), 16), address))
        spans.sort(key=lambda span: span[1] - span[0])
        return [
            Counter(_operation(text) for address, text in code if low <= address <= high)
            for low, high in spans
        ]

    def inner_loop(self, least: int) -> Counter[str]:
        """The shortest loop of at least ``least`` instructions."""
        return next(loop for loop in self.loops if loop.total() >= least)


class AmdCode(Code):
    """GCN assembly."""

    @property
    def registers(self) -> int:
        """Vector registers of a lane."""
        return self._field(".vgpr_count")

    @property
    def stack(self) -> int:
        """Bytes of stack, and spilled registers, of a lane."""
        return self._field(".private_segment_fixed_size") + self._field(".vgpr_spill_count")

    def _field(self, name: str) -> int:
        found = re.search(rf"{re.escape(name)}:\s*(\d+)", self.asm["amdgcn"])
        assert found is not None, name
        return int(found.group(1))


def _operation(text: str) -> str:
    """``@!P0 MUFU.SQRT R0, R1`` -> ``MUFU.SQRT``; other modifiers are dropped."""
    name = re.sub(r"^@!?U?P[T\d]+\s+", "", text).split()[0]
    return ".".join(name.split(".")[: 2 if name.startswith("MUFU") else 1])


def _cuobjdump(flag: str, cubin: bytes) -> str:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run(
            [str(tool), flag, file.name], capture_output=True, text=True, check=True
        ).stdout
