"""The one port of a safekeeper: proposers and PostgreSQL clients tell themselves apart.

    await serve(host, port, catalog=…, proposer_handler=…, now=…, on_ready=…)

`new_connection` decides what a connection is, and whom its certificate names. `proposer_handler`
gets a proposer's transport with the bytes received so far, and sets its own protocol. A client gets
a session in a task of its own. Every other connection (HTTP, silence) gets a refusal, a line in the
log, and is closed. No connection can harm another one.

`serve` runs until it is cancelled. Then clients get 57P01, and it waits for them. It raises Refused
for an address that it cannot bind. It works on asyncio and on uvloop, and knows neither.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TypeAlias

from walkeeper_common.access.identity import NOBODY, Identity
from walkeeper_common.addresses import in_use, is_loopback, shown_address
from walkeeper_common.errors import Refused
from walkeeper_common.shell.log_lines.audit import Audit
from walkeeper_common.shell.log_lines.operator_log import alike
from walkeeper_common.shell.tls.credentials import Credentials, ServerContext
from walkeeper_common.shell.tls.tls_transport import TlsTransport, identity_of
from walkeeper_safekeeper.connections.arrivals import Arrivals
from walkeeper_safekeeper.connections.client_places import TOO_MANY, ClientPlaces
from walkeeper_safekeeper.connections.listener import Accepted, Listener, listening_sockets
from walkeeper_safekeeper.connections.new_connection import Opening, host_of, peer_name, refuse
from walkeeper_safekeeper.connections.waiting_line import Admission
from walkeeper_safekeeper.replication.client_connection import ClientConnection
from walkeeper_safekeeper.replication.opened_log import Catalog
from walkeeper_safekeeper.replication.password_login import PasswordLogin, UsersSource
from walkeeper_safekeeper.replication.replica_session import ReplicaSession
from walkeeper_safekeeper.replication.wal_stream import StreamLimits

logger = logging.getLogger("walkeeper.server")

PID_MAX = 2**31 - 1
CLIENTS_MAX = 200
UNDECIDED_MAX = 200  # connections that have not yet said what they are
STREAM_BUFFER_BYTES = 1 << 16

ProposerHandler: TypeAlias = Callable[[asyncio.Transport, bytes], None]


@dataclass(frozen=True, slots=True)
class PlainPeers:
    """The peers that need no certificate: those on loopback, unless all or none are allowed."""

    on_loopback: bool = True
    anywhere: bool = False

    def admits(self, host: str) -> bool:
        return self.anywhere or (self.on_loopback and is_loopback(host))


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
    plain: PlainPeers = PlainPeers(),
    credentials: Credentials | None = None,
    users: UsersSource | None = None,
    arrivals: Arrivals | None = None,
) -> None:
    """Serve until cancelled; call `on_ready` with the address and the real port.

    `now` is Unix time in seconds. Without credentials there is no TLS. With `users`, a client of
    PostgreSQL without a certificate needs a password, and a change of its user ends its connection.
    """
    audit = audit or Audit()
    arrivals = Arrivals(audit) if arrivals is None else arrivals
    ports, bounds = (catalog, proposer_handler, now, arrivals), (limits, clients_max, undecided_max)
    server = _Server(*ports, *bounds, audit, plain, credentials, users)
    sockets = await _bind(host, port)
    listener = Listener(sockets, server)
    try:
        async with asyncio.TaskGroup() as group:
            server.group = group
            try:
                listener.start()
                on_ready(*sockets[0].getsockname()[:2])
                await asyncio.get_running_loop().create_future()
            finally:
                # Before the sessions are waited for: none may start any more.
                listener.close()
                server.close_undecided()
    finally:
        listener.close()


async def _bind(host: str, port: int) -> Sequence[socket.socket]:
    try:
        return await listening_sockets(host, port)
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
        arrivals: Arrivals,
        limits: StreamLimits,
        clients_max: int,
        undecided_max: int,
        audit: Audit,
        plain: PlainPeers,
        credentials: Credentials | None,
        users: UsersSource | None,
    ) -> None:
        self._audit, self._plain, self._credentials = audit, plain, credentials
        self._users, self._arrivals = users, arrivals
        self._logins: dict[int, tuple[PasswordLogin, asyncio.Task[None]]] = {}
        if users is not None:
            users.on_change(self._end_changed)
        if credentials is not None:
            credentials.on_revoked = self._note_revoked
        self.group: asyncio.TaskGroup | None = None
        self._catalog, self._now = catalog, now
        self.start_proposer = proposer_handler
        self._limits = limits
        self._places, self._undecided_max = ClientPlaces(clients_max), undecided_max
        self._clients: dict[int, ClientConnection] = {}
        self.undecided: dict[Opening, None] = {}  # the oldest first
        self._pids = count(1)
        self._is_stopping = False

    def start_session(self, transport: asyncio.Transport, received: bytes) -> None:
        """Hand the transport to a session of its own."""
        assert self.group is not None
        identity = identity_of(transport)
        password = self._password_of(transport, identity)
        # walreceiver names temporary slots after the pid, so that of a live client is not reused.
        pid = next(pid for n in self._pids if (pid := n % PID_MAX or 1) not in self._clients)
        entry = self._places.enter(pid)
        if entry.is_refused:
            self._audit.refusal("places", identity, peer_name(transport), text=TOO_MANY)
            refuse(transport, "53300", TOO_MANY)
            return
        if entry.evicted is not None:
            oldest = self._clients[entry.evicted]
            extra = alike("did not log in")
            text = "closed %s: it did not log in, and the clients ran short"
            logger.info(text, oldest, extra=extra)
            oldest.abort()
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=STREAM_BUFFER_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        reader.feed_data(received)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        client = self._clients[pid] = ClientConnection(reader, writer)
        session = ReplicaSession(
            client,
            self._catalog,
            pid=pid,
            limits=self._limits,
            now=self._now,
            identity=identity if password is None else NOBODY,
            audit=self._audit,
            password=password,
            admit=partial(self._admit, pid, host_of(transport)),
        )
        task = self.group.create_task(session.run(), name=f"client {pid} {peer_name(transport)}")
        task.add_done_callback(lambda _: self._left_client(pid))
        if password is not None:
            self._logins[pid] = password, task
        if isinstance(transport, TlsTransport):
            transport.dismiss = partial(_cancel, task)

    def _admit(self, pid: int, host: str, identity: Identity) -> str | None:
        """Give the identity a place; return None, or the reason to refuse it."""
        refusal = self._places.admit(pid, identity)
        if refusal is None:
            self._arrivals.proved(host)
        return refusal

    def _end_changed(self) -> None:
        """End the connections of users that are gone, or have another password or other roles."""
        assert self._users is not None
        users = self._users.current()
        for pid, (login, task) in list(self._logins.items()):
            if not login.holds(users):
                text = "its user was removed or changed"
                self._audit.refusal("user-changed", NOBODY, str(self._clients[pid]), text=text)
                del self._logins[pid]
                task.cancel()

    def _left_client(self, pid: int) -> None:
        self._logins.pop(pid, None)
        del self._clients[pid]
        self._places.leave(pid)

    def _password_of(
        self, transport: asyncio.Transport, identity: Identity
    ) -> PasswordLogin | None:
        """Return the login by password for a client without a certificate, if there are users."""
        if self._users is None or identity.how != "none":
            return None
        context = transport.get_extra_info("sslcontext")
        is_served = isinstance(context, ServerContext)
        return PasswordLogin(self._users, context.end_point if is_served else None)

    def arrives(self, accepted: Accepted) -> Admission:
        """Let a new connection enter, wait for its turn, or end."""
        return self._arrivals.arrive(accepted, accepted.host)

    def enters(self, accepted: Accepted) -> None:
        """Give a connection a transport, and look at its first bytes."""
        assert self.group is not None
        work = accepted.connect(lambda: Opening(self))
        task = self.group.create_task(work, name=f"connection {accepted}")
        task.add_done_callback(accepted.close_unless_connected)

    def takes(self, opening: Opening) -> bool:
        """Take a connection that enters, in the place of the oldest silent one if need be."""
        if self._is_stopping:
            return False
        if len(self.undecided) >= self._undecided_max:
            oldest = next(iter(self.undecided))
            text = "closed %s: too many connections say nothing"
            logger.info(text, oldest, extra=alike("say nothing"))
            oldest.close()
        self.undecided[opening] = None
        return True

    def left(self, opening: Opening) -> None:
        """Forget a connection that is decided or gone."""
        self.undecided.pop(opening, None)

    @property
    def opening_s(self) -> float:
        return self._limits.authentication_timeout_s

    def admits_plain(self, transport: asyncio.BaseTransport) -> bool:
        return self._plain.admits(host_of(transport))

    @property
    def takes_passwords(self) -> bool:
        return self._users is not None

    def tls_context(self) -> ssl.SSLContext | None:
        return self._credentials.server_context() if self._credentials is not None else None

    def note_refusal(self, reason: str, address: str, text: str) -> None:
        self._audit.refusal(reason, NOBODY, address, text=text)

    def check_revoked(self, transport: TlsTransport) -> None:
        assert self._credentials is not None
        self._credentials.admit(transport, asyncio.get_running_loop())

    def _note_revoked(self, transport: TlsTransport, why: str) -> None:
        self._audit.refusal("revoked", transport.identity, peer_name(transport), text=why)

    def close_undecided(self) -> None:
        """Close undecided connections of a stopping server, which have no promise yet."""
        self._is_stopping = True
        self._arrivals.close()
        for connection in list(self.undecided):
            connection.close()


def _cancel(session: asyncio.Task[None], _why: str) -> None:
    """End a client's session, which tells the client so."""
    session.cancel()
