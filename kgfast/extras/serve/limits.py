"""The limits of requests: sizes, numbers and times."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of one request, and of all requests together.

    Attributes
    ----------
    k : int
        Answers to a query.
    queries : int
        Queries, or triples, of a request.
    answers : int
        Queries times ``k`` of a request.
    body : int
        Bytes of a request.
    requests : int
        Requests answered at one time, with waiting ones; further requests get status 503.
    connections : int
        Connections open at one time, with idle ones; further connections get status 503.
    batch : int
        Queries of a sweep; larger requests are answered in parts.
    body_seconds, head_seconds : float
        Seconds to send a body; seconds to begin and send a head.
    stall_seconds : float
        Seconds to read 64 KiB of an answer.
    finish_seconds : int
        Seconds for running requests, once the server is told to stop.

    Raises
    ------
    ValueError
        If a limit is not positive.
    """

    k: int = 1000
    queries: int = 1000
    answers: int = 20_000
    body: int = 1 << 20
    requests: int = 256
    connections: int = 512
    batch: int = 64
    body_seconds: float = 10.0
    head_seconds: float = 10.0
    stall_seconds: float = 10.0
    finish_seconds: int = 30

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"{name} must be positive; got {value}")
