"""The unit of a GPU that limits a compiled loop: clocks of each unit, a warp and iteration.

A multiprocessor starts four instructions a clock, gives back a word of a load for every thread of a
warp (also one that all threads share, unless it lies in shared memory), takes 16 square roots,
reciprocals, logarithms or powers, and as many float32 and float64 operations and products of tensor
cores as :data:`MULTIPROCESSORS` says. Data that stream through once move at the memory's bandwidth.
The way back of loads is from a vendor's engineer's statement for compute capability 7.x, the rest
from the vendor's white papers; bank conflicts and misses of a cache are not modelled. A warp alone
waits for its loads, barriers and products as :data:`LATENCIES` says, which is assumed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WARP = 32
THREADS, REGISTERS = 2048, 65536  # threads and registers of a multiprocessor
SHARED = {80: 164 << 10, 90: 228 << 10, 100: 228 << 10}
SCHEDULERS, SPECIAL = 4, 16  # instructions and special functions a clock
FLOATS = {"FFMA": 1, "FADD": 1, "FMUL": 1, "FFMA2": 2, "FADD2": 2, "FMUL2": 2}
DOUBLES = "DFMA", "DADD", "DMUL", "DSETP"


# Clocks that a warp waits in an iteration, assumed: once for loads of the L2 cache that no earlier
# iteration began, and for those of shared memory; at each barrier, at each wait for tensor cores.
LATENCIES = {"LDG": 270, "LDS": 30, "BAR": 30, "WARPGROUP.DEPBAR": 60}


@dataclass(frozen=True)
class Multiprocessor:
    """Operations of a multiprocessor per clock."""

    floats: int
    doubles: int
    products: int  # bfloat16 and float16 by tensor cores; half as many of tf32


MULTIPROCESSORS = {
    80: Multiprocessor(64, 32, 1024),
    90: Multiprocessor(128, 64, 2048),
    100: Multiprocessor(128, 64, 4096),
}


@dataclass(frozen=True)
class Gpu:
    """Published numbers; ``ghz`` is the clock that the predictions assume.

    ``bytes_per_second``: the memory's peak by the data sheet. An H200 was seen to give 4.3e12 of
    its 4.8e12: loops that memory limits take a ninth longer there than predicted.

    ``cache_bytes``: bytes of the L2 cache, a clock and multiprocessor. They are half of the A100's
    white paper (5120 a clock for 108), as no vendor says how much a kernel sees.
    """

    name: str
    arch: int
    multiprocessors: int
    ghz: float
    bytes_per_second: float
    cache_bytes: float = 24.0

    @property
    def clocks(self) -> float:
        """Return clocks a second of all multiprocessors together."""
        return self.multiprocessors * self.ghz * 1e9


GPUS = (
    Gpu("A100 SXM", 80, 108, 1.41, 2.04e12),
    Gpu("H100 SXM", 90, 132, 1.83, 3.35e12),
    Gpu("H200", 90, 132, 1.98, 4.8e12),
    Gpu("B200", 100, 148, 1.9, 8.0e12),
)


def gpu_of(arch: int) -> Gpu:
    """Return the first GPU of an architecture."""
    return next(gpu for gpu in GPUS if gpu.arch == arch)


def clocks_of(loop: Any, arch: int, *, streams: bool = False) -> dict[str, float]:
    """Return clocks of each unit for a warp and iteration of an ``aot.Loop``.

    ``streams``: the loop's loads come from memory, and its stores go there.
    """
    unit, gpu = MULTIPROCESSORS[arch], gpu_of(arch)
    special = sum(count for name, count in loop.items() if name.startswith("MUFU"))
    floats = sum(loop[name] * each for name, each in FLOATS.items())
    doubles = sum(loop[name] for name in DOUBLES)
    products = sum(count * (2 if kind == "TF32" else 1) for kind, count in loop.products.items())
    clocks = {
        "issue": loop.total() / SCHEDULERS,
        "special functions": special * WARP / SPECIAL,
        "loads": float(loop.words),
        "float32": floats * WARP / unit.floats,
        "float64": doubles * WARP / unit.doubles,
        "tensor cores": products / unit.products,
    }
    if streams:
        moved = 4 * WARP * (loop.words + loop.stored)
        clocks["memory"] = moved * gpu.clocks / gpu.bytes_per_second
    return clocks


def alone(loop: Any, clocks: Mapping[str, float], warps: int) -> float:
    """Return the clocks of an iteration of a lone program: its work, then its waits.

    A warp group waits for its products; other instructions are issued while a warp's are made.
    """
    products = loop["WARPGROUP"] // 2  # an ARRIVE and a DEPBAR each
    waits = LATENCIES["BAR"] * loop["BAR"] + LATENCIES["WARPGROUP.DEPBAR"] * products
    waits += sum(LATENCIES[name] for name in ("LDG", "LDS") if loop[name])
    work = loop.total() * -(-warps // SCHEDULERS), clocks["tensor cores"] * warps
    return (sum(work) if products else max(work)) + waits


def limit_of(clocks: Mapping[str, float]) -> str:
    """Return the unit that takes longest."""
    return max(clocks, key=lambda name: clocks[name])


def programs_resident(code: Any, warps: int, arch: int) -> int:
    """Count programs that a multiprocessor holds, by registers, threads and shared memory."""
    by_registers = REGISTERS // (-(-code.registers // 8) * 8 * WARP * warps)
    by_shared = SHARED[arch] // (code.shared + 1024)
    return min(by_registers, by_shared, THREADS // (WARP * warps), 32)
