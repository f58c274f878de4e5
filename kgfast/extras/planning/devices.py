"""What GPUs should do: predictions from compiled kernels, not measurements.

``benchmarks/results/static-roofline.json`` holds what they come from, which a test compares: of
``rotate`` and ``dot`` the elements a second of a sweep over WN18RR, of the others the clocks of the
busiest unit.
"""

from dataclasses import dataclass

from kgfast.extras.planning.rates import Cost, Rates
from kgfast.extras.planning.work import BYTES, PLANES


@dataclass(frozen=True)
class GpuFacts:
    """A GPU.

    Attributes
    ----------
    name : str
        As of the roofline.
    memory : int
        Bytes, of the maker's data sheet.
    bytes_per_second : float
        Of its memory.
    elements : dict of str to float
        Score -> elements a second.
    """

    name: str
    memory: int
    bytes_per_second: float
    elements: dict[str, float]


DEVICES = {
    "a100": GpuFacts(
        "A100 SXM",
        80 * 10**9,
        2.04e12,
        {"rotate": 1.91e12, "l1": 4.87e12, "l2": 4.87e12, "dot": 4.61e13},
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


def rates_of(device: str) -> Rates:
    """The predicted rates of a GPU; a row is packed once a call, as float32.

    Raises
    ------
    ValueError
        For an unknown one.

    Examples
    --------
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
