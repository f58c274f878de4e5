"""How fast a machine is: measured here and kept in the user's cache, or predicted for a GPU."""

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kgfast.extras.planning.work import Work

FOLDER_VARIABLE = "KGFAST_DATA"  # as of downloaded data: the cache of kgfast
_FORMAT = 1


@dataclass(frozen=True)
class Cost:
    """Seconds of one call that counts: four numbers of a score and dtype.

    Attributes
    ----------
    row, row_dim : float
        Of packing a row, and of each of its dimensions: once a call.
    pair, pair_dim : float
        Of a row and a query, and of each dimension of them.
    """

    row: float
    row_dim: float
    pair: float
    pair_dim: float

    def seconds(self, rows: float, features: int, queries: float, calls: float) -> float:
        """Of so many queries with so many rows, in so many calls."""
        packing = self.row + self.row_dim * features
        return rows * (calls * packing + queries * (self.pair + self.pair_dim * features))


@dataclass(frozen=True)
class Rates:
    """What a machine does a second.

    Attributes
    ----------
    source : str
        Where the numbers come from, in words: printed with every plan.
    costs : dict
        Consumer (``rank``, ``topk``) -> score -> dtype -> :class:`Cost`.
    call_seconds : float
        Of a call with hardly any work.
    base_bytes : int
        What a process holds before any table.
    disk : float or None
        Bytes a second of reading a file that is not in the cache, as tables are read.
    read_seconds : float
        Of the cores, for each byte of a file: reading is work too.
    threads : int
        Of the kernels, that were measured.
    memory : int
        Bytes that tables may take: of the machine, or of the GPU.
    """

    source: str
    costs: Mapping[str, Mapping[str, Mapping[str, Cost]]]
    call_seconds: float
    base_bytes: int
    disk: float | None
    read_seconds: float
    threads: int
    memory: int

    def cost(self, work: Work) -> Cost:
        """That of a work's score and dtype.

        Raises
        ------
        ValueError
            If there is none.
        """
        consumer = "rank" if work.top is None else "topk"
        try:
            return self.costs[consumer][work.score][work.dtype]
        except KeyError:
            raise ValueError(
                f"{self.source} says nothing of {consumer} by {work.score} of {work.dtype} tables"
            ) from None

    def as_dict(self) -> dict[str, Any]:
        """For a file of JSON."""
        return {"format": _FORMAT} | asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Rates":
        """What :meth:`as_dict` gave.

        Raises
        ------
        ValueError
            For anything else.
        """
        try:
            if values["format"] != _FORMAT:
                raise ValueError(f"format {values['format']!r:.60}")
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
    """Where this machine's rates are kept: in the folder of ``KGFAST_DATA``, or the user's cache.

    Examples
    --------
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
    """Keep the rates of this machine."""
    path = rates_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps(rates.as_dict(), indent=1) + "\n")
    beside.replace(path)
    return path


def load_rates() -> Rates:
    """The rates of this machine.

    Raises
    ------
    FileNotFoundError, ValueError
        If they were not measured yet, or by another version; the message says what to do.
    """
    path = rates_file()
    again = "measure this machine with `kgfast plan --calibrate`, or name a --device"
    try:
        return Rates.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is not there: {again}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}: {again}") from None


def memory_of_the_machine() -> int:
    """Return the bytes of memory of this machine; 8 GiB where it does not say so."""
    try:
        found = bytes_of(Path("/proc/meminfo").read_text(), "MemTotal")
    except OSError:
        found = None
    return 8 << 30 if found is None else found


def bytes_of(text: str, name: str) -> int | None:
    """Return the bytes that a text of Linux gives for a name.

    >>> bytes_of("MemTotal:   4 kB", "MemTotal")
    4096
    """
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return None if found is None else int(found[1]) << 10
