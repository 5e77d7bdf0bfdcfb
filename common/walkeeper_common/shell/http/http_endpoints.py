"""`--http`: a daemon's answers to load balancers, Prometheus and people. A shell.

    /         a web page that shows /status (web_page.py)
    /health   200 while the process serves its loop
    /ready    200, or 503 with the reason (Patroni's way)
    /status   the daemon's own state as JSON, its version, and its log's last lines
    /metrics  the same figures in Prometheus' text format

All but /health and /ready need what `http_access` says: a token, if there is a file of them.
Without that, /ready gives no reason.

A daemon imports this only if --http is given: a safekeeper without it pays nothing. The number of
connections is bounded, since a daemon's files need descriptors. A newcomer above the bound takes
the place of a connection without a request. Connections that have not asked yet lose it first, then
the one that is idle for longest. A client that sends no request loses its connection after a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from multidict import CIMultiDict
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from walkeeper_common.access.http_access import (
    CHALLENGES,
    CONTENT_READERS,
    NO_TOKEN,
    READERS,
    HttpAccess,
    HttpRefusal,
)
from walkeeper_common.access.identity import Role
from walkeeper_common.addresses import Address, shown_address, where_it_listens
from walkeeper_common.errors import Refused
from walkeeper_common.metrics import BUILD_INFO, CERTIFICATE_END, Kind, Metric, Sample, Times
from walkeeper_common.shell.http.http_audit import HttpAudit
from walkeeper_common.shell.http.http_locks import http_tokens, speaks_https
from walkeeper_common.shell.http.https_arrivals import HttpsArrivals, certified_identity
from walkeeper_common.shell.http.web_page import HEADERS, page_routes
from walkeeper_common.shell.log_lines.audit import Audit
from walkeeper_common.shell.log_lines.recent_events import RecentEvents
from walkeeper_common.shell.process.descriptors import connections_allowed
from walkeeper_common.shell.process.version import program_version
from walkeeper_common.shell.tls.certificate_watch import certificate_end_s
from walkeeper_common.shell.tls.own_credentials import own_credentials

logger = logging.getLogger("walkeeper.http")

CONNECTIONS_MAX = 100
HEAD_TIMEOUT_S = 5.0  # for a connection's first request
KEEP_ALIVE_S = 75.0  # for the next one: longer than the minute between Prometheus' requests
CROWDED = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 21\r\n\r\n"
    b"too many connections\n"
)
Route = Callable[[web.Request], Awaitable[web.Response]]
OPEN_PATHS = ("/health", "/ready")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The answers of a daemon about itself; each is called at every request, on the loop."""

    not_ready: Callable[[], str | None]
    status: Callable[[], Mapping[str, object]]
    samples: Callable[[], Sequence[Sample]]


class _Collector(Collector):
    def __init__(self, samples: Callable[[], Sequence[Sample]], audit: HttpAudit) -> None:
        self._samples, self._audit = samples, audit

    def collect(self) -> list[Family]:
        """Return the families of the present samples, and the daemon's version."""
        found: dict[str, list[Sample]] = {}
        for sample in (*_own_samples(), *self._audit.samples(), *self._samples()):
            found.setdefault(sample.metric.name, []).append(sample)
        return [_family(each[0].metric, each) for each in found.values()]


def _family(metric: Metric, samples: Sequence[Sample]) -> Family:
    if metric.kind is Kind.HISTOGRAM:
        times = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for sample in samples:
            assert isinstance(sample.value, Times), f"{sample=}"
            labels = list(sample.labels.values())
            times.add_metric(labels, sample.value.buckets(), sample.value.sum_s)
        return times
    kind = GaugeMetricFamily if metric.kind is Kind.GAUGE else CounterMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for sample in samples:
        assert not isinstance(sample.value, Times), f"{sample=}"
        family.add_metric(list(sample.labels.values()), sample.value)
    return family


def _own_samples() -> Iterator[Sample]:
    """Yield the figures that every daemon has."""
    yield Sample(BUILD_INFO, 1.0, {"version": program_version()})
    end_s = certificate_end_s()
    if end_s is not None:
        yield Sample(CERTIFICATE_END, end_s, {})


