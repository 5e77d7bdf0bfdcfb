"""One PostgreSQL client's socket: whole messages in, bounded buffers out.

Reading is cancel-safe and may run in one task while others write. A message is never written in
pieces with an await between them, so messages of several tasks never mix. The socket's buffer is
bounded. After each `send_wal` its caller waits with `drain`, which has a time limit, until the
client has taken enough. Small answers go out at once, and `has_room` says when to hold back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from walkeeper_common.addresses import shown_address
from walkeeper_common.buffers import Buffer
from walkeeper_common.postgres.client_encoding import UTF8, ClientEncoding
from walkeeper_common.postgres.pgwire import Message, MessageBuffer, SqlRefused, StartupPacket
from walkeeper_common.postgres.pgwire import error_response as build_error_response
from walkeeper_safekeeper.replication.transcoding import transcoded_answer

READ_BYTES = 1 << 16
WRITE_BUFFER_BYTES_MAX = 1 << 18
CLOSE_TIMEOUT_S = 5.0


class ClientGone(Exception):
    """The client has left. This is no failure, and no answer is due."""


class SilentClient(Exception):
    """The client neither answers nor takes what it was sent: drop it."""


class ClientConnection:
    """Owns the streams of one client; `close` always ends in a closed socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._received = MessageBuffer()
        self.encoding: ClientEncoding = UTF8  # both ways
        writer.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_MAX)
        peer = writer.get_extra_info("peername")
        self.address: str = peer[0] if isinstance(peer, tuple) else ""
        self.port: int = peer[1] if isinstance(peer, tuple) else -1

    def __str__(self) -> str:
        return shown_address((self.address, self.port))

    async def next_startup(self) -> StartupPacket:
        """Return the next packet before the login. Raise ClientGone or RemoteProtocolError."""
        while (packet := self._received.next_startup()) is None:
            await self._read()
        return packet

    async def next_message(self) -> Message:
        """Return the next message after the login.

        Raise ClientGone, also on Terminate, or RemoteProtocolError.
        """
        while (received := self._received.next_message()) is None:
            await self._read()
        if received.tag == b"X":
            raise ClientGone("terminated the connection")
        return received

    @contextmanager
    def short_messages(self, body_bytes_max: int) -> Iterator[None]:
        """Refuse messages that are longer, as those of a client that has not logged in."""
        before, self._received.body_bytes_max = self._received.body_bytes_max, body_bytes_max
        try:
            yield
        finally:
            self._received.body_bytes_max = before

    async def _read(self) -> None:
        try:
            data = await self._reader.read(READ_BYTES)
        except OSError as error:
            raise ClientGone(str(error)) from error
        if not data:
            raise ClientGone("closed the connection")
        self._received.feed(data)

    @property
    def has_room(self) -> bool:
        """True if small answers may be added now."""
        return self._writer.transport.get_write_buffer_size() < WRITE_BUFFER_BYTES_MAX

    def send(self, data: bytes) -> None:
        """Send a small answer, at once and without waiting."""
        if not self._writer.transport.is_closing():
            self._writer.write(data)

    def answer(self, data: bytes) -> None:
        """Send rows, errors and notices in the client's encoding. SqlRefused 22P05."""
        self.send(transcoded_answer(data, self.encoding))

    def send_wal(self, buffers: Sequence[Buffer]) -> None:
        """Send the buffers one after the other, so that WAL is not copied."""
        if not self._writer.transport.is_closing():
            self._writer.writelines(buffers)

    async def drain(self, timeout_s: float) -> None:
        """Wait until the client has taken enough. Raise SilentClient or ClientGone."""
        # Yields also when there is room: a reader that lags far must not starve others.
        await asyncio.sleep(0)
        transport = self._writer.transport
        if not transport.get_write_buffer_size() and not transport.is_closing():
            return  # A clock for each piece would cost more than the rest of this call.
        try:
            async with asyncio.timeout(timeout_s):
                await self._writer.drain()
        except TimeoutError as error:
            raise SilentClient("takes no data") from error
        except OSError as error:
            raise ClientGone(str(error)) from error

    def send_fatal(self, error: SqlRefused) -> None:
        """Send the last message of a connection."""
        self.answer(build_error_response(error, "FATAL"))

    def abort(self) -> None:
        """Drop the socket and its buffer, which the client does not take anyway."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Send what is left, for at most CLOSE_TIMEOUT_S, and close."""
        self._writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._writer.wait_closed()
                return
        self.abort()
