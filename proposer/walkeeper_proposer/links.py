"""The proposer's connections to its safekeepers: one link an address. Shell."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from walkeeper_common.access.certificate_identity import check_stated_id
from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import Refused, RemoteProtocolError
from walkeeper_common.operator_text.last_text import LastText
from walkeeper_common.shell.safekeeper_links.framed_connection import FramedConnection, TakeFrames
from walkeeper_common.shell.safekeeper_links.safekeeper_connection import connect
from walkeeper_common.wire.framing import Message, encode
from walkeeper_common.wire.messages import AcceptorGreeting
from walkeeper_fastpath.switch import feed
from walkeeper_proposer.consensus.proposer_events import Event, LinkLost, LinkUp, Received

logger = logging.getLogger("walkeeper.links")

CONNECT_TIMEOUT_S = 5.0
PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 1.0

TakeLinksFrames: TypeAlias = Callable[[int, bytearray, int], int]  # with the link's number


class _Link:
    """One address. `connection` is None while there is none."""

    def __init__(self, number: int, address: Address) -> None:
        self.number, self.address = number, address
        self.connection: FramedConnection | None = None
        self.closed = asyncio.Event()
        self.is_closing = False

    def __str__(self) -> str:
        return f"safekeeper at {shown_address(self.address)}"


class _LinkOwner:
    """The owner of one connection; it passes messages on while that is the link's current one."""

    def __init__(
        self,
        link: _Link,
        connection: FramedConnection,
        post: Callable[[Event], None],
        take: TakeLinksFrames,
    ) -> None:
        self._link, self._connection, self._post = link, connection, post
        self.on_frames: TakeFrames = partial(take, link.number)

    def on_message(self, message: Message) -> None:
        if isinstance(message, AcceptorGreeting):
            try:
                check_stated_id(self._connection.identity, message.acceptor_id)
            except Refused as error:
                raise RemoteProtocolError(str(error)) from error
        self._post(Received(self._link.number, message))

    def on_closed(self, reason: str) -> None:
        if not self._link.is_closing:
            logger.info("lost the connection to %s: %s", self._link, reason)
        self._link.connection = None
        self._link.closed.set()
        self._post(LinkLost(self._link.number))


class SafekeeperLinks:
    """The driver's `Links`. `run` keeps the connections up until it is cancelled."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._links = [_Link(number, address) for number, address in enumerate(addresses)]
        self._post: Callable[[Event], None]
        self._take: TakeLinksFrames
        self._packed_message: Message | None = None  # the last one: mostly it goes to all links
        self._packed: list[Buffer] = []
        self._packed_bytes = 0

    async def run(self, post: Callable[[Event], None], take: TakeLinksFrames) -> None:
        """Keep all links up until cancelled.

        `take` gets received bytes with the link's number, as `Owner.on_frames` does. `post` gets
        LinkUp, LinkLost, and Received for messages that `take` left."""
        self._post, self._take = post, take
        async with asyncio.TaskGroup() as group:
            for link in self._links:
                group.create_task(self._keep_up(link), name=f"link to {link}")

    async def _keep_up(self, link: _Link) -> None:
        pause_s, last_reason = PAUSE_S_MIN, LastText()
        try:
            while True:
                try:
                    await self._connect(link)
                except (OSError, TimeoutError) as error:
                    reason = str(error) or "no answer"
                    if last_reason.changes_to(reason):
                        logger.warning("cannot reach %s: %s; retrying", link, reason)
                else:
                    last_reason.clear()
                    started = asyncio.get_running_loop().time()
                    await link.closed.wait()
                    if asyncio.get_running_loop().time() - started > PAUSE_S_MAX:
                        pause_s = PAUSE_S_MIN
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)
        finally:
            link.is_closing = True
            if link.connection is not None:
                link.connection.close("the proposer stops")

    async def _connect(self, link: _Link) -> None:
        link.closed.clear()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            transport, connection = await connect(
                link.address,
                lambda: FramedConnection(
                    lambda it: _LinkOwner(link, it, self._post, self._take), make_feed=feed()
                ),
            )
        _set_socket_options(transport)
        connection.greet(transport)
        link.connection = connection
        self._post(LinkUp(link.number))

    def send(self, link: int, message: Message) -> None:
        """Send a message; drop it if the link is down, as LinkLost is posted then."""
        connection = self._links[link].connection
        if connection is None:
            return
        if message is not self._packed_message:
            self._packed_message, self._packed = message, encode(message)
            self._packed_bytes = sum(map(len, self._packed))
        connection.write(self._packed, self._packed_bytes)

    def answer(self, link: int) -> FramedConnection | None:
        """Return the link's connection for the fast path, or None if it is down."""
        return self._links[link].connection

    def receiving(self) -> frozenset[int]:
        """Return the links on which more of a message has come since the last call."""
        up = [(link.number, link.connection) for link in self._links if link.connection]
        return frozenset(number for number, connection in up if connection.receives_more())

    def drop(self, link: int, text: str) -> None:
        """Close; it is connected again after a pause."""
        connection = self._links[link].connection
        if connection is not None:
            connection.abort(text)


def _set_socket_options(transport: asyncio.BaseTransport) -> None:
    """Set no TCP_USER_TIMEOUT: the core drops a safekeeper that is silent.

    The kernel counts from when the window first was too small for the next segment. On a slow link
    that is a moment in the past for as long as there is WAL, although bytes arrive (R26).
    """
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
