"""The limits of requests: sizes, numbers and times."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of one request, and of all requests together."""

    k: int = 1000  # answers to a query
    queries: int = 1000  # queries, or triples, of a request
    answers: int = 20_000  # queries times k of a request
    body: int = 1 << 20  # bytes of a request
    # requests answered at one time, with waiting ones; further requests get 503
    requests: int = 256
    # connections open at one time, with idle ones; further connections get 503
    connections: int = 512
    batch: int = 64  # queries of a sweep; larger requests are answered in parts
    body_seconds: float = 10.0  # seconds to send a body
    head_seconds: float = 10.0  # seconds to begin and send a head
    stall_seconds: float = 10.0  # seconds to read 64 KiB of an answer
    finish_seconds: int = 30  # seconds for running requests, once the server is told to stop

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"{name} must be positive; got {value}")
