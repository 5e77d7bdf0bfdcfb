"""A whole session of a PostgreSQL client, from its first byte to the closed socket.

The input is what the client sends; it reads everything, and leaves when it has nothing more to say.
Promises (replica_session.py): `run` raises no exception. A failure reaches the client with an
SQLSTATE that is not "internal error". Every byte sent is part of a whole message. No slot and no
reader stays in use. Slots outlive the session as their file has them. No WAL beyond commit_lsn is
sent.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
from collections.abc import Iterable, Sequence

from tests.proof.fuzz.contract import Target, require
from tests.proof.fuzz.postgres_wire import (
    CLIENT_BYTES_MAX,
    CLIENT_MESSAGES,
    LOGIN,
    LOGINS,
    STATUS,
    alter_client,
    repair_client,
)
from tests.support.fake_served_log import FIRST_LSN, FakeCatalog, FakeLog
from walkeeper_common.buffers import Buffer
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.client_encoding import UTF8
from walkeeper_common.postgres.pgwire import (
    Message,
    MessageBuffer,
    SqlRefused,
    StartupPacket,
    XLogData,
    error_response,
    message,
    parse_error_fields,
    startup_packet,
    unpack_from_sender,
)
from walkeeper_safekeeper.replication.client_connection import ClientGone
from walkeeper_safekeeper.replication.physical_slots import Slots
from walkeeper_safekeeper.replication.replica_session import ReplicaSession
from walkeeper_safekeeper.replication.transcoding import transcoded_answer
from walkeeper_safekeeper.replication.wal_stream import StreamLimits

WAL = bytes(range(256)) * 40
ROOM_BYTES = 1 << 18
SESSION_S_MAX = 5.0
PID = 7
INTERNAL_ERROR = "XX000"
_LOOP = asyncio.new_event_loop()
atexit.register(_LOOP.close)


class Client:
    """The port of ClientConnection, without a socket."""

    address, port = "127.0.0.1", 5432
    encoding = UTF8

    def __init__(self, data: bytes) -> None:
        self._received = MessageBuffer()
        self._received.feed(data)
        self.sent = bytearray()

    async def next_startup(self) -> StartupPacket:
        packet = self._received.next_startup()
        if packet is None:
            raise ClientGone("closed the connection")
        return packet

    async def next_message(self) -> Message:
        # Others take their turns: WAL is sent while feedback comes in.
        await asyncio.sleep(0)
        received = self._received.next_message()
        if received is None or received.tag == b"X":
            raise ClientGone("closed the connection")
        return received

    @property
    def has_room(self) -> bool:
        return len(self.sent) < ROOM_BYTES

    def send(self, data: bytes) -> None:
        self.sent += data

    def answer(self, data: bytes) -> None:
        self.send(transcoded_answer(data, self.encoding))

    def send_wal(self, buffers: Sequence[Buffer]) -> None:
        self.sent += b"".join(buffers)

    async def drain(self, timeout_s: float) -> None:
        await asyncio.sleep(0)

    def send_fatal(self, error: SqlRefused) -> None:
        self.send(error_response(error, "FATAL"))

    def abort(self) -> None:
        pass

    async def close(self) -> None:
        pass


def run_session(data: bytes) -> None:
    _LOOP.run_until_complete(_session(data))


async def _session(data: bytes) -> None:
    log, client = FakeLog(), Client(data)
    log.append(WAL)
    log.commit(FIRST_LSN + len(WAL) - 100)
    session = ReplicaSession(
        client,  # type: ignore[arg-type]  # as much as is used
        FakeCatalog(log),
        pid=PID,
        limits=StreamLimits(),
        now=lambda: 1e9,
    )
    logging.disable(logging.CRITICAL)
    try:
        await asyncio.wait_for(session.run(), SESSION_S_MAX)
    finally:
        logging.disable(logging.NOTSET)
    _check_sent(bytes(client.sent), log.readable_lsn)
    require(len(log.readers) == 0, "{} stay", list(log.readers))
    held = [slot for slot in log.slots.slots if slot.active_pid is not None or slot.temporary]
    require(not held, "{} stay in use", held)
    await log.slots.close()
    saved = [(slot.name, slot.restart_lsn) for slot in Slots(log.slots_file.data)]
    kept = [(slot.name, slot.restart_lsn) for slot in log.slots.slots]
    require(saved == kept, "saved: {}, in memory: {}", saved, kept)


def _check_sent(sent: bytes, commit_lsn: Lsn) -> None:
    answers = MessageBuffer(body_bytes_max=1 << 20)
    answers.feed(sent.lstrip(b"N"))  # no TLS, no GSSAPI
    while (answer := answers.next_message()) is not None:
        if answer.tag == b"E":
            told = parse_error_fields(answer.body)
            internal = told["C"] == INTERNAL_ERROR and "internal" in told["M"]
            require(not internal, "{}", told)
        elif answer.tag == b"d":
            said = unpack_from_sender(answer.body)
            if isinstance(said, XLogData):
                end = said.start_lsn + len(said.payload)
                require(end <= commit_lsn, "sent up to {}, committed {}", end, commit_lsn)
    require(len(answers) == 0, "{} bytes of no whole message", len(answers))


def _seeds() -> Iterable[bytes]:
    streams = [
        b"CREATE_REPLICATION_SLOT s PHYSICAL RESERVE_WAL\0",
        b"START_REPLICATION SLOT s 0/300000 TIMELINE 1\0",
    ]
    feedback = b"".join(CLIENT_MESSAGES[-7:-5]) + message(b"d", STATUS.pack()) * 3
    for login in LOGINS:
        yield startup_packet(login) + b"".join(CLIENT_MESSAGES[:8])
    yield (
        startup_packet(LOGIN)
        + b"".join(message(b"Q", query) for query in streams)
        + feedback
        + message(b"c")
        + message(b"Q", b"READ_REPLICATION_SLOT s\0")
        + message(b"Q", b"DROP_REPLICATION_SLOT s WAIT\0")
    )
    yield startup_packet(LOGIN) + message(b"Q", b"START_REPLICATION 0/3026C0\0") + feedback
    for sent in CLIENT_MESSAGES:
        yield startup_packet(LOGIN) + sent


SESSION = Target(
    name="pg_session",
    about="a PostgreSQL client's whole session: commands, slots, streaming",
    run=run_session,
    seeds=_seeds,
    bytes_max=CLIENT_BYTES_MAX,
    alter=alter_client,
    repair=repair_client,
)
