"""A consumer asks for an LSN beyond the log's end, or confirms one: its slot stays in the log."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from tests.safekeeper.logical_consumer import Client, Kept, Made, consume, understood
from tests.support.waiting import LIMIT_S
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgwire import Keepalive, Message, MessageBuffer, StandbyStatus
from walkeeper_common.postgres.replication_commands import StartLogical
from walkeeper_safekeeper.replication.client_connection import ClientConnection
from walkeeper_safekeeper.replication.logical_log import LogicalLog
from walkeeper_safekeeper.replication.logical_session import LogicalSession
from walkeeper_safekeeper.replication.login import Login
from walkeeper_safekeeper.replication.wal_stream import StreamLimits

BEYOND = Lsn(15 << 32)
OPTIONS = (("proto_version", "1"), ("publication_names", "p"))


class Confirming(Client):
    """Gets all that is committed, confirms an LSN, and ends the stream."""

    address, port = "", 0

    def __init__(self, kept: Kept, confirmed: Lsn) -> None:
        super().__init__()
        self._kept = kept
        status = StandbyStatus(confirmed, confirmed, confirmed, 0, reply_requested=True)
        self._words = [Message(b"d", status.pack()), Message(b"c", b"")]

    def answer(self, data: bytes) -> None:
        raise AssertionError(f"{data!r} outside of the stream")

    async def next_message(self) -> Message:
        await self._kept.all_sent.wait()
        return self._words.pop(0)

    def payloads(self) -> list[bytes]:
        buffer = MessageBuffer(body_bytes_max=1 << 20)
        buffer.feed(bytes(self.sent))
        found = list[bytes]()
        while (message := buffer.next_message()) is not None:
            found += [message.body] if message.tag == b"d" else []
        return found


async def streamed(kept: Kept, client: Confirming, start_lsn: Lsn) -> Lsn:
    """Stream to the client, and return where its slot is then."""
    slots, logical = kept.slots.slots, LogicalLog(kept.served())
    await logical.known_settings()  # it forgets slots that the log does not have
    await kept.slots.create("s", temporary=False, restart_lsn=Lsn(0x100), pid=1)
    session = LogicalSession(
        logical,
        cast(ClientConnection, client),
        Login("u", "a", "changes", replication=True, logical=True),
        1,
        StreamLimits(),
        now=lambda: 0.0,
    )
    async with asyncio.timeout(LIMIT_S):
        await session.perform(StartLogical("s", start_lsn, OPTIONS))
    return slots.get("s").restart_lsn or Lsn(0)


@pytest.mark.parametrize("start_lsn", [Lsn(0), BEYOND], ids=("from its slot", "from beyond"))
def test_a_slot_stays_within_the_log(start_lsn: Lsn) -> None:
    """The slot went to the requested LSN, and each later consumer of it lost changes."""
    made = Made(6, 30)
    client = Confirming(made, BEYOND)
    slot_lsn = asyncio.run(streamed(made, client, start_lsn))
    *_, last = client.payloads()
    assert Keepalive.unpack(last).wal_end_lsn == slot_lsn
    assert made.transactions[-1][0] <= slot_lsn < BEYOND
    sent_count = sum(payload[:1] == b"w" for payload in client.payloads())
    assert (sent_count == 0) is (start_lsn == BEYOND)


def test_a_consumer_that_asks_for_a_later_lsn_gets_what_is_committed_after_it() -> None:
    made = Made(6)
    for known_lsn, asked_lsn in ((0x100, 20), (made.transactions[20][0], 90)):
        start = made.transactions[asked_lsn][0]
        sent = asyncio.run(consume(made, start, sent_lsn=Lsn(known_lsn)))
        assert understood(sent) == made.transactions[asked_lsn + 1 :]
