"""Compile Triton's kernels without a GPU, with the arguments that the launcher would give them.

:func:`recorded` runs the host side and records launches instead of making them; :func:`compile_for`
compiles a recorded launch as specialised for the real arguments, and reads the result: registers,
stack, shared memory, and the issue slots of the innermost loop from the SASS. The tests assert
these numbers.
"""

import math
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.cache import get_cache_manager

from kgfast.kernels.triton.device.sweep import SUM_BLOCK
from kgfast.kernels.triton.host import launch as launcher

_POINTERS = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.uint8: "*u8",
}
_ALIGNED = [["tt.divisibility", 16]]


@dataclass(frozen=True)
class Launch:
    """Launch that was recorded instead of made."""

    kernel: Any
    grid: tuple[int, ...]
    args: dict[str, Any]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of the kernel."""
        return str(self.kernel.__name__)

    @property
    def tile(self) -> Any:
        """Tile of a program."""
        return self.args["TILE"] if self.variant is None else self.variant.tile

    @property
    def variant(self) -> Any:
        """Return the variant that a kernel of losses is compiled for; None for others."""
        return self.args.get("VARIANT")


@contextmanager
def recorded(arch: int) -> Iterator[list[Launch]]:
    """Record the launches of operators on CPU tensors; the results of the operators are void.

    ``arch`` is 80, 90, 100 for NVIDIA, 0 for AMD.
    """
    launches: list[Launch] = []

    def record(kernel: Any, grid: tuple[int, ...], args: dict[str, Any], **options: Any) -> None:
        launches.append(Launch(kernel, grid, args, {**launcher.DEFAULTS, **options}))

    with (
        patch.object(launcher, "launch", record),
        patch.object(launcher, "architecture", lambda device: arch),
    ):
        yield launches


class Specialisation(NamedTuple):
    """Role of an argument for the compiler, by the path of each member."""

    types: Any  # types of an argument, nested like the argument
    constants: tuple[tuple[tuple[int, ...], Any], ...]
    aligned: tuple[tuple[int, ...], ...]  # known to be multiples of 16


def specialisation(launch: Launch) -> Specialisation:
    """Return the types, constants and alignment of the arguments of a launch.

    Constants are those of Triton's launcher: 1 and None, also within a tuple, and arguments that
    the kernel declares as constants. A kernel can except an argument, but no member of a tuple.
    """
    constants: list[tuple[tuple[int, ...], Any]] = []
    aligned: list[tuple[int, ...]] = []

    def type_of(value: Any, path: tuple[int, ...], *, is_free: bool = False) -> Any:
        if isinstance(value, tuple):
            types = [type_of(member, (*path, i)) for i, member in enumerate(value)]
            return type(value)(*types) if hasattr(value, "_fields") else tuple(types)
        if value is None or (type(value) is int and value == 1 and not is_free):
            constants.append((path, value))
            return "constexpr"
        if isinstance(value, float):
            return "fp32"
        name = "i64"
        if isinstance(value, torch.Tensor):
            name, value = _POINTERS[value.dtype], value.data_ptr()
        elif -(2**31) <= value < 2**31:
            name = "i32"
        if value % 16 == 0 and not is_free:
            aligned.append(path)
        return name

    types = []
    for i, parameter in enumerate(launch.kernel.params):
        value = launch.args[parameter.name]
        if parameter.is_constexpr:
            constants.append(((i,), value))
            types.append("constexpr")
        else:
            types.append(type_of(value, (i,), is_free=parameter.do_not_specialize))
    return Specialisation(tuple(types), tuple(constants), tuple(aligned))


def compile_for(launch: Launch, arch: int | str) -> "Code":
    """Compile a launch for ``arch``: 80, 90, ... for NVIDIA, ``"gfx942"`` for AMD."""
    options = tuple(launch.options.items())
    return _compile(launch.kernel, arch, specialisation(launch), options)


@cache
def _compile(
    kernel: Any, arch: int | str, special: Specialisation, options: tuple[tuple[str, Any], ...]
) -> "Code":
    source = _source(kernel, special)
    is_nvidia = isinstance(arch, int)
    target = GPUTarget("cuda", arch, 32) if is_nvidia else GPUTarget("hip", arch, 64)
    compiled = triton.compile(source, target=target, options=dict(options))
    return (NvidiaCode if is_nvidia else AmdCode)(compiled.asm, compiled.metadata.shared)


def _source(kernel: Any, special: Specialisation) -> ASTSource:
    return ASTSource(
        fn=kernel,
        signature=dict(zip(kernel.arg_names, special.types, strict=True)),
        constexprs=dict(special.constants),
        attrs=dict.fromkeys(special.aligned, _ALIGNED),
    )


def ttir_of(launch: Launch) -> str:
    """Return the TTIR of a launch for sm_90, in hundredths of the time of compiling."""
    source, target = _source(launch.kernel, specialisation(launch)), GPUTarget("cuda", 90, 32)
    return _kept(f"{source.hash()} {launch.options}", "ttir", lambda: _ttir(launch, source, target))


def _ttir(launch: Launch, source: ASTSource, target: GPUTarget) -> str:
    backend, context, stages = make_backend(target), ir.context(), {}
    options = backend.parse_options(launch.options)
    ir.load_dialects(context)
    backend.load_dialects(context)
    made_for = backend.get_codegen_implementation(options), backend.get_module_map()
    module = source.make_ir(target, options, *made_for, context)
    backend.add_stages(stages, options, source.language)
    return str(stages["ttir"](module, {}))


def _kept(key: str, kind: str, make: Callable[[], str]) -> str:
    """Return a text from Triton's cache, where it is made once for a key and a Triton."""
    kept = get_cache_manager(sha256(f"{key} {triton.__version__}".encode()).hexdigest())
    if (path := kept.get_file(f"{kind}.txt")) is not None:
        return Path(path).read_text()
    text = make()
    kept.put(text, f"{kind}.txt", binary=False)
    return text


