"""Host names of a server, which protect the server against DNS rebinding.

A page in a browser may send requests only to servers of its own name. But the owner of that name
can let the name point to 127.0.0.1 meanwhile. The header Host then still has the page's name.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Iterable
from ipaddress import IPv6Address, ip_address
from typing import Any

from starlette.responses import JSONResponse

from kgfast.text import shown

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s:/@\[\]]+))(?::[0-9]*)?", re.IGNORECASE)


class OwnHosts:
    """ASGI application that answers only requests to its own names; others get 421.

    Own names are the address of the connection, ``localhost`` if that address is local, and
    ``names``.
    """

    def __init__(self, app: Any, names: Collection[str] = ()) -> None:
        self._app, self._names = app, names

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        """Answer or refuse a request."""
        if scope["type"] != "http" or "*" in self._names:
            await self._app(scope, receive, send)
            return
        said = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        host = _host_of(said[0]) if len(said) == 1 else None
        here = _host_of((scope.get("server") or ("",))[0])
        is_local = host == "localhost" and here in ("localhost", "::1", "127.0.0.1")
        if host is not None and (host in self._names or host == here or is_local):
            await self._app(scope, receive, send)
            return
        error = (
            f"no name of this server: {', '.join(map(shown, said)) or 'none'} "
            "(kgfast serve --allowed-host allows others)"
        )
        await JSONResponse({"error": error, "field": "Host"}, 421)(scope, receive, send)


def names_of(hosts: Iterable[str]) -> frozenset[str]:
    """Return names and addresses of hosts in one spelling; ``*`` stays."""
    names = {host: "*" if host == "*" else _host_of(host) for host in hosts}
    for host, name in names.items():
        if name is None:
            raise ValueError(f"an allowed host is a name, an address, or *; got {shown(host)}")
    return frozenset(name for name in names.values() if name)


def _host_of(text: str) -> str | None:
    """Return the host of a header in one spelling; None if the header has none.

    >>> _host_of("LocalHost.:8000"), _host_of("[0:0::1]:80"), _host_of("::ffff:127.0.0.1")
    ('localhost', '::1', '127.0.0.1')
    >>> _host_of("a b"), _host_of("")
    (None, None)
    """
    found = _HOST.fullmatch(text)
    name = text if found is None else found[1] or found[2]
    try:
        address = ip_address(name.partition("%")[0])  # without the interface of a local address
    except ValueError:
        return None if found is None or found[1] else name.lower().removesuffix(".")
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)