class _Refusal(asyncio.Protocol):
    """A connection above the limit: it receives CROWDED and is closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        transport.write(CROWDED)
        transport.close()


class _FirstHeads:
    """Ends connections that do not send a whole head in time; aiohttp would wait for ever.

    It also knows the connections without a request at work, the longest idle first.
    """

    def __init__(self) -> None:
        self._waiting: dict[web.RequestHandler, asyncio.TimerHandle] = {}
        self._idle: dict[web.RequestHandler, None] = {}

    def expect(self, connection: web.RequestHandler) -> None:
        loop = asyncio.get_running_loop()
        self._waiting[connection] = loop.call_later(HEAD_TIMEOUT_S, self._end, connection)
        # Connections that have closed since would be kept for ever.
        self._idle = {each: None for each in self._idle if each.transport is not None}

    def make_room(self) -> bool:
        """End a connection without a request at work; return False if there is none."""
        for connection in [*self._waiting, *self._idle]:
            is_open = connection.transport is not None
            self.forget(connection)
            if is_open:
                connection.force_close()
                return True
        return False

    def forget(self, connection: web.RequestHandler) -> None:
        timer = self._waiting.pop(connection, None)
        if timer is not None:
            timer.cancel()
        self._idle.pop(connection, None)

    def _end(self, connection: web.RequestHandler) -> None:
        del self._waiting[connection]
        connection.force_close()  # does nothing if the peer has gone since, or received a 400

    @property
    def middleware(self) -> Middleware:
        """A middleware that stops a connection's timer as soon as a request's head is whole."""

        @web.middleware
        async def on_head(request: web.Request, handler: Handler) -> web.StreamResponse:
            self.forget(request.protocol)
            try:
                return await handler(request)
            finally:
                self._idle[request.protocol] = None

        return on_head

    def cancel(self) -> None:
        for timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()


def _rules(own_host: str, readers: frozenset[Role] = READERS) -> HttpAccess:
    return HttpAccess(http_tokens(), own_host, speaks_https(), readers)


def _refusal_of(request: web.Request, rules: HttpAccess) -> HttpRefusal | None:
    headers = request.headers
    return rules.refusal(
        host=headers.get("Host", ""),
        authorization=headers.get("Authorization", ""),
        identity=certified_identity(request.transport),
    )


def _access(own_host: str, audit: HttpAudit, contents: Collection[str]) -> Middleware:
    """Return a middleware that lets a request in by its headers; `contents` are paths of tables."""

    @web.middleware
    async def on_request(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in OPEN_PATHS:
            return await handler(request)
        rules = _rules(own_host, CONTENT_READERS if request.path in contents else READERS)
        refusal, address = _refusal_of(request, rules), request.remote or "(gone)"
        if refusal is None:
            proven = rules.proven(certified_identity(request.transport))
            if proven is not None:
                audit.login(proven, address)
            return await handler(request)
        audit.refusal(refusal, address)
        challenges = CHALLENGES if refusal is NO_TOKEN else ()
        headers = CIMultiDict(("WWW-Authenticate", challenge) for challenge in challenges)
        return web.Response(status=refusal.status, text=f"{refusal.text}\n", headers=headers)

    return on_request


def _https_arrivals(arrivals_max: int) -> HttpsArrivals | None:
    if not speaks_https():
        return None
    credentials = own_credentials()
    if credentials is None:
        raise Refused("--http-tls needs a TLS file: add --tls FILE")
    return HttpsArrivals(
        credentials.https_context, arrivals_max=arrivals_max, limit_s=HEAD_TIMEOUT_S
    )


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)


async def serve_http(
    address: Address,
    endpoints: Endpoints,
    *,
    routes: Mapping[str, Route] | None = None,
    on_listening: Callable[[str, int], None] | None = None,
    connections_max: int = CONNECTIONS_MAX,
    events: RecentEvents | None = None,
    audit: Audit | None = None,
) -> None:
    """Serve until cancelled; raise Refused if the address cannot be listened on.

    `events` are shown by /status; without them those are the lines of this process's log.

    `audit` is that of the daemon's other doors, if there are any. `routes` adds GETs, for
    CONTENT_READERS. A request of theirs is cancelled when its peer has gone.
    """
    connections_max = connections_allowed(connections_max)
    arrivals = _https_arrivals(connections_max)
    heads = _FirstHeads()
    kept = events or RecentEvents()
    if events is None:
        logging.getLogger().addHandler(kept)
    noted = HttpAudit(audit)
    access = _access(address[0], noted, tuple(routes or ()))
    app = web.Application(middlewares=[heads.middleware, access])
    shown = {**page_routes(), **(routes or {})}
    _add_routes(app.router, endpoints, shown, noted, kept, address[0])
    runner = _runner(app)
    await runner.setup()
    server = runner.server
    assert server is not None
    has_warned = False

    def connected() -> asyncio.BaseProtocol:
        nonlocal has_warned
        is_crowded = len(server.connections) >= connections_max
        if is_crowded and not has_warned:
            logger.warning("--http: %d connections are open, idle ones are closed", connections_max)
        has_warned = is_crowded
        if is_crowded and not heads.make_room():
            return _Refusal()
        connection = server()
        heads.expect(connection)
        return connection if arrivals is None else arrivals.arrive(connection)

    try:
        listener = await _listen(connected, *address)
        try:
            where = where_it_listens(listener.sockets[0], address, "--http")
            if on_listening is not None:
                on_listening(*where)
            await asyncio.get_running_loop().create_future()
        finally:
            listener.close()
    finally:
        logging.getLogger().removeHandler(kept)
        heads.cancel()
        await runner.cleanup()


def _runner(app: web.Application) -> web.AppRunner:
    app.on_response_prepare.append(_add_headers)
    return web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=1,
        handler_cancellation=True,
        keepalive_timeout=KEEP_ALIVE_S,
    )


def _add_routes(
    router: web.UrlDispatcher,
    endpoints: Endpoints,
    routes: Mapping[str, Route],
    audit: HttpAudit,
    events: RecentEvents,
    own_host: str,
) -> None:
    registry = CollectorRegistry()
    registry.register(_Collector(endpoints.samples, audit))

    async def health(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(request: web.Request) -> web.Response:
        reason = endpoints.not_ready()
        if reason is not None and _refusal_of(request, _rules(own_host)) is not None:
            reason = "not ready"  # a reason names logs
        return web.Response(text=f"{reason or 'ready'}\n", status=503 if reason else 200)

    async def status(_request: web.Request) -> web.Response:
        own = {"version": program_version(), "events": events.shown()}
        return web.json_response({**own, **endpoints.status()})

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE})

    for path, handler in (
        ("/health", health),
        ("/ready", ready),
        ("/status", status),
        ("/metrics", metrics),
        *routes.items(),
    ):
        router.add_get(path, handler)


async def _listen(
    connected: Callable[[], asyncio.BaseProtocol], host: str, port: int
) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_server(connected, host, port)
    except OSError as error:
        text = f"--http {shown_address((host, port))} cannot be listened on: {error.strerror}"
        raise Refused(text) from error
