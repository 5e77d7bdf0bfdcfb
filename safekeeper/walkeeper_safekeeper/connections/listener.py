"""The listening sockets of the one port, and their connections without a transport. A shell.

    await listening_sockets(host, port)      listen on each address of a host
    Listener(sockets, owner)                 tells its owner each connection that it accepts
    Accepted                                 such a connection: a visitor of the port

A loop's own server makes a transport for a connection before anybody can refuse it. In a flood most
connections end at once, so the listener accepts bare sockets. A connection that waits costs a
descriptor alone. The transport is made when it enters.

A turn accepts ACCEPTS_MAX connections of a socket at most, so that commits go on. After a turn in
which one did not enter, the socket rests for FLOOD_S, so that a flood seldom wakes the loop. After
an accept that failed it rests for RETRY_S. Meanwhile the kernel keeps BACKLOG connections.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from walkeeper_common.addresses import shown_address
from walkeeper_common.shell.log_lines.operator_log import alike
from walkeeper_common.shell.process.descriptors import limit_of
from walkeeper_safekeeper.connections.waiting_line import Admission

logger = logging.getLogger("walkeeper.server")

ACCEPTS_MAX = 64  # a millisecond or two
BACKLOG = 1024  # at most net.core.somaxconn
FLOOD_S = 0.02  # 3,200 connections a second at most
RETRY_S = 1.0  # after an accept that failed, as in asyncio
RESET = struct.pack("ii", 1, 0)  # SO_LINGER without a wait
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_COUNT = 60, 10, 6
# Keepalives find a dead, silent peer within two minutes.
OPTIONS = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
]
if hasattr(socket, "TCP_KEEPIDLE"):
    OPTIONS += [
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_COUNT),
    ]


class Owner(Protocol):
    """The port, which decides about each connection."""

    def arrives(self, accepted: Accepted, /) -> Admission:
        """Let a connection enter, wait for its turn, or end; return which."""
        ...

    def enters(self, accepted: Accepted, /) -> None:
        """Start `accepted.connect` in a task."""
        ...


class Accepted:
    """A connection without a transport. `Arrivals` lets it enter or closes it, now or later."""

    __slots__ = ("_address", "_connection", "_is_handed_over", "_owner")

    def __init__(self, owner: Owner, connection: socket.socket, address: tuple[Any, ...]) -> None:
        self._owner, self._connection, self._address = owner, connection, address
        self._is_handed_over = False

    def __str__(self) -> str:
        return shown_address(self._address[:2])

    @property
    def host(self) -> str:
        """The peer's address without its port."""
        return str(self._address[0])

    def descriptor(self) -> int:
        return self._connection.fileno()

    def enter(self) -> None:
        self._owner.enters(self)

    def close(self) -> None:
        """End with a reset, which leaves nothing to the kernel either."""
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._connection.close()

    async def connect(self, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Give the connection a transport with this protocol."""

        def hand_over() -> asyncio.Protocol:
            self._is_handed_over = True
            return protocol()

        try:
            for level, option, value in OPTIONS:
                self._connection.setsockopt(level, option, value)
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(hand_over, self._connection)
        except OSError as error:  # it is this connection's alone
            logger.debug("%s got no transport: %s", self, error)
            self._connection.close()

    def close_unless_connected(self, connecting: asyncio.Task[None]) -> None:
        """Close the connection if its task was cancelled before it began."""
        if connecting.cancelled() and not self._is_handed_over:
            self.close()


class Listener:
    """The listening sockets, which it owns."""

    def __init__(self, sockets: Sequence[socket.socket], owner: Owner) -> None:
        self._sockets, self._owner = sockets, owner
        self._loop = asyncio.get_running_loop()
        self._resting: dict[socket.socket, asyncio.TimerHandle] = {}

    def start(self) -> None:
        for listening in self._sockets:
            self._loop.add_reader(listening, self._on_readable, listening)

    def close(self) -> None:
        """Accept no more, and refuse what the kernel has kept."""
        for listening in self._sockets:
            timer = self._resting.pop(listening, None)
            if timer is not None:
                timer.cancel()
            self._loop.remove_reader(listening)
            listening.close()
        self._sockets = ()

    def _on_readable(self, listening: socket.socket) -> None:
        rest_s = self._take_turn(listening)
        if rest_s:
            self._loop.remove_reader(listening)
            self._rest(listening, rest_s)

    def _on_rested(self, listening: socket.socket) -> None:
        del self._resting[listening]
        rest_s = self._take_turn(listening)
        if rest_s:
            self._rest(listening, rest_s)
        else:
            self._loop.add_reader(listening, self._on_readable, listening)

    def _rest(self, listening: socket.socket, rest_s: float) -> None:
        self._resting[listening] = self._loop.call_later(rest_s, self._on_rested, listening)

    def _take_turn(self, listening: socket.socket) -> float:
        """Accept connections; return for how long the socket has to rest."""
        rest_s = 0.0
        for _ in range(ACCEPTS_MAX):
            try:
                connection, address = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                break
            except OSError as error:
                _warn(error)
                return RETRY_S
            admission = self._owner.arrives(Accepted(self._owner, connection, address))
            if admission is not Admission.ENTERS:
                rest_s = FLOOD_S
        return rest_s


async def listening_sockets(host: str, port: int) -> Sequence[socket.socket]:
    """Listen on each address of the host, or of the machine for an empty one. OSError."""
    loop = asyncio.get_running_loop()
    kind, flags = socket.SOCK_STREAM, socket.AI_PASSIVE
    found = await loop.getaddrinfo(host or None, port, type=kind, flags=flags)
    supported = [each for each in found if _is_supported(each[0])]
    sockets = list[socket.socket]()
    try:
        for family, _, _, _, address in dict.fromkeys(supported or found):
            sockets.append(socket.create_server(address, family=family, backlog=BACKLOG))
            sockets[-1].setblocking(False)
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets


def _is_supported(family: int) -> bool:
    """Return False if the kernel has no such addresses, mostly those of IPv6."""
    try:
        socket.socket(family).close()
    except OSError as error:
        return error.errno != errno.EAFNOSUPPORT
    return True


def _warn(error: OSError) -> None:
    text = "no new connection is accepted for %g s: %s; raise %s"
    extra = alike("no connection is accepted")
    logger.warning(text, RETRY_S, error.strerror, limit_of(error), extra=extra)
