"""Rates for a machine that was not measured: those of the machine that this package was tested on.

They come from ``benchmarks/results/cpu-scale.json``, which a test compares.
"""

from kgfast.extras.planning.rates import Cost, Rates, memory_of_the_machine
from kgfast.extras.planning.work import BYTES

# Seconds of a row, of its packing and of one feature of a pair, of two threads.
_COSTS = {
    "rotate": Cost(0.0, 1.2e-9, 0.0, 4.8e-11),
    "l1": Cost(0.0, 3.0e-10, 1.5e-10, 1.6e-11),
    "l2": Cost(0.0, 3.0e-10, 1.5e-10, 1.6e-11),  # taken for those of l1
    "dot": Cost(0.0, 3.0e-10, 1.3e-10, 6.1e-12),
}
_SOURCE = (
    "defaults, not measured here: two threads of a Xeon at 2.10 GHz with AVX-512, its disk; "
    "`kgfast plan --calibrate` measures this machine in some minutes"
)


def default_rates() -> Rates:
    """Return rates that were not measured on this machine, with its own memory.

    Every dtype and consumer has the costs of its score.

    Examples
    --------
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
