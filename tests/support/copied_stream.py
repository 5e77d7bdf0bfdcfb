"""A leader of three members, with its primary's shell on a stream of CopyData without a socket.

shell = StreamedLeader(is_fast=True)
shell.arrive(b"wal", KEEPALIVE)       one read of the socket
shell.acknowledge(0, lsn)             one ack, the way that the link's connection gets it
shell.statuses                        the statuses for PostgreSQL
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from psycopg import errors as pg_errors

from tests.proposer.test_fast_stream import Leading, said
from tests.support.frames import Answers, frames_of, message_in
from tests.support.scenario_words import CREATION_LSN
from walkeeper_common.errors import WalkeeperError
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgwire import Keepalive, StandbyStatus, XLogData
from walkeeper_common.wire.messages import AppendRequest, Feedback
from walkeeper_fastpath.ports import FastStream
from walkeeper_proposer.consensus.proposer_events import Received
from walkeeper_proposer.postgres.commit_times import CommitTimes
from walkeeper_proposer.postgres.primary import Primary
from walkeeper_proposer.postgres.replication_connection import ReplicationConnection
from walkeeper_proposer.postgres.stream_ends import SlowEnds

KEEPALIVE = Keepalive(CREATION_LSN, 0, False).pack()
ASKS = Keepalive(CREATION_LSN, 0, True).pack()


def xlog(begin_lsn: int, wal: bytes) -> bytes:
    """Return the payload of a CopyData with WAL."""
    return XLogData.LAYOUT.pack(XLogData.TAG, begin_lsn, begin_lsn + len(wal), 0) + wal


class Socket:
    """libpq's connection, and the loop that watches it."""

    def __init__(self) -> None:
        self.copied, self.put = deque[bytes](), list[bytes]()
        self.is_full = self.is_lost = self.has_ended = False
        self.writer: Callable[[], object] | None = None

    def consume_input(self) -> None:
        if self.is_lost:
            raise pg_errors.OperationalError("server closed the connection unexpectedly")

    def get_copy_data(self, _is_async: int) -> tuple[int, memoryview]:
        if not self.copied:
            return -1 if self.has_ended else 0, memoryview(b"")
        payload = memoryview(self.copied.popleft())
        return len(payload), payload

    def put_copy_data(self, payload: bytes) -> None:
        if self.is_lost:
            raise pg_errors.OperationalError("no connection to the server")
        self.put.append(payload)

    def flush(self) -> int:
        return int(self.is_full)

    def get_result(self) -> None:
        """Return no result: the server says nothing of the end."""

    def add_writer(self, _descriptor: int, writer: Callable[[], object]) -> None:
        self.writer = writer

    def remove_writer(self, _descriptor: int) -> None:
        self.writer = None

    def drain(self) -> None:
        """Let the socket take all, and the loop see it."""
        self.is_full = False
        if self.writer is not None:
            self.writer()


_LOOP = asyncio.new_event_loop()


async def _connect(socket: Socket) -> ReplicationConnection:
    return ReplicationConnection(socket)  # type: ignore[arg-type]


class _Shell(Primary):
    """The shell, of which the test keeps the end of its connection."""

    def __init__(self, socket: Socket, *, is_fast: bool) -> None:
        super().__init__("", "main", "main", apply_quorum=True, on_streaming=lambda _: None)
        self.lost = list[str]()
        if not is_fast:
            self._at, self.commits = SlowEnds(self.on_readable), CommitTimes()

        self._connection = connection = _LOOP.run_until_complete(_connect(socket))
        connection._loop = socket  # type: ignore[assignment]
        connection.on_drained, connection.on_lost = self._send_status, self._lose
        self._at.received_lsn = CREATION_LSN
        self._at.open(connection, self.commits)
        self._is_streaming = True

    def _lose(self, error: WalkeeperError) -> None:
        self.lost.append(str(error))

    def ends(self) -> tuple[int, ...]:
        at = self._at
        return at.received_lsn, at.flush_lsn, at.apply_lsn, at.silent_statuses


class StreamedLeader:
    """A leader that streams from this primary; its fast path is on or off."""

    def __init__(self, *, is_fast: bool = True) -> None:
        self.leading = Leading(is_fast=is_fast)
        self.socket = Socket()
        self.shell = _Shell(self.socket, is_fast=is_fast)
        self.shell._post = self.leading.driver.post
        self.first = dict[int, Answers]()
        self.leading.driver._primary = self
        self.leading.around.answer = self._answer  # type: ignore[method-assign]

    def _answer(self, link: int) -> Answers:
        send = self.leading.around.send
        answers = Answers(lambda frame, size: send(link, message_in(frame, size)))
        return self.first.setdefault(link, answers)

    # The driver's primary: the shell, without its tasks.

    def report(self, commit_lsn: Lsn, feedback: Sequence[Feedback]) -> None:
        self.shell.report(commit_lsn, feedback)

    def stream_first(self, stream: FastStream) -> None:
        self.shell.stream_first(stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.leading.around, name)

    # The events

    def arrive(self, *payloads: bytes) -> None:
        """Let the socket have these, and the loop see it."""
        self.socket.copied += payloads
        self.shell._at.on_readable()

    def wal(self, *sizes: int) -> list[bytes]:
        """Return the CopyData of the next WAL."""
        begin, payloads = self.shell._at.received_lsn, list[bytes]()
        for size in sizes:
            payloads.append(xlog(begin, bytes([size % 251]) * size))
            begin += size
        return payloads

    def acknowledge(self, link: int, flush_lsn: int, feedback: Feedback | None = None) -> None:
        """Let the link's connection receive an ack."""
        member, driver = self.leading.core.members[link], self.leading.driver
        ack = self.leading.ack(link, Lsn(flush_lsn), feedback or member.feedback)
        memory, answers = frames_of(ack), self.first.get(link)
        first = answers.first if answers is not None else None
        if first is not None and first(memory, len(memory)):
            return
        if not driver.acknowledge_at_once(link, memory, len(memory)):
            driver.post(Received(link, ack))

    def commit(self, size: int) -> Lsn:
        """Receive so much WAL, and two acks of it."""
        self.arrive(*self.wal(size))
        end = Lsn(self.shell._at.received_lsn)
        for link in (0, 1):
            self.acknowledge(link, end)
        return end

    def settle(self) -> None:
        self.leading.settle()

    @property
    def statuses(self) -> list[StandbyStatus]:
        """Return the statuses for PostgreSQL, without their times."""
        return [replace(StandbyStatus.unpack(one), sent_at_us=0) for one in self.socket.put]

    def all_facts(self) -> tuple[object, ...]:
        """Return all that differs between two leaders that went different ways."""
        samples = self.shell.commits.times.buckets()[-1]
        sent = [b"".join(self._payloads(link)) for link in range(3)]
        shell = self.statuses, self.shell.ends(), self.shell.lost, samples
        return shell, sent, said(self.leading)

    def _payloads(self, link: int) -> Iterator[bytes]:
        for one in self.leading.around.said:
            if isinstance(one, tuple) and one[0] == link and isinstance(one[1], AppendRequest):
                yield bytes(one[1].payload)


def steady_leader(*, is_fast: bool = True) -> StreamedLeader:
    """Return a leader whose next commit is the fast path's alone; it begins at CREATION_LSN + 100.

    PostgreSQL has got the status of the commit before."""
    leader = StreamedLeader(is_fast=is_fast)
    leader.commit(100)
    leader.settle()
    leader.leading.around.said.clear()
    leader.socket.put.clear()
    return leader
