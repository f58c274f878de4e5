"""Counts of requests and latest latencies, in bounded memory."""

from array import array
from collections import Counter

import numpy as np

QUANTILES = (0.5, 0.9, 0.99)
_KEPT = 4096  # latencies of an endpoint in quantiles


class Latencies:
    """The latest 4,096 latencies in seconds, and the sum of all.

    >>> latencies = Latencies()
    >>> for seconds in (0.1, 0.2, 0.3):
    ...     latencies.add(seconds)
    >>> latencies.count, latencies.quantiles()[0.5]
    (3, 0.2)
    """

    def __init__(self) -> None:
        self.count, self.total = 0, 0.0
        self._latest = array("d")

    def add(self, seconds: float) -> None:
        """Add a latency."""
        if len(self._latest) < _KEPT:
            self._latest.append(seconds)
        else:
            self._latest[self.count % _KEPT] = seconds
        self.count += 1
        self.total += seconds

    def quantiles(self) -> dict[float, float]:
        """Return quantiles of the latest latencies; an empty dict without any."""
        if not self._latest:
            return {}
        values = np.quantile(np.frombuffer(self._latest.tobytes()), QUANTILES)
        return dict(zip(QUANTILES, values.tolist(), strict=True))


class Metrics:
    """Counts and latencies of all requests."""

    def __init__(self) -> None:
        self.answered: dict[str, Latencies] = {}
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.batches = self.queries = 0

    def add(self, endpoint: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.statuses[endpoint, status] += 1
        if status == 200:
            self.answered.setdefault(endpoint, Latencies()).add(seconds)

    def summary(self) -> dict[str, dict[str, float]]:
        """Return latencies by endpoint in milliseconds."""
        return {
            endpoint: {"count": it.count}
            | {f"p{100 * at:g}_ms": round(1e3 * it.quantiles()[at], 3) for at in QUANTILES}
            for endpoint, it in self.answered.items()
        }

    def text(self, waiting: int) -> str:
        """Return all counts in Prometheus's text format."""
        lines = ["# TYPE kgfast_requests_total counter"]
        lines += [
            f'kgfast_requests_total{{endpoint="{endpoint}",status="{status}"}} {count}'
            for (endpoint, status), count in sorted(self.statuses.items())
        ]
        lines.append("# TYPE kgfast_latency_seconds summary")
        for endpoint, it in sorted(self.answered.items()):
            name = f'endpoint="{endpoint}"'
            lines += [
                f'kgfast_latency_seconds{{{name},quantile="{at}"}} {seconds:.6f}'
                for at, seconds in it.quantiles().items()
            ]
            lines.append(f"kgfast_latency_seconds_sum{{{name}}} {it.total:.6f}")
            lines.append(f"kgfast_latency_seconds_count{{{name}}} {it.count}")
        for name, kind, value in (
            ("batches_total", "counter", self.batches),
            ("queries_total", "counter", self.queries),
            ("requests_now", "gauge", waiting),
        ):
            lines += [f"# TYPE kgfast_{name} {kind}", f"kgfast_{name} {value}"]
        return "\n".join(lines) + "\n"
