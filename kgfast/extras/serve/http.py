"""HTTP/1.1 on a socket for one ASGI application, with clients that may stop anywhere.

h11 parses. Every connection is a task that reads a request, waits for the answer, and then reads
the next request. So pipelined requests wait in the network, and memory stays constant. Clients that
stop within a head, or do not read an answer, are disconnected after some seconds.
"""

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from email.utils import formatdate
from http.client import responses
from typing import Any
from urllib.parse import unquote

import h11

from kgfast.extras.serve.limits import Limits

logger = logging.getLogger("kgfast.extras.serve")

Message = dict[str, Any]
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]

BACKLOG = 1024  # connections that wait in the kernel to be accepted
_CHUNK = 1 << 16  # bytes that are read or written at once, and stored of a body that is sent ahead
_PARTING = 1.0  # seconds in which a client of a closed connection may read the reason
_MOST_PARTING = 64  # most connections over the limit that get these seconds


class Connections:
    """Connections of clients to an ASGI application; the caller runs its lifespan."""

    def __init__(self, app: Application, limits: Limits) -> None:
        self.app, self.limits, self.end = app, limits, False
        self._open: dict[asyncio.Task[None], _Connection] = {}
        self._parting = 0

    async def serve(self, listener: socket.socket, stop: asyncio.Event) -> None:
        """Accept connections until ``stop`` is set; then finish open requests, and close."""
        server = await asyncio.start_server(
            self._accept, sock=listener, limit=_CHUNK, backlog=BACKLOG
        )
        await stop.wait()
        self.end = True
        server.close()
        for task, connection in self._open.items():
            if connection.is_idle:
                task.cancel()
        for seconds in (self.limits.finish_seconds, None):
            if self._open:
                await asyncio.wait(self._open, timeout=seconds)
            for task in self._open:
                task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection, or refuse it at the limit."""
        if len(self._open) >= self.limits.connections:
            writer.write(_refusal(503, "too many connections: try again", "retry-after: 1\r\n"))
            if self._parting < _MOST_PARTING:
                self._parting += 1
                await _part(lambda: reader.read(_CHUNK), writer)
                self._parting -= 1
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = connection = _Connection(self, reader, writer)
        try:
            await connection.serve()
        except (TimeoutError, OSError, asyncio.CancelledError):
            pass  # the client stopped or went away, or the server ends
        finally:
            writer.close()
            with suppress(TimeoutError, OSError):
                async with asyncio.timeout(self.limits.stall_seconds):
                    await writer.wait_closed()
            writer.transport.abort()  # the client does not read the rest
            del self._open[task]


class _Connection:
    """Client with requests that are answered one after the other."""

    def __init__(
        self, among: Connections, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._among, self._reader, self._writer = among, reader, writer
        self._reading = asyncio.Lock()
        self._http = h11.Connection(h11.SERVER)
        self._failed: Exception | None = None

    @property
    def is_idle(self) -> bool:
        """Return whether no request waits for an answer."""
        return bool(self._http.our_state is h11.IDLE)

    async def serve(self) -> None:
        """Answer requests until either side closes."""
        try:
            while not self._among.end:
                async with asyncio.timeout(self._among.limits.head_seconds):
                    request = await self._event()
                if not isinstance(request, h11.Request):
                    return
                await self._answer(request)
                if self._http.states != {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}:
                    break
                self._http.start_next_cycle()
        except h11.RemoteProtocolError as error:
            if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                self._writer.write(_refusal(error.error_status_hint, str(error)))
        await _part(self._bytes, self._writer)

    async def _answer(self, request: h11.Request) -> None:
        self._is_head = request.method == b"HEAD"
        try:
            await self._among.app(self._scope(request), self._receive, self._send)
        except Exception:
            logger.exception("the application failed")
            self._http.send_failed()
        if self._failed is not None:
            raise self._failed

    def _scope(self, request: h11.Request) -> Message:
        path, _, query = request.target.partition(b"?")
        server, client = (
            (self._writer.get_extra_info(name) or ("", 0))[:2] for name in ("sockname", "peername")
        )
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": request.http_version.decode(),
            "method": request.method.decode(),
            "scheme": "http",
            "path": unquote(path.decode()),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(request.headers),
            "server": server,
            "client": client,
        }

    async def _receive(self) -> Message:
        """Return a part of the body; after the last one, wait until the client hangs up."""
        try:
            if self._http.their_state is h11.SEND_BODY:
                if self._http.they_are_waiting_for_100_continue:
                    go_on = h11.InformationalResponse(status_code=100, headers=[])
                    self._writer.write(self._http.send(go_on))
                event = await self._event()
                is_part = isinstance(event, h11.Data)
                part = bytes(event.data) if is_part else b""
                return {"type": "http.request", "body": part, "more_body": is_part}
            while len(self._http.trailing_data[0]) < _CHUNK:
                if not await self._read():
                    raise ConnectionAbortedError("the client hung up")
            await asyncio.Event().wait()  # seeing more would mean storing all that comes
        except (h11.RemoteProtocolError, OSError) as error:
            self._failed = error
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._failed is not None:
            return
        try:
            if message["type"] == "http.response.start":
                await self._write(self._head(message))
                return
            body = b"" if self._is_head else message.get("body", b"")
            for start in range(0, len(body), _CHUNK):
                await self._write(h11.Data(data=body[start : start + _CHUNK]))
            if not message.get("more_body", False):
                await self._write(h11.EndOfMessage())
        except (TimeoutError, OSError) as error:
            self._failed = error

    def _head(self, message: Message) -> h11.Response:
        """Return the head of an answer, which tells whether the connection will be closed."""
        with suppress(h11.RemoteProtocolError):  # skips the received part of an unread body
            while self._http.their_state is h11.SEND_BODY:
                if not isinstance(self._http.next_event(), h11.Data):
                    break
        headers = [*message["headers"], (b"date", formatdate(usegmt=True).encode())]
        if self._among.end or self._http.their_state is h11.SEND_BODY:
            headers.append((b"connection", b"close"))
        status = message["status"]
        return h11.Response(
            status_code=status, headers=headers, reason=responses.get(status, "").encode()
        )

    async def _write(self, event: Any) -> None:
        self._writer.write(self._http.send(event))
        async with asyncio.timeout(self._among.limits.stall_seconds):
            await self._writer.drain()

    async def _event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            await self._read()
        return event

    async def _read(self) -> bool:
        """Read the client's next bytes; return False after a hang-up."""
        try:
            data = await self._bytes()
        except OSError:
            data = b""
        self._http.receive_data(data)
        return bool(data)

    async def _bytes(self) -> bytes:
        # the application's wait for a hang-up, just cancelled, reads, too
        async with self._reading:
            return await self._reader.read(_CHUNK)


def _refusal(status: int, message: str, header: str = "") -> bytes:
    """Return an answer to an invalid request, after which the connection is closed."""
    content = json.dumps({"error": message})
    return (
        f"HTTP/1.1 {status} {responses.get(status, '')}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n{header}connection: close\r\n\r\n{content}"
    ).encode()


async def _part(read: Callable[[], Awaitable[bytes]], writer: asyncio.StreamWriter) -> None:
    """Close the server's side, and wait for the client to close its side.

    Closing a connection while data arrives resets it, and loses the last answer.
    """
    with suppress(TimeoutError, OSError):
        writer.write_eof()
        async with asyncio.timeout(_PARTING):
            while await read():
                pass
