"""The limits of requests: sizes, numbers and times."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The limits of one request, and of all together."""

    k: int = 1000  # answers to a query
    queries: int = 1000  # queries, or triples, of a request
    answers: int = 20_000  # queries times k of a request
    body: int = 1 << 20  # bytes of a request
    requests: int = 256  # answered at the same time, with waiting ones; others get 503
    connections: int = 512  # open at the same time, with idle ones; others get 503
    batch: int = 64  # queries of a sweep; larger requests are answered in parts
    body_seconds: float = 10.0  # to send a body
    head_seconds: float = 10.0  # to begin and send a head
    stall_seconds: float = 10.0  # to read 64 KiB of an answer
    finish_seconds: int = 30  # for running requests, once the server is told to stop

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"{name} must be positive; got {value}")
