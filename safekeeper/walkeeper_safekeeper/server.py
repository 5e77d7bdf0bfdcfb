"""The one port of a safekeeper: proposers and PostgreSQL clients tell themselves apart.

    await serve(host, port, catalog=…, proposer_handler=…, now=…, on_ready=…)

A proposer's first eight bytes are PREFACE. A PostgreSQL client's first four are the length of a
startup packet, whose first byte is 0. `proposer_handler` gets a proposer's transport with the bytes
received so far, and sets its own protocol. A client gets a session in a task of its own. Every
other connection (direct TLS (0x16), HTTP, silence) gets a refusal, a line in the log, and is
closed. No connection can harm another one.

`serve` runs until it is cancelled. Then clients get 57P01, and it waits for them. It raises Refused
for an address that it cannot bind. It works on asyncio and on uvloop, and knows neither.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import TypeAlias, cast

from walkeeper_common.addresses import in_use, shown_address, where_it_listens
from walkeeper_common.errors import Refused
from walkeeper_common.identity import ANYBODY
from walkeeper_common.postgres.pgwire import SqlRefused, error_response
from walkeeper_common.shell.audit import Audit
from walkeeper_common.wire.framing import PREFACE
from walkeeper_safekeeper.replication.client_connection import ClientConnection
from walkeeper_safekeeper.replication.replica_session import ReplicaSession
from walkeeper_safekeeper.replication.served_log import Catalog
from walkeeper_safekeeper.replication.wal_stream import StreamLimits

logger = logging.getLogger("walkeeper.server")

TLS_HANDSHAKE = 0x16
PID_MAX = 2**31 - 1
CLIENTS_MAX = 200
UNDECIDED_MAX = 200  # connections that have not yet said what they are
STREAM_BUFFER_BYTES = 1 << 16
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_COUNT = 60, 10, 6

ProposerHandler: TypeAlias = Callable[[asyncio.Transport, bytes], None]


async def serve(
    host: str,
    port: int,
    *,
    catalog: Catalog,
    proposer_handler: ProposerHandler,
    now: Callable[[], float],
    on_ready: Callable[[str, int], None],
    limits: StreamLimits = StreamLimits(),  # noqa: B008  (frozen)
    clients_max: int = CLIENTS_MAX,
    undecided_max: int = UNDECIDED_MAX,
    audit: Audit | None = None,
) -> None:
    """Serve until cancelled; call `on_ready` with the address and the real port.

    `now` is Unix time in seconds.
    """
    audit = audit or Audit()
    server = _Server(catalog, proposer_handler, now, limits, clients_max, undecided_max, audit)
    listener = await _bind(server, host, port)
    try:
        async with asyncio.TaskGroup() as group:
            server.group = group
            try:
                await listener.start_serving()
                on_ready(*where_it_listens(listener.sockets[0], (host, port), "--listen"))
                await asyncio.get_running_loop().create_future()
            finally:
                # Before the sessions are waited for: none may start any more.
                listener.close()
                server.close_undecided()
    finally:
        listener.close()


async def _bind(server: _Server, host: str, port: int) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_server(
            lambda: _Undecided(server), host or None, port, start_serving=False
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise in_use((host, port), "--listen") from error
        raise Refused(
            f"cannot listen on {shown_address((host, port))}: {error.strerror or error}; "
            "check --listen"
        ) from error


class _Server:
    """The connections of one listener."""

    def __init__(
        self,
        catalog: Catalog,
        proposer_handler: ProposerHandler,
        now: Callable[[], float],
        limits: StreamLimits,
        clients_max: int,
        undecided_max: int,
        audit: Audit,
    ) -> None:
        self._audit = audit
        self.group: asyncio.TaskGroup | None = None
        self._catalog, self._now = catalog, now
        self.proposer_handler = proposer_handler
        self.limits = limits
        self._clients_max, self._undecided_max = clients_max, undecided_max
        self._clients: dict[int, asyncio.Task[None]] = {}
        self.undecided: dict[_Undecided, None] = {}  # the oldest first
        self._pids = count(1)
        self._is_stopping = False

    def start_session(self, transport: asyncio.Transport, received: bytes) -> None:
        """Hand the transport to a session of its own."""
        assert self.group is not None
        if len(self._clients) >= self._clients_max:
            self._audit.refusal("places", ANYBODY, peer_name(transport), text="too many clients")
            refuse(transport, "53300", "sorry, too many clients already")
            return
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=STREAM_BUFFER_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        reader.feed_data(received)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        # walreceiver names temporary slots after the pid, so that of a live client is not reused.
        pid = next(pid for n in self._pids if (pid := n % PID_MAX or 1) not in self._clients)
        session = ReplicaSession(
            ClientConnection(reader, writer),
            self._catalog,
            pid=pid,
            limits=self.limits,
            now=self._now,
            audit=self._audit,
        )
        task = self.group.create_task(session.run(), name=f"client {pid} {peer_name(transport)}")
        self._clients[pid] = task
        task.add_done_callback(lambda _: self._clients.pop(pid))

    def takes(self, connection: _Undecided) -> bool:
        """Take a new connection, in the place of the oldest silent one if there are too many."""
        if self._is_stopping:
            return False
        if len(self.undecided) >= self._undecided_max:
            oldest = next(iter(self.undecided))
            logger.info("closed %s: too many connections say nothing", oldest)
            oldest.close()
        self.undecided[connection] = None
        return True

    def close_undecided(self) -> None:
        """Close undecided connections of a stopping server, which have no promise yet."""
        self._is_stopping = True
        for connection in list(self.undecided):
            connection.close()


class _Undecided(asyncio.Protocol):
    """A connection until its first bytes say whose it is."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __str__(self) -> str:
        return peer_name(self._transport)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the time limit for the first bytes."""
        transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._transport = transport
        if not self._server.takes(self):
            logger.warning("refused %s: the safekeeper stops", peer_name(transport))
            transport.abort()
            return
        _set_socket_options(transport)
        timeout_s = self._server.limits.authentication_timeout_s
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._on_silence)

    def data_received(self, data: bytes) -> None:
        """Decide, or wait for more of the preface."""
        assert self._transport is not None
        self._received += data
        received, transport = self._received, self._transport
        if received.startswith(PREFACE):
            self._leave()
            self._server.proposer_handler(transport, received)
        elif received[0] == 0:
            # StreamReader takes the rest; the session checks the length.
            self._leave()
            self._server.start_session(transport, received)
        elif not PREFACE.startswith(received):
            self._leave()
            self._refuse_garbage(transport, received)

    def _refuse_garbage(self, transport: asyncio.Transport, received: bytes) -> None:
        if received[0] == TLS_HANDSHAKE:
            logger.warning(
                "closed %s: it starts TLS at once, which is not supported; use sslmode=prefer or "
                "disable, without sslnegotiation=direct",
                peer_name(transport),
            )
            transport.close()
            return
        if received.startswith(PREFACE[:-1]):
            said = f"a proposer that speaks protocol {received[7]}, not {PREFACE[7]}"
        else:
            said = f"neither a proposer nor a PostgreSQL client; it began with {received[:16]!r}"
        logger.warning("closed %s: %s", peer_name(transport), said)
        refuse(transport, "08P01", f"this is a walkeeper safekeeper, and you are {said}")

    def eof_received(self) -> None:
        """Log a peer that left without a byte, mostly a port check."""
        logger.debug("%s closed after %r", peer_name(self._transport), self._received)

    def connection_lost(self, _error: Exception | None) -> None:
        """Forget the connection, if it is still undecided."""
        self._leave()

    def close(self) -> None:
        """Abort the connection without an answer."""
        self._leave()
        if self._transport is not None:
            self._transport.abort()

    def _on_silence(self) -> None:
        logger.info("closed %s: it did not say what it is", peer_name(self._transport))
        self.close()

    def _leave(self) -> None:
        self._server.undecided.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()


def refuse(transport: asyncio.Transport, sqlstate: str, message: str) -> None:
    """Send an error and close; a PostgreSQL client shows the text, and others can read it."""
    transport.write(error_response(SqlRefused(sqlstate, message), "FATAL"))
    transport.close()


def peer_name(transport: asyncio.BaseTransport | None) -> str:
    name = transport.get_extra_info("peername") if transport is not None else None
    return shown_address(name[:2]) if isinstance(name, tuple) else "(gone)"


def _set_socket_options(transport: asyncio.Transport) -> None:
    """Set keepalives that find a dead, silent peer within two minutes."""
    connection = transport.get_extra_info("socket")
    options = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    ]
    if hasattr(socket, "TCP_KEEPIDLE"):
        options += [
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_COUNT),
        ]
    for level, option, value in options:
        with suppress(OSError):  # a peer that is gone already
            connection.setsockopt(level, option, value)
