"""How much a client may ask for, and how long it may take about it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What one request, and all of them together, may cost.

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
        Requests that are answered at the same time, waiting ones included; further ones get 503.
    connections : int
        Connections held at the same time, idle ones included; further ones get 503.
    batch : int
        Queries of a sweep. A request of more is answered in parts, and others between them.
    body_seconds, head_seconds, stall_seconds : float
        How long a client may take to send a body, to begin and send a head, and to read 64 KiB of
        its answer.
    finish_seconds : int
        How long what runs may take to finish once the server is told to stop.
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