@dataclass
class Code:
    """Compiled kernel, as Triton's stages left it."""

    asm: dict[str, Any]
    shared: int  # bytes of shared memory of a program

    @property
    def registers(self) -> int:
        """Number of vector registers of a thread."""
        raise NotImplementedError

    @property
    def stack(self) -> int:
        """Bytes of stack and of spills of a thread."""
        raise NotImplementedError


class Loop(Counter[str]):
    """Count of each operation in a loop, in ``order``, with its ``span`` of addresses.

    ``words`` are registers of a thread that loads fill: a warp's loads take as many clocks.
    ``products`` are multiplications of tensor cores for a warp, by the type of the factors.
    """

    words: int
    products: Counter[str]
    span: tuple[int, int]
    order: list[str]

    @staticmethod
    def of(code: Sequence[tuple[int, str]], low: int, high: int) -> "Loop":
        """Return the loop from one address to another."""
        texts = [text for address, text in code if low <= address <= high]
        order = [_operation(text) for text in texts]
        loop = Loop(order)
        loop.order = order
        loop.words = sum(map(_words, texts))
        loop.products = sum(map(_products, texts), Counter())
        loop.span = low, high
        return loop


class NvidiaCode(Code):
    """PTX of a kernel, and the SASS that ptxas made of the PTX."""

    @property
    def registers(self) -> int:
        """Number of registers of a thread."""
        return self._resources["REG"]

    @property
    def stack(self) -> int:
        """Bytes of stack and of local memory of a thread."""
        return self._resources["STACK"] + self._resources["LOCAL"]

    @property
    def ptx(self) -> str:
        """The PTX."""
        return str(self.asm["ptx"])

    def loop_of_roots(self, pairs: int) -> "Loop":
        """Return the innermost loop that takes a square root for each of a thread's pairs."""
        return next(loop for loop in self.loops if loop["MUFU.SQRT"] >= pairs)

    def around(self, loop: "Loop") -> "Loop":
        """Return the innermost loop around another one."""
        return next(it for it in self.loops if _lies_within(loop.span, it.span))

    @cached_property
    def _resources(self) -> dict[str, int]:
        text = _cuobjdump("--dump-resource-usage", self.asm["cubin"])
        return {name: int(value) for name, value in re.findall(r"\b([A-Z]+):(\d+)", text)}

    @cached_property
    def _code(self) -> list[tuple[int, str]]:
        """Addresses and instructions."""
        lines = re.findall(
            r"^\s+/\*([0-9a-f]{4,5})\*/\s+(.*?)\s*;",
            _cuobjdump("--dump-sass", self.asm["cubin"]),
            re.MULTILINE,
        )
        return [(int(address, 16), text) for address, text in lines]

    @cached_property
    def loops(self) -> list[Loop]:
        """Every loop, innermost (shortest) first."""
        spans = []
        for address, text in self._code:
            branch = re.search(r"\bBRA\S*\s+(?:\S+,\s*)?0x([0-9a-f]+)", text)
            if branch and int(branch.group(1), 16) < address:
                spans.append((int(branch.group(1), 16), address))
        spans.sort(key=lambda span: span[1] - span[0])
        return [Loop.of(self._code, low, high) for low, high in spans]

    @property
    def busiest(self) -> Loop:
        """Return the innermost loop with most operations; the whole code if there is none.

        Where tensor cores multiply, the busiest loop is the loop around their instructions.
        """
        holds_none = [
            loop
            for loop in self.loops
            if not any(_lies_within(other.span, loop.span) for other in self.loops)
        ]
        asking = [loop for loop in self.loops if any(name.endswith("MMA") for name in loop)]
        if asking:
            return asking[0]
        whole = Loop.of(self._code, 0, self._code[-1][0])
        return max(holds_none, key=Loop.total, default=whole)

    def inner_loop(self, least: int) -> Loop:
        """Return the shortest loop of at least ``least`` instructions."""
        return next(loop for loop in self.loops if loop.total() >= least)

    @cached_property
    def operations(self) -> Counter[str]:
        """Count each operation in the whole code."""
        return Counter(_operation(text) for _, text in self._code)


