"""The web page of every daemon, at `/` of --http: static files that ask for /status. A shell.

The page loads nothing from any other server, and its policy forbids that. It sends nothing. All
answers of a daemon have HEADERS.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from importlib.resources import files

from aiohttp import web

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}


@cache
def _text(name: str) -> str:
    return (files("walkeeper_common.shell.http.page") / name).read_text(encoding="utf-8")


def page_routes() -> dict[str, Callable[[web.Request], Awaitable[web.Response]]]:
    """Return the GET handlers of the page's files, by path."""
    return {path: _handler(*found) for path, found in FILES.items()}


def _handler(name: str, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=_text(name), content_type=kind, charset="utf-8")

    return answer
