"""The sizes of a ranking, and texts like ``91e6``, ``2GB/s`` and ``25Gb/s``."""

import math
import re
from dataclasses import dataclass

BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
# The score of each model, and the number of reals per dimension of a row.
MODELS = {
    "rotate": ("rotate", 2),
    "transe": ("l1", 1),
    "transe-l2": ("l2", 1),
    "distmult": ("dot", 1),
    "complex": ("dot", 2),
}
PLANES = {score: 2 if score == "rotate" else 1 for score, _ in MODELS.values()}
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([kKmMgGtT]?)(b|B)(?:/s|ps)\s*", re.ASCII)


@dataclass(frozen=True)
class Work:
    """Sizes of a ranking, or of a search for the best answers.

    Attributes
    ----------
    entities, dim, queries : int
        Rows; dimensions (complex dimensions for complex models); triples.
    dtype, model : str
        Names in :data:`BYTES` and :data:`MODELS`.
    sides : int
        Queries a triple, 1 or 2.
    known : int
        Known triples to filter by.
    top : int, optional
        Number of best answers a query, instead of ranks.
    workers : int
        Processes, each on a separate machine, with an equal part of the rows.

    Raises
    ------
    ValueError
        For sizes that are not at least 1, and for other names.

    Examples
    --------
    >>> work = Work(91_000_000, 128, 15_000, "float16")
    >>> work.row_bytes, work.asked
    (512, 30000)
    """

    entities: int
    dim: int
    queries: int
    dtype: str = "float32"
    model: str = "rotate"
    sides: int = 2
    known: int = 0
    top: int | None = None
    workers: int = 1

    def __post_init__(self) -> None:
        for name in ("entities", "dim", "queries", "workers", "top"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}")
        if self.known < 0:
            raise ValueError(f"known must not be negative; got {self.known}")
        if self.sides not in (1, 2):
            raise ValueError(f"sides must be 1 or 2; got {self.sides}")
        for name, names in (("dtype", BYTES), ("model", MODELS)):
            if getattr(self, name) not in names:
                raise ValueError(f"{name} must be of {', '.join(names)}; got {getattr(self, name)}")

    @property
    def score(self) -> str:
        """Name of the score, for operators."""
        return MODELS[self.model][0]

    @property
    def columns(self) -> int:
        """Reals of a row."""
        return self.dim * MODELS[self.model][1]

    @property
    def features(self) -> int:
        """Steps of a pair: complex numbers for ``rotate``, else reals."""
        return self.dim if self.score == "rotate" else self.columns

    @property
    def row_bytes(self) -> int:
        """Bytes of a stored row."""
        return self.columns * BYTES[self.dtype]

    @property
    def asked(self) -> int:
        """Number of queries of all sides."""
        return self.queries * self.sides

    @property
    def rows(self) -> int:
        """Number of rows of a worker."""
        return math.ceil(self.entities / self.workers)


def count_of(text: str) -> int:
    """Parse a whole number such as ``91e6``.

    >>> count_of("91e6")
    91000000
    """
    try:
        value = float(text.replace("_", "").replace(",", ""))
    except ValueError:
        raise ValueError(f"not a number: {text}") from None
    if not value.is_integer():
        raise ValueError(f"not a whole number: {text}")
    return int(value)


def bytes_per_second(text: str) -> float:
    """Parse a rate above 0 in bytes (``2GB/s``) or bits (``25Gb/s``, ``25Gbps``).

    >>> bytes_per_second("2GB/s"), bytes_per_second("25Gb/s")
    (2000000000.0, 3125000000.0)
    """
    found = _RATE.fullmatch(text)
    if found is None or not float(found[1]):
        raise ValueError(f"a rate is like 2GB/s (bytes) or 25Gb/s (bits); got {text}")
    value = float(found[1]) * _PREFIXES[found[2].lower()]
    return value if found[3] == "B" else value / 8