class AmdCode(Code):
    """GCN assembly of a kernel."""

    @property
    def registers(self) -> int:
        """Number of vector registers of a lane."""
        return self._field(".vgpr_count")

    @property
    def stack(self) -> int:
        """Bytes of stack, and spilled registers, of a lane."""
        return self._field(".private_segment_fixed_size") + self._field(".vgpr_spill_count")

    def _field(self, name: str) -> int:
        match = re.search(rf"{re.escape(name)}:\s*(\d+)", self.asm["amdgcn"])
        assert match is not None, name
        return int(match.group(1))


def slots_of_pair(launch: Launch, code: NvidiaCode, features: int) -> float:
    """Return the issue slots per pair of a kernel that sums square roots over features.

    Code outside the loops counts as one turn.
    """
    threads = 32 * launch.options["num_warps"]
    pairs = math.prod(launch.tile[:2]) // threads
    inner = code.loop_of_roots(pairs)
    fold = code.around(inner)
    folds = -(-features // SUM_BLOCK.value)
    around = folds * (fold.total() - inner.total()) + code.operations.total() - fold.total()
    return features * inner.total() / inner["MUFU.SQRT"] + around / pairs


def slots_of_pull(launch: Launch, code: NvidiaCode, queries: int) -> float:
    """Return the issue slots per element of a pull of ``queries`` queries."""
    elements = math.prod(launch.tile[:2]) // (32 * launch.options["num_warps"])
    inner = code.inner_loop(elements)
    fold = code.around(inner)
    slots = inner.total() + (fold.total() - inner.total()) / SUM_BLOCK.value
    return (slots + (code.operations.total() - fold.total()) / queries) / elements


def _lies_within(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return inner != outer and outer[0] <= inner[0] and inner[1] <= outer[1]


def _words(text: str) -> int:
    """Count the registers of a load: ``LDG.E.128`` 4, ``LDSM.16.M88.4`` 4, ``LDS`` 1."""
    match = re.match(r"(?:@!?U?P[T\d]+\s+)?(LDG|LDS|LDSM|LD)((?:\.\w+)*)\s", text)
    if match is None:
        return 0
    parts = match.group(2).split(".")
    if match.group(1) == "LDSM":
        return int(parts[-1]) if parts[-1] in ("2", "4") else 1
    return 4 if "128" in parts else 2 if "64" in parts else 1


def _products(text: str) -> Counter[str]:
    """Count products: ``HMMA.16816.F32.BF16`` has 2048 of ``BF16``, 1/4 of ``HGMMA.64x128x16``."""
    match = re.match(r"(?:@!?U?P[T\d]+\s+)?(HGMMA|HMMA)\.(\w+)\.F32((?:\.\w+)*)", text)
    if match is None:
        return Counter()
    name, shape, parts = match.groups()
    kind = next((part for part in parts.split(".") if part in ("BF16", "TF32")), "F16")
    if name == "HGMMA":
        return Counter({kind: math.prod(map(int, shape.split("x"))) // 4})
    return Counter({kind: {"16816": 2048, "1688": 1024, "1684": 512}[shape]})


def _operation(text: str) -> str:
    """Shorten ``@!P0 MUFU.SQRT R0, R1`` to ``MUFU.SQRT``; drop all other modifiers."""
    name = re.sub(r"^@!?U?P[T\d]+\s+", "", text).split()[0]
    return ".".join(name.split(".")[: 2 if name.startswith("MUFU") else 1])


def _cuobjdump(flag: str, cubin: bytes) -> str:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"

    def said() -> str:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            words = [str(tool), flag, file.name]
            return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    return _kept(sha256(cubin).hexdigest(), flag, said)
