"""One proposer-safekeeper connection on a socket: bytes to messages and back.

The loop receives into the frame reader's own memory and writes header and WAL as two buffers, so
WAL is copied by the kernel alone. Nearly all frames are exactly those that the owner expects. So
the owner sees the bytes first, and mostly no message is made of them. Reading stops while the owner
is busy (`pause_reading`). The listening side also stops while a peer leaves UNREAD_BYTES_MAX
unread. The unsent bytes are bounded: a peer that does not read them is cut off.
A peer that breaks the protocol receives a Reject with the reason, and is closed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, cast

from walkeeper_common.access.identity import NOBODY, Identity
from walkeeper_common.addresses import shown_address
from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.history import NO_BALLOT
from walkeeper_common.shell.log_lines.operator_log import alike
from walkeeper_common.shell.tls.tls_transport import TlsTransport, identity_of
from walkeeper_common.wire.framing import PREFACE, FrameReader, Message, encode, frame_limit
from walkeeper_common.wire.messages import Reject, RejectCode

logger = logging.getLogger("walkeeper.connection")

UNSENT_BYTES_MAX = 64 << 20
UNREAD_BYTES_MAX = 1 << 20  # a peer with more unread answers is not read

_UNREAD = "unread"

TakeFrames: TypeAlias = Callable[[bytearray, int], int]


class Feed(Protocol):
    """The compiled calls of a loop with received bytes (walkeeper_fastpath)."""

    take: TakeFrames | None

    def get_buffer(self, sizehint: int, /) -> memoryview: ...
    def buffer_updated(self, nbytes: int, /) -> None: ...


MakeFeed: TypeAlias = Callable[["FramedConnection", FrameReader], Feed]


class Owner(Protocol):
    """The side of this program that speaks on this connection.

    `on_frames` gets the first `size` bytes of a memory, which begin with a frame. It returns how
    many of them, in whole frames, it has handled. If it returns 0, it has done nothing, and
    `on_message` gets the messages in them.
    """

    def on_frames(self, memory: bytearray, size: int, /) -> int: ...
    def on_message(self, message: Message) -> None: ...

    def on_closed(self, reason: str) -> None:
        """Take the reason, once, whichever side closed the connection."""
        ...


class FramedConnection(asyncio.BufferedProtocol):
    """`owner_of` is called once, with this connection, when the socket is there.

    `limit_of` bounds the frames of the peer by their tags, until `limit_frames` replaces it.
    With `make_feed`, `receive_first` spares steady frames the calls of this class.
    """

    def __init__(
        self,
        owner_of: Callable[[FramedConnection], Owner],
        *,
        limit_of: Callable[[int], int] = frame_limit,
        make_feed: MakeFeed | None = None,
    ) -> None:
        self._owner_of = owner_of
        self._owner: Owner | None = None
        self._reader = FrameReader(limit_of=limit_of)
        self._feed: Feed | None = None
        if make_feed is not None:
            self._feed = feed = make_feed(self, self._reader)
            # Now: a transport looks both methods up when it gets its protocol, and never again.
            vars(self).update(get_buffer=feed.get_buffer, buffer_updated=feed.buffer_updated)
        self._transport: asyncio.Transport | None = None
        self._descriptor: int | None = None  # the socket's, if it takes bytes as they are (no TLS)
        self._reason = "the peer closed the connection"
        self._pauses = set[str]()  # the reasons why nothing is read
        self._bounds_unread = False  # a proposer reads acknowledgements however much it sends
        self.on_room: Callable[[], None] | None = None  # called when the peer has read
        self._seen_bytes = 0  # those of an incomplete frame at the last `receives_more`

    @property
    def peer(self) -> str:
        """The address of the other side, or "?" without a connection."""
        name = self._transport.get_extra_info("peername") if self._transport else None
        return shown_address(name[:2]) if name else "?"

    @property
    def is_encrypted(self) -> bool:
        """True over TLS: the socket's descriptor then takes no bytes of ours."""
        return self._transport is not None and bool(self._transport.get_extra_info("sslcontext"))

    @property
    def identity(self) -> Identity:
        """The other side's identity, or NOBODY without a connection."""
        return identity_of(self._transport) if self._transport is not None else NOBODY

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that the socket has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def limit_frames(self, limit_of: Callable[[int], int]) -> None:
        """Set the bound on the next frames of the peer; `limit_of` gets a tag."""
        self._reader.limit_of = limit_of

    def receives_more(self) -> bool:
        """Return whether more of a frame has come since the last call, but not all of it."""
        held_bytes, seen_bytes = self._reader.held_bytes, self._seen_bytes
        self._seen_bytes = held_bytes
        return held_bytes not in (0, seen_bytes)

    def greet(self, transport: asyncio.BaseTransport) -> None:
        """Say, as the connecting side, which protocol this is."""
        cast(asyncio.Transport, transport).write(PREFACE)

    def take_over(self, transport: asyncio.Transport, received: bytes) -> None:
        """Go on, as the listening side, with bytes that were read to identify the protocol."""
        assert received.startswith(PREFACE), f"{received[:8]!r}"
        transport.set_protocol(self)
        transport.set_write_buffer_limits(high=UNREAD_BYTES_MAX)
        self._bounds_unread = True
        self.connection_made(transport)
        rest = received[len(PREFACE) :]
        while rest and not self.is_closed:
            room = self.get_buffer(len(rest))
            size = min(len(room), len(rest))
            room[:size] = rest[:size]
            rest = rest[size:]
            self.buffer_updated(size)

    @property
    def is_closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self.is_encrypted:
            self._descriptor = transport.get_extra_info("socket").fileno()
        self._owner = self._owner_of(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        reader = self._reader
        return reader.buffer() if reader.held_bytes else reader.view

    def buffer_updated(self, nbytes: int) -> None:
        self.on_received(nbytes)

    def receive_first(self, take: TakeFrames | None) -> None:
        """Give received bytes to `take` before the owner, until this is called with None.

        `take` is as `Owner.on_frames`. Bytes that follow a part of a frame go to the owner."""
        if self._feed is not None:
            self._feed.take = take

    def on_received(self, nbytes: int) -> None:
        """Pass the bytes that `get_buffer` has received to the owner."""
        reader, owner = self._reader, self._owner
        assert owner is not None
        if reader.large is None:
            size = reader.held_bytes + nbytes
            taken = owner.on_frames(reader.memory, size)
            if taken:
                self.on_taken(taken, size)
                return
        self._pass_messages(nbytes)

    def on_taken(self, taken: int, size: int) -> None:
        """Drop the first `taken` of `size` received bytes; pass on the messages after them."""
        reader = self._reader
        if taken == size != len(reader.memory):
            reader.held_bytes = 0
            return
        reader.take(taken, size)
        if taken < size:
            self._pass_messages(0)  # the rest may be whole messages of another kind

    def _pass_messages(self, nbytes: int) -> None:
        owner = self._owner
        assert owner is not None
        try:
            for message in self._reader.received(nbytes):
                owner.on_message(message)
                if self.is_closed:
                    return
        except RemoteProtocolError as error:
            extra = alike("broke the protocol")
            logger.warning("closed %s: it broke the protocol: %s", self.peer, error, extra=extra)
            self.send(Reject(RejectCode.REFUSED, str(error), NO_BALLOT))
            self.close(str(error))

    def eof_received(self) -> None:
        return None  # closes the transport; connection_lost follows

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._reason = str(exc) or type(exc).__name__
        self._transport = None
        if self._owner is not None:
            self._owner.on_closed(self._reason)

    def send(self, message: Message) -> None:
        """Queue the message after those sent before; drop it if the connection is gone."""
        buffers = encode(message)
        self.write(buffers, sum(map(len, buffers)))

    def write(self, buffers: Sequence[Buffer], size: int) -> None:
        """Write `size` bytes of packed messages after those that the socket has not taken yet.

        While the socket takes everything, bytes go there at once. The transport would wait for the
        end of the loop's turn, and a commit would wait with it.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        written = 0
        if self._descriptor is not None and not transport.get_write_buffer_size():
            try:
                written = os.writev(self._descriptor, buffers)
            except OSError:
                written = 0  # full, or lost: the transport finds out which
            if written == size:
                return
        rest = list[Buffer]()
        for buffer in buffers:
            if written < len(buffer):
                rest.append(memoryview(buffer)[written:])
            written = max(0, written - len(buffer))
        transport.writelines(rest)
        if self.unsent_bytes > UNSENT_BYTES_MAX:
            self.abort("it does not read what it is sent")

    def direct(self) -> tuple[int, Callable[[], int], Callable[[], bool]] | None:
        """Return the socket's descriptor, its unsent bytes, and whether it is closing.

        Return None if it is not there, or if it does not take bytes as they are (TLS)."""
        transport = self._transport
        if transport is None or self._descriptor is None:
            return None
        return self._descriptor, transport.get_write_buffer_size, transport.is_closing

    def sealed(self) -> TlsTransport | None:
        """Return the TLS of this connection, or None if it has none."""
        return self._transport if isinstance(self._transport, TlsTransport) else None

    @property
    def is_full(self) -> bool:
        """True while the peer leaves so much unread that it should get no more."""
        return _UNREAD in self._pauses

    def pause_writing(self) -> None:
        """Read no further requests of a listening side's peer that does not read the answers."""
        if self._bounds_unread:
            self.pause_reading(_UNREAD)

    def resume_writing(self) -> None:
        """Go on with a peer that has read."""
        self.resume_reading(_UNREAD)
        if self.on_room is not None:
            self.on_room()

    def pause_reading(self, why: str = "busy") -> None:
        """Stop reading until `resume_reading` has come for each reason."""
        if not self.is_closed and self._transport is not None:
            if not self._pauses:
                self._transport.pause_reading()
            self._pauses.add(why)

    def resume_reading(self, why: str = "busy") -> None:
        """Read on, if no other reason to pause is left."""
        if why in self._pauses and not self.is_closed and self._transport is not None:
            self._pauses.discard(why)
            if not self._pauses:
                self._transport.resume_reading()

    def close(self, reason: str) -> None:
        """Send what is queued, then close; on_closed follows with this reason."""
        if self._transport is not None and not self._transport.is_closing():
            self._reason = reason
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close at once and drop queued bytes: `close` would wait for a peer that reads none."""
        if self._transport is not None:
            self._reason = reason
            self._transport.abort()
