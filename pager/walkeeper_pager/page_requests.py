"""Serve a pager's pages over HTTP, and fetch them as a client. Shell.

GET /page?relation=1663/5/16384&block=0[&fork=main][&lsn=0/5A3F2B8][&timeout=10]
200   the page's 8192 bytes, with its LSN in X-Walkeeper-LSN
else  `{"error": kind, "message": text}` with the kind and the status of a PageError
"""

from __future__ import annotations

import asyncio
import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.printable import in_one_line
from walkeeper_common.shell.http.http_locks import http_tokens, speaks_https
from walkeeper_common.shell.tls.own_credentials import own_credentials
from walkeeper_pager.page_names import Busy, NotAPlace, PageError, Place, check_place
from walkeeper_wal.wal_errors import HistoryError

if TYPE_CHECKING:
    from aiohttp import web

    from walkeeper_pager.pager import Pager

LSN_HEADER = "X-Walkeeper-LSN"
TIMEOUT_S_DEFAULT, TIMEOUT_S_MAX = 10.0, 300.0
WAITING_MAX = 500


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One request for a page."""

    place: Place
    block: int
    lsn: int | None
    timeout_s: float

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> PageRequest:
        """Return the request; raise NotAPlace or NotReplayed with what is wrong with it."""
        known = {"relation", "block", "fork", "lsn", "timeout"}
        if strange := set(query) - known:
            raise NotAPlace(
                f"no parameter is named {', '.join(sorted(strange))}: the names are "
                f"{', '.join(sorted(known))}"
            )
        for name in ("relation", "block"):
            if name not in query:
                raise NotAPlace(f"{name} is missing")
        try:
            block, timeout_s = int(query["block"]), float(query.get("timeout", TIMEOUT_S_DEFAULT))
            lsn = int(Lsn.parse(query["lsn"])) if "lsn" in query else None
        except ValueError as error:
            raise NotAPlace(str(error)) from error
        if not 0 <= timeout_s <= TIMEOUT_S_MAX:
            raise NotAPlace(f"timeout is 0 to {TIMEOUT_S_MAX:g} seconds")
        place = Place.parse(query["relation"], query.get("fork"))
        check_place(place, block)
        return cls(place, block, lsn, timeout_s)


class Arrivals:
    """Requests for an LSN that is still to come.

    The requests wait on the event loop. If they waited in threads, they would soon occupy all
    threads, and delay the daemon's end.
    """

    def __init__(self, pager: Pager) -> None:
        self._pager, self._moved, self.waiting = pager, asyncio.Event(), 0
        self._loop = asyncio.get_running_loop()
        pager.on_applied = self._on_applied

    def _on_applied(self) -> None:
        """Wake the requests, from the thread that applies."""
        self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    async def wait(self, asked: PageRequest) -> None:
        """Wait until the LSN is applied or the request's time is over. Raise Busy if too many
        wait."""
        if self._pager.has(asked.lsn) or not asked.timeout_s:
            return
        if self.waiting >= WAITING_MAX:
            raise Busy(f"{WAITING_MAX} requests are waiting for an LSN that is still to come")
        self.waiting += 1
        try:
            async with asyncio.timeout(asked.timeout_s):
                while not self._pager.has(asked.lsn):
                    await self._moved.wait()
        except TimeoutError:
            pass  # the pager reports what is missing
        finally:
            self.waiting -= 1


def page_handler(
    pager: Pager, arrivals: Arrivals
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Return a handler for aiohttp's router, which reads each page in a thread."""
    from aiohttp import web

    async def answer(request: web.Request) -> web.Response:
        try:
            asked = PageRequest.parse(request.query)
            await arrivals.wait(asked)
            page, lsn = await asyncio.to_thread(pager.page, asked.place, asked.block, asked.lsn)
        except HistoryError as error:
            named = error if isinstance(error, PageError) else PageError(str(error))
            return web.json_response(
                {"error": named.kind, "message": str(named)}, status=named.http_status
            )
        return web.Response(
            body=page,
            content_type="application/octet-stream",
            headers={LSN_HEADER: str(Lsn(lsn))},
        )

    return answer


def fetch_page(
    address: Address, relation: str, block: int, *, fork: str | None = None,
    lsn: Lsn | None = None, timeout_s: float = TIMEOUT_S_DEFAULT,
) -> tuple[bytes, Lsn]:  # fmt: skip
    """Return (the page, its LSN) from the pager at `address`; raise PageError of the named kind."""
    asked = {"relation": relation, "block": str(block), "timeout": f"{timeout_s:g}"}
    if fork is not None:
        asked["fork"] = fork
    if lsn is not None:
        asked["lsn"] = str(lsn)
    body, headers = _get(address, f"/page?{urllib.parse.urlencode(asked)}", timeout_s + 10)
    if LSN_HEADER not in headers:
        raise PageError(f"{shown_address(address)} serves something else: it is no pager")
    return body, Lsn.parse(headers[LSN_HEADER])


def fetch_status(address: Address) -> dict[str, object]:
    """Return the status of the pager at `address`; raise PageError if there is none."""
    body, _ = _get(address, "/status", 10)
    try:
        status = json.loads(body)
    except ValueError:
        status = None
    if not isinstance(status, dict) or "applied_lsn" not in status:
        raise PageError(f"{shown_address(address)} serves something else: it is no pager")
    return status


def _get(address: Address, path: str, timeout_s: float) -> tuple[bytes, Mapping[str, str]]:
    url = f"http{'s' * speaks_https()}://{shown_address(address)}"
    # The request goes straight to the pager: an http_proxy in the environment is for remote hosts.
    handlers = [urllib.request.ProxyHandler({}), *_https_handlers()]
    opener = urllib.request.build_opener(*handlers)
    opener.addheaders = [("Authorization", f"Bearer {token}") for token in http_tokens()[:1]]
    try:
        with opener.open(url + path, timeout=timeout_s) as answer:
            return answer.read(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        body = error.read()
        raise _named(body, f"{url}: {error}: {in_one_line(body.decode())}") from error
    except http.client.HTTPException as error:
        raise PageError(f"{url} does not speak HTTP as a pager does: is one there?") from error
    except OSError as error:
        raise PageError(f"{url}: {getattr(error, 'reason', error)}: is a pager there?") from error


def _https_handlers() -> list[urllib.request.BaseHandler]:
    """Return a handler with the CA and the certificate of --tls, or no handler without HTTPS.

    Raise Refused if there is no TLS file.
    """
    credentials = own_credentials()
    if not speaks_https():
        return []
    if credentials is None:
        raise Refused("--http-tls needs a TLS file: add --tls FILE")
    return [urllib.request.HTTPSHandler(context=credentials.web_context())]


def _named(body: bytes, otherwise: str) -> PageError:
    try:
        said = json.loads(body)
        kinds = {each.kind: each for each in PageError.__subclasses__()}
        return kinds.get(said["error"], PageError)(said["message"])
    except (ValueError, KeyError, TypeError):
        return PageError(otherwise)
