"""Rates that were not measured on this machine: predicted for GPUs, and defaults for a CPU.

The rates of GPUs come from ``benchmarks/results/static-roofline.json``: for ``rotate`` and ``dot``
the elements per second of a sweep over WN18RR, for all other scores the clocks of the busiest unit.
The defaults come from the machine that tested this package, in
``benchmarks/results/cpu-scale.json``. A test compares both.
"""

from dataclasses import dataclass

from kgfast.extras.planning.rates import Cost, Rates, memory_of_the_machine
from kgfast.extras.planning.work import BYTES, PLANES


@dataclass(frozen=True)
class GpuFacts:
    """Facts of a GPU."""

    name: str  # name in the roofline
    memory: int  # bytes, by the data sheet
    bytes_per_second: float  # peak by the data sheet
    elements: dict[str, float]  # score -> elements a second


DEVICES = {
    "a100": GpuFacts(
        "A100 SXM",
        80 * 10**9,
        2.04e12,
        {"rotate": 1.91e12, "l1": 4.87e12, "l2": 4.87e12, "dot": 4.35e13},
    ),
    "h100": GpuFacts(
        "H100 SXM",
        80 * 10**9,
        3.35e12,
        {"rotate": 3.70e12, "l1": 1.215e13, "l2": 1.208e13, "dot": 8.19e13},
    ),
    "h200": GpuFacts(
        "H200",
        141 * 10**9,
        4.8e12,
        {"rotate": 4.00e12, "l1": 1.315e13, "l2": 1.307e13, "dot": 8.86e13},
    ),
    "b200": GpuFacts(
        "B200",
        180 * 10**9,
        8.0e12,
        {"rotate": 4.45e12, "l1": 1.80e13, "l2": 1.80e13, "dot": 9.62e13},
    ),
}
_LAUNCHES = 1e-3  # seconds of a call's launches: assumed


# Seconds of a row, of packing a row, and of one feature of a pair, for two threads.
_COSTS = {
    "rotate": Cost(0.0, 1.2e-9, 0.0, 4.8e-11),
    "l1": Cost(0.0, 3.0e-10, 1.5e-10, 1.6e-11),
    "l2": Cost(0.0, 3.0e-10, 1.5e-10, 1.6e-11),  # same as l1
    "dot": Cost(0.0, 3.0e-10, 1.3e-10, 6.1e-12),
}
_SOURCE = (
    "defaults, not measured here: two threads of a Xeon at 2.10 GHz with AVX-512 and its disk; "
    "`kgfast plan --calibrate` measures this machine in some minutes"
)


def rates_of(device: str) -> Rates:
    """Return the predicted rates of a GPU; every call packs rows as float32.

    >>> rates_of("h200").costs["rank"]["rotate"]["float16"].pair_dim
    2.5e-13
    """
    if device not in DEVICES:
        raise ValueError(f"device must be of {', '.join(DEVICES)}; got {device}")
    found = DEVICES[device]
    costs = {
        score: {
            dtype: Cost(0.0, PLANES[score] * (size + 4) / found.bytes_per_second, 0.0, 1 / rate)
            for dtype, size in BYTES.items()
        }
        for score, rate in found.elements.items()
    }
    source = f"predicted from compiled kernels for {found.name}, not measured"
    both = {"rank": costs, "topk": costs}  # one sweep serves either
    return Rates(source, both, _LAUNCHES, 0, None, 0.0, 1, found.memory)


def default_rates() -> Rates:
    """Return the default rates with the memory of this machine.

    Every dtype and consumer of a score has the same costs.

    >>> default_rates().threads
    2
    """
    costs = {score: dict.fromkeys(BYTES, cost) for score, cost in _COSTS.items()}
    return Rates(
        _SOURCE,
        {"rank": costs, "topk": costs},
        call_seconds=1.3e-4,
        base_bytes=154_439_680,
        disk=3.87e8,
        read_seconds=2.7e-10,
        threads=2,
        memory=memory_of_the_machine(),
    )
