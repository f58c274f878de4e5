"""``GET /``: a page in one file, which sends requests to its own server."""

import base64
import hashlib
import re
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

_PAGE = files("kgfast.extras.serve").joinpath("start_page.html").read_text(encoding="utf-8")


def _hash(tag: str) -> str:
    """Return the source of Content-Security-Policy that allows an element of the page."""
    (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", _PAGE, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# Allows the page's own style and script, requests to its server, and an empty icon; nothing else.
_POLICY = (
    f"default-src 'none'; style-src {_hash('style')}; script-src {_hash('script')}; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


async def page(_: Request) -> Response:
    """Answer with the page."""
    return HTMLResponse(_PAGE, headers={"content-security-policy": _POLICY})
