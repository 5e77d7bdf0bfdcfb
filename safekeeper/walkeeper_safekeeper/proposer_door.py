"""The door for proposers and commands: it admits connections, and closes some to make room.

`ConnectionLimits` decides. This shell has the sockets and the clock, and starts the sessions.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from walkeeper_common.addresses import is_loopback
from walkeeper_common.shell.log_lines.audit import Audit
from walkeeper_common.shell.log_lines.operator_log import alike
from walkeeper_common.shell.safekeeper_links.framed_connection import FramedConnection
from walkeeper_common.shell.tls.tls_transport import identity_of
from walkeeper_common.wire.framing import first_frame_limit
from walkeeper_fastpath.switch import feed
from walkeeper_safekeeper.connections.arrivals import Arrivals
from walkeeper_safekeeper.connections.connection_limits import ConnectionLimits, Limits
from walkeeper_safekeeper.connections.new_connection import host_of, peer_name, refuse_proposer
from walkeeper_safekeeper.hosting.hosted_log import HostedLog
from walkeeper_safekeeper.proposer_session import LogCatalog, ProposerSession

logger = logging.getLogger("walkeeper.safekeeper")

LOOK_S = 1.0  # how often silent connections are looked for


class Catalog(LogCatalog, Protocol):
    """The door's port to the catalogue."""

    def logs(self) -> Sequence[HostedLog]: ...


class ProposerDoor:
    """Call it with a proposer's transport and its first bytes."""

    def __init__(
        self,
        limits: Limits,
        catalog: Catalog,
        start: Callable[..., asyncio.Task[None]],
        audit: Audit,
        arrivals: Arrivals,
    ) -> None:
        self._audit, self._arrivals = audit, arrivals
        self._limits, self._catalog, self._start = ConnectionLimits(limits), catalog, start
        self._connections: dict[int, FramedConnection] = {}
        self._numbers = itertools.count(1)

    def __call__(self, transport: asyncio.Transport, received: bytes) -> None:
        number, host, identity = next(self._numbers), host_of(transport), identity_of(transport)
        leaders = {log.driver.acceptor.appender for log in self._catalog.logs()} - {None}
        entry = self._limits.enter(
            number,
            host,
            is_local=is_loopback(host),
            now_s=self._now_s(),
            leaders={leader for leader in leaders if leader is not None},
        )
        if entry.refusal is not None:
            self._audit.refusal("places", identity, peer_name(transport), text=entry.refusal)
            refuse_proposer(transport, entry.refusal)
            return
        if entry.evicted is not None:
            self._evict(entry.evicted, "silent for longest when the connections ran short")
        connection = FramedConnection(
            lambda c: ProposerSession(
                c, self._catalog, number, self._start, self, identity, self._audit
            ),
            limit_of=first_frame_limit,
            make_feed=feed(),
        )
        self._connections[number] = connection
        connection.take_over(transport, received)

    async def run(self) -> None:
        """Close connections that do not greet in time, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            for number in self._limits.overdue(self._now_s()):
                self._evict(number, "no message in time")

    def _evict(self, number: int, why: str) -> None:
        connection = self._connections.pop(number, None)
        self._limits.leave(number)
        if connection is not None:
            logger.info("closed %s: %s", connection.peer, why, extra=alike(f"closed: {why}"))
            connection.abort(why)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    # For the sessions

    def heard(self, number: int) -> None:
        """Note a message, other than WAL."""
        host = self._limits.heard(number, self._now_s())
        if host is not None:
            self._arrivals.proved(host)

    def may_hold(self, number: int, *, is_expected: bool) -> bool:
        """Return whether the connection may greet a log."""
        return self._limits.hold(number, is_expected=is_expected)

    def left(self, number: int) -> None:
        """Free the place of a closed connection."""
        self._connections.pop(number, None)
        self._limits.leave(number)
