"""A logical log on a simulated disk, and a consumer that reads its changes without a socket."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import cast

import pytest

from tests.support.entry_maker import (
    LogBytes,
    begin,
    commit,
    emitted,
    insert,
    keepalive,
    new_stream,
    origin,
    relation,
)
from walkeeper_common.entries import FRAME_BYTES_MAX
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.client_encoding import UTF8, ClientEncoding
from walkeeper_common.postgres.pgoutput import COPY_HEADER_BYTES, MessageSplitter, relations_of
from walkeeper_proposer.logical.change_stream import ChangeStream
from walkeeper_safekeeper.replication.client_connection import ClientConnection
from walkeeper_safekeeper.replication.durable_slots import DurableSlots
from walkeeper_safekeeper.replication.logical_log import LogicalLog, LogicalReader
from walkeeper_safekeeper.replication.logical_stream import (
    EVERYTHING,
    LogicalStream,
    Wishes,
)
from walkeeper_safekeeper.replication.served_log import Readers, ServedLog
from walkeeper_safekeeper.replication.wal_stream import StreamLimits

SEGMENT = 1 << 15
START = Lsn(SEGMENT)


async def no_write(data: bytes) -> None:
    pass


@dataclass
class Kept:
    """A log in memory as `ServedLog`, and who committed what in it."""

    segment_bytes: int = SEGMENT
    oldest_lsn: Lsn = START
    cluster: str = "changes"
    server_version: str = "15.0"
    timeline: int = 1
    readable_lsn: Lsn = START
    log: LogBytes = field(default_factory=lambda: LogBytes(START))
    transactions: list[tuple[int, list[bytes]]] = field(default_factory=list)
    readers: Readers = field(default_factory=Readers)
    all_sent: asyncio.Event = field(default_factory=asyncio.Event)
    slots: DurableSlots = field(default_factory=lambda: DurableSlots(None, no_write))

    async def read_committed(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
        assert end_lsn <= self.readable_lsn and end_lsn - begin_lsn <= 128 << 10
        assert begin_lsn // SEGMENT == (end_lsn - 1) // SEGMENT
        await asyncio.sleep(0)
        return self.log.read(begin_lsn, end_lsn)

    async def wait_for_readable(self, beyond: Lsn, timeout_s: float) -> Lsn:
        self.all_sent.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nothing is committed any more")

    def served(self) -> ServedLog:
        return cast(ServedLog, self)


class Made(Kept):
    """Drawn transactions on four tables, some of them large, some cut off and sent again.

    `mixed`: some came to the primary from elsewhere, and there are messages inside and between.
    """

    def __init__(self, seed: int, count: int = 120, *, mixed: bool = False) -> None:
        super().__init__()
        self.foreign: set[int] = set()  # LSNs of those from elsewhere
        self.emitted: list[int] = []
        draw = random.Random(seed)
        stream: ChangeStream = new_stream(START, SEGMENT)
        stream.on_connected()
        known: set[int] = set()
        lsn = 0x110
        for _ in range(count):
            if draw.random() < 0.1:
                lsn += 0x10
                stream.on_copy_data(keepalive(lsn))
                self.log.take(stream)
                stream.on_committed(self.log.end)
            messages = [begin(lsn)]
            if mixed and draw.random() < 0.4:
                messages.append(origin())
            for _ in range(draw.randint(1, 5)):
                oid = draw.randint(1, 4)
                if oid not in known:
                    known.add(oid)
                    messages.append(relation(oid))
                size = draw.choice([1, 50, 600]) if draw.random() < 0.99 else FRAME_BYTES_MAX
                messages.append(insert(oid, draw.randbytes(size)))
                if mixed:
                    messages.append(emitted(lsn - 1, transactional=True))
            cut_off = draw.random() < 0.1
            for message in messages:
                stream.on_copy_data(message)
            if cut_off:  # the next connection describes everything again
                self.log.take(stream)
                stream.on_connected()
                known.clear()
                continue
            lsn += 0x20
            stream.on_copy_data(commit(lsn - 0x20, lsn))
            rows = [message[25:] for message in messages if message[25:26] == b"I"]
            self.transactions.append((lsn, rows))
            if mixed:
                self.foreign.update([lsn] if origin() in messages else [])
                lsn += 0x10
                stream.on_copy_data(emitted(lsn))
                self.emitted.append(lsn)
        self.log.take(stream)
        self.readable_lsn = self.log.end


class Client:
    """Takes everything; `sent` is what a consumer gets."""

    def __init__(self, encoding: ClientEncoding = UTF8) -> None:
        self.encoding = encoding
        self.sent = bytearray()
        self.has_room = True
        self._whole_bytes = 0

    def send(self, data: bytes) -> None:
        self.sent += data

    async def drain(self, timeout_s: float) -> None:
        """Take a keepalive, our CopyDone or an error: all before it are whole messages."""
        while self._whole_bytes < len(self.sent):
            at = self._whole_bytes
            self._whole_bytes += 1 + int.from_bytes(self.sent[at + 1 : at + 5], "big")
        assert self._whole_bytes == len(self.sent), "a message in part"
        await asyncio.sleep(0)


async def consume(
    kept: Kept,
    start_lsn: int,
    wishes: Wishes = EVERYTHING,
    encoding: ClientEncoding = UTF8,
    sent_lsn: Lsn | None = None,
) -> bytes:
    """Return all committed bytes that a consumer at `start_lsn` is sent.

    `sent_lsn` is less if the log ended there when the consumer came.
    """
    logical = LogicalLog(kept.served())
    segment = await logical.segment_of(Lsn(start_lsn))
    assert segment is not None
    client = Client(encoding)
    reader = LogicalReader(
        pid=1,
        user="u",
        application_name="a",
        client_addr="",
        client_port=0,
        begin_lsn=Lsn(start_lsn),
        slot="s",
        sent_lsn=Lsn(start_lsn) if sent_lsn is None else sent_lsn,
        position=segment,
    )
    stream = LogicalStream(
        kept.served(),
        cast(ClientConnection, client),
        reader,
        segment,
        wishes,
        limits=StreamLimits(),
        now=lambda: 0.0,
    )
    kept.all_sent = asyncio.Event()
    sending = asyncio.create_task(stream._send())
    waiting = asyncio.create_task(kept.all_sent.wait())
    await asyncio.wait((sending, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    return bytes(client.sent)


def understood(sent: bytes) -> list[tuple[int, list[bytes]]]:
    """Return (end LSN, rows) of each transaction; each row's relation was described before it."""
    found, rows, known = list[tuple[int, list[bytes]]](), list[bytes](), set[int]()
    is_inside = False
    for copy_data, message in MessageSplitter().feed(without_keepalives(sent)):
        kind = bytes(message[:1])
        assert copy_data[5:6] == b"w"
        if kind == b"R":
            known.add(int.from_bytes(message[1:5], "big"))
        elif kind == b"I":
            assert known.issuperset(relations_of(message)), "a row that cannot be understood"
            rows.append(bytes(message))
        elif kind == b"B":
            assert not is_inside, "the beginning of a transaction, and no end of it"
            rows, is_inside = [], True
        elif kind == b"C":
            is_inside = False
            found.append((int.from_bytes(message[10:18], "big"), rows))
    assert not is_inside, "a part of a transaction"
    return found


def without_keepalives(sent: bytes) -> bytes:
    kept, at = b"", 0
    while at < len(sent):
        size = 1 + int.from_bytes(sent[at + 1 : at + 5], "big")
        if sent[at + 5 : at + 6] != b"k":
            assert size > COPY_HEADER_BYTES
            kept += sent[at : at + size]
        at += size
    return kept
