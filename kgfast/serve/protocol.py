"""HTTP with clients that stop in the middle: uvicorn waits for them without end, this does not."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from kgfast.serve.limits import Limits


class ImpatientProtocol(asyncio.Protocol):
    """uvicorn's protocol, and a timer for heads of requests and for answers that nobody reads.

    Bodies are the application's: it reads them. Idle connections are uvicorn's, which closes them
    a few seconds after an answer.

    Parameters
    ----------
    limits : Limits
    options
        What uvicorn gives a protocol.
    """

    def __init__(self, limits: Limits, **options: Any) -> None:
        self._limits = limits
        self._inner = H11Protocol(**options)
        self._head: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A client is there, and has to say something."""
        self._transport = transport
        self._inner.connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """A part of a request."""
        self._inner.data_received(data)
        self._watch_head()

    def eof_received(self) -> None:
        """The client sends no more."""
        self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        for timer in (self._head, self._stall):
            if timer is not None:
                timer.cancel()
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not read: too much of the answer waits for it."""
        self._stall = self._after(self._limits.stall_seconds)
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """It reads again."""
        if self._stall is not None:
            self._stall.cancel()
        self._inner.resume_writing()

    def _watch_head(self) -> None:
        """Have a timer run as long as a head is not complete."""
        cycle = self._inner.cycle
        if cycle is not None and not cycle.response_complete:
            if self._head is not None:
                self._head.cancel()
            self._head = None
        elif self._head is None:
            self._head = self._after(self._limits.head_seconds)

    def _after(self, seconds: float) -> asyncio.TimerHandle:
        """Give the client up then."""
        return asyncio.get_running_loop().call_later(seconds, self._transport.abort)
