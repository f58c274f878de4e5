"""The speed of a machine: measured here and stored in the user's cache, or predicted for a GPU."""

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kgfast.extras.planning.work import Work
from kgfast.whole_files import write_whole

FOLDER_VARIABLE = "KGFAST_DATA"  # variable that names the cache of kgfast, with downloaded data
_FORMAT = 1


@dataclass(frozen=True)
class Cost:
    """Seconds of a counting call for one score and dtype."""

    row: float  # packing a row, once per call
    row_dim: float  # each dimension of packing
    pair: float  # a row and a query
    pair_dim: float  # each dimension of a row and a query

    def seconds(self, rows: float, features: int, queries: float, calls: float) -> float:
        """Return the seconds of all queries with all rows, in ``calls`` calls."""
        packing = self.row + self.row_dim * features
        return rows * (calls * packing + queries * (self.pair + self.pair_dim * features))


@dataclass(frozen=True)
class Rates:
    """The rates of a machine."""

    source: str  # origin of the numbers, printed with every plan
    costs: Mapping[str, Mapping[str, Mapping[str, Cost]]]  # consumer -> score -> dtype
    call_seconds: float  # a call with hardly any work
    base_bytes: int  # a process before any table
    disk: float | None  # bytes a second of an uncached file
    read_seconds: float  # CPU seconds a byte read
    threads: int  # threads of the measured kernels
    memory: int  # bytes that tables may take

    def cost(self, work: Work) -> Cost:
        """Return the cost of a work's score and dtype; raise ValueError if there is none."""
        consumer = "rank" if work.top is None else "topk"
        try:
            return self.costs[consumer][work.score][work.dtype]
        except KeyError:
            raise ValueError(
                f"{self.source} has no rate for {consumer} by {work.score} of {work.dtype} tables"
            ) from None

    def as_dict(self) -> dict[str, Any]:
        """Return all values for JSON."""
        return {"format": _FORMAT} | asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Rates":
        """Read the values of :meth:`as_dict`; raise ValueError for anything else."""
        try:
            if values["format"] != _FORMAT:
                raise ValueError(f"format {values['format']!r:.60}; this kgfast reads {_FORMAT}")
            own = {name: values[name] for name in cls.__dataclass_fields__}
            own["costs"] = {
                consumer: {
                    score: {dtype: Cost(**cost) for dtype, cost in of_dtypes.items()}
                    for score, of_dtypes in of_scores.items()
                }
                for consumer, of_scores in own["costs"].items()
            }
            of_costs = [
                asdict(cost).values()
                for scores in own["costs"].values()
                for dtypes in scores.values()
                for cost in dtypes.values()
            ]
            alone = [own[name] for name in own if name not in ("source", "costs", "disk")]
            for value in (*alone, own["disk"] or 0, *(it for part in of_costs for it in part)):
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                if not (is_number and abs(value) <= sys.float_info.max):
                    raise ValueError(f"{value!r:.60} is not a finite number")
            return cls(**own)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not measured rates of this version: {error!r:.120}") from None


def rates_file() -> Path:
    """Return the file of this machine's rates: in ``KGFAST_DATA``, or in the user's cache.

    >>> rates_file().name
    'rates.json'
    """
    given = os.environ.get(FOLDER_VARIABLE)
    if given:
        return Path(given) / "rates.json"
    if os.name == "nt":
        root = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    else:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "kgfast" / "rates.json"


def save_rates(rates: Rates) -> Path:
    """Store the rates of this machine."""
    path = rates_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(rates.as_dict(), indent=1) + "\n"
    return write_whole(path, lambda beside: beside.write_text(text))


def load_rates() -> Rates:
    """Read the stored rates of this machine; an error says how to measure rates."""
    path = rates_file()
    again = "measure this machine with `kgfast plan --calibrate`, or name a --device"
    try:
        return Rates.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is not there: {again}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}: {again}") from None


def memory_of_the_machine() -> int:
    """Return the bytes of this machine's memory; 8 GiB if unknown."""
    try:
        found = bytes_of(Path("/proc/meminfo").read_text(), "MemTotal")
    except OSError:
        found = None
    return 8 << 30 if found is None else found


def bytes_of(text: str, name: str) -> int | None:
    """Return the bytes that a text of Linux's /proc gives for a name.

    >>> bytes_of("MemTotal:   4 kB", "MemTotal")
    4096
    """
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return None if found is None else int(found[1]) << 10
