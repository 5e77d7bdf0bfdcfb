"""A PostgreSQL client that does only what a test says: reads late, never answers, sends garbage."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgwire import (
    Keepalive,
    Message,
    MessageBuffer,
    StandbyStatus,
    XLogData,
    copy_data,
    message,
    parse_error_fields,
    startup_packet,
    unpack_from_sender,
)


class RawClient:
    """One connection: `connect`, then `query` or `start`. `next` returns messages as they came."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.buffer = MessageBuffer(body_bytes_max=1 << 20)
        self.reported_lsn = Lsn(0)

    @classmethod
    async def open(cls, port: int) -> RawClient:
        client = cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 12))
        _open_clients.append(client)
        return client

    async def closed(self) -> bool:
        """Wait for the end of the stream; return True if no message came before it."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True

    @classmethod
    async def connect(cls, port: int, **parameters: str) -> RawClient:
        """Connect and log in, up to ReadyForQuery."""
        client = await cls.open(port)
        defaults = {"user": "wk", "database": "replication", "replication": "true"}
        client.writer.write(startup_packet({**defaults, **parameters}))
        await client.until(b"Z")
        return client

    async def next(self) -> Message | None:
        """Return the next message, or None at the end of the stream."""
        while (received := self.buffer.next_message()) is None:
            data = await self.reader.read(1 << 16)
            if not data:
                return None
            self.buffer.feed(data)
        return received

    async def until(self, tag: bytes) -> list[Message]:
        """Return messages up to one of `tag`, or to the end of the stream."""
        found: list[Message] = []
        while (received := await self.next()) is not None:
            found.append(received)
            if received.tag == tag:
                break
        return found

    async def query(self, text: str) -> list[Message]:
        self.send(b"Q", text.encode() + b"\0")
        return await self.until(b"Z")

    async def start(self, text: str) -> None:
        """Start streaming, up to CopyBoth."""
        self.send(b"Q", text.encode() + b"\0")
        found = await self.until(b"W")
        assert found and found[-1].tag == b"W", f"{found=}"

    def send(self, tag: bytes, body: bytes = b"") -> None:
        self.writer.write(message(tag, body))

    def report(self, lsn: Lsn, *, reply_requested: bool = False) -> None:
        """Report that everything below `lsn` is written, flushed and replayed."""
        self.reported_lsn = lsn
        status = StandbyStatus(lsn, lsn, lsn, 0, reply_requested)
        self.writer.write(copy_data(status.pack()))

    async def replicated(self) -> XLogData | Keepalive:
        """Return the next payload."""
        received = await self.next()
        assert received is not None and received.tag == b"d", f"{received=}"
        return unpack_from_sender(received.body)

    async def wal(self, size: int) -> bytes:
        """Return `size` bytes of WAL, checked to be without a gap.

        A server that asks for a status gets one without news: it may have less patience than this
        takes.
        """
        wal, at = bytearray(), None
        while len(wal) < size:
            got = await self.replicated()
            if isinstance(got, XLogData):
                assert at in (None, got.start_lsn), f"{at=} {got.start_lsn=}"
                at = got.start_lsn + len(got.payload)
                wal += got.payload
            elif got.reply_requested:
                self.report(self.reported_lsn)
        return bytes(wal)

    async def keepalive(self) -> Keepalive:
        while not isinstance(got := await self.replicated(), Keepalive):
            pass
        return got


_open_clients: list[RawClient] = []


async def close_all_clients() -> None:
    """Close all clients after each test, so that no socket is left to the garbage collector."""
    while _open_clients:
        writer = _open_clients.pop().writer
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


def errors(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [parse_error_fields(m.body) for m in messages if m.tag == b"E"]


def sqlstates(messages: Sequence[Message]) -> list[str]:
    return [fields["C"] for fields in errors(messages)]


def tags(messages: Sequence[Message]) -> str:
    return b"".join(m.tag for m in messages).decode()


def completed(messages: Sequence[Message]) -> list[str]:
    return [m.text() for m in messages if m.tag == b"C"]


def row(messages: Sequence[Message]) -> list[str | None]:
    """Return the values of the first row."""
    data = next(m.body for m in messages if m.tag == b"D")
    values: list[str | None] = []
    at = 2
    for _ in range(int.from_bytes(data[:2], "big")):
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        at += 4
        values.append(None if size < 0 else data[at : at + size].decode())
        at += max(size, 0)
    return values
