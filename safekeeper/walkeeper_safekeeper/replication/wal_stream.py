"""START_REPLICATION: committed WAL to one client, for as long as it answers.

    check_start(log, lsn, timeline, …)  every reason to refuse, before CopyBoth
    await WalStream(…).run()            returns when both sides have sent CopyDone

Contract: only committed records are sent, and only whole ones (docs/protocol.md R13). The committed
part of an unfinished one may be taken back. A message has at most 120 KiB, crosses no segment and
ends at a record's end or at a page boundary (R21, `message_end`). A client that lags is sent the
messages of one read together, while the next read is under way. A client that does not take its
WAL or does not answer for `sender_timeout_s` is dropped. Only its own stream waits for a client. A
stream of a historic timeline ends at the fork, and so does one whose timeline becomes historic
while it runs.

There are three tasks. The first reads the client, and answers a request for a keepalive at once.
The others send, and end the stream when the log demands it. A slot moves in memory alone, since the
log saves the slots before it removes WAL. This follows walsender.c with one deviation. A start
beyond commit_lsn, but not beyond the next segment, waits with keepalives instead of failing. A
standby that asks a lagging safekeeper would otherwise loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn, segment_name
from walkeeper_common.postgres.pgwire import (
    INT8_OID,
    UNIX_EPOCH_TO_2000_US,
    Column,
    HotStandbyFeedback,
    Keepalive,
    SqlRefused,
    StandbyStatus,
    XLogData,
    command_complete,
    copy_both_response,
    copy_data,
    copy_done,
    result,
    unpack_from_receiver,
)
from walkeeper_common.timelines import parse_timeline_file
from walkeeper_safekeeper.replication.client_connection import ClientConnection, SilentClient
from walkeeper_safekeeper.replication.served_log import Reader, ReaderState, ServedLog

# A client's libpq receives into a buffer of the least power of two that holds a message. It moves
# the part of the next message that the buffer holds as well. That is 8 KiB for messages of 120 KiB,
# and nearly the whole next message for those of 128 KiB.
CHUNK_BYTES_MAX = 120 << 10
# One read may wait for a thread, and one send wakes the client.
PIECE_BYTES_MAX = 4 * CHUNK_BYTES_MAX


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Times of a connection, named as PostgreSQL's settings where it has them."""

    keepalive_interval_s: float = 10.0
    sender_timeout_s: float = 60.0
    authentication_timeout_s: float = 60.0


class StreamEnded(Exception):
    """The log has truncated WAL that was sent, so the client must reconnect and start again."""


@dataclass(frozen=True, slots=True)
class Fork:
    """Where a timeline ended, and which one goes on there."""

    lsn: Lsn
    next_timeline: int


def fork_of(log: ServedLog, timeline: int) -> Fork | None:
    """Return the fork that ends the timeline, or None for the current one.

    Raise XX000 for a timeline that this log has never been on.
    """
    if timeline == log.timeline:
        return None
    parents = parse_timeline_file(log.timeline_history(log.timeline) or b"")
    successors = [parent for parent, _ in parents[1:]] + [log.timeline]
    for (parent, fork_lsn), successor in zip(parents, successors, strict=False):
        if parent == timeline:
            return Fork(fork_lsn, successor)
    raise SqlRefused("XX000", f"requested timeline {timeline} is not in this server's history")


def check_start(
    log: ServedLog, start_lsn: Lsn, timeline: int, *, is_elsewhere: bool = False
) -> None:
    """Raise SqlRefused, with a walsender's text, for each reason to refuse a stream.

    With `is_elsewhere` another member holds the WAL at start_lsn."""
    fork = fork_of(log, timeline)
    if fork is not None and start_lsn > fork.lsn:
        raise SqlRefused(
            "XX000",
            f"requested starting point {start_lsn} on timeline {timeline} is not in this "
            "server's history",
            detail=f"This server's history forked from timeline {timeline} at {fork.lsn}.",
        )
    if start_lsn < log.oldest_lsn and not is_elsewhere:
        raise wal_removed(log, start_lsn, timeline)
    next_segment = log.readable_lsn.round_down(log.segment_bytes) + log.segment_bytes
    if start_lsn > log.readable_lsn and start_lsn >= next_segment + log.segment_bytes:
        raise SqlRefused(
            "XX000",
            f"requested starting point {start_lsn} is ahead of the WAL flush position of this "
            f"server {log.readable_lsn}",
        )


def wal_removed(log: ServedLog, lsn: Lsn, timeline: int) -> SqlRefused:
    """Return the error after which a standby falls back to its restore_command."""
    name = segment_name(timeline, lsn, log.segment_bytes)
    return SqlRefused(
        "58P01",
        f"requested WAL segment {name} has already been removed",
        hint=f"The oldest WAL kept here is at {log.oldest_lsn}: take older WAL from the archive "
        "(restore_command), or make the standby anew.",
    )


def message_end(
    begin_lsn: Lsn, whole_lsn: Lsn, *, segment_bytes: int, bytes_max: int = CHUNK_BYTES_MAX
) -> Lsn:
    """Return where the message that begins at begin_lsn ends; whole_lsn ends a record or a segment.

    A standby's replay wakes after each message and takes the rest of the page at a record's start
    for granted. A message that cannot reach whole_lsn is therefore rounded down to a page, as
    XLogSendPhysical in walsender.c does it (R21). The message is never empty.
    """
    assert begin_lsn < whole_lsn, f"{begin_lsn=} {whole_lsn=}"
    begin, end = int(begin_lsn), int(whole_lsn)  # plain numbers, as an Lsn's arithmetic is slow
    longest_end = begin + bytes_max
    if end > longest_end:
        end = longest_end - longest_end % WAL_PAGE_BYTES
    return Lsn(min(end, begin - begin % segment_bytes + segment_bytes))


class WalStream:
    """One START_REPLICATION. Call `run` once."""

    def __init__(
        self,
        log: ServedLog,
        client: ClientConnection,
        reader: Reader,
        timeline: int,
        *,
        limits: StreamLimits,
        now: Callable[[], float],
    ) -> None:
        self._log, self._client, self._reader = log, client, reader
        self._timeline = timeline
        self._limits, self._now = limits, now
        self._clock = asyncio.get_running_loop().time
        self._heard_at_s = self._sent_at_s = self._clock()
        self._ping_sent = False
        self._keepalive_owed = False
        self._copy_done_sent = False
        self._coming: asyncio.Future[Buffer] | Buffer | None = None  # WAL from reader.sent_lsn on
        self._ended = asyncio.Event()
        reader.on_end = self._ended.set

    async def run(self) -> None:
        """Stream, and send both results after it; raise ClientGone, SilentClient, StreamEnded, …"""
        fork = fork_of(self._log, self._timeline)
        if fork is None or self._reader.begin_lsn < fork.lsn:
            await self._copied()
            fork = fork_of(self._log, self._timeline)
        if fork is None:
            self._client.send(command_complete("START_STREAMING"))
        else:
            columns = (Column("next_tli", INT8_OID), Column("next_tli_startpos"))
            row = (str(fork.next_timeline), str(fork.lsn))
            self._client.send(result(columns, [row], "START_STREAMING"))
        self._client.send(command_complete("START_REPLICATION"))

    async def _copied(self) -> None:
        """Run the whole CopyBoth phase."""
        self._client.send(copy_both_response())
        try:
            await self._copy()
        except ExceptionGroup as group:
            # Each task has a reason of its own to end; a broken invariant of ours comes first.
            broken = (e for e in group.exceptions if isinstance(e, AssertionError))
            raise next(broken, group.exceptions[0]) from None
        finally:
            await self._drop_coming()

    async def _copy(self) -> None:
        """Copy until the client's CopyDone. Ours goes out before it (at a fork) or after it."""
        async with asyncio.TaskGroup() as group:
            name = f"{self._reader.application_name} {self._reader.pid}"
            sender = group.create_task(self._send(), name=f"send WAL to {name}")
            watcher = group.create_task(self._watch_end(), name=f"end of {name}")
            await self._receive()
            for task in (sender, watcher):
                task.cancel()
        if not self._copy_done_sent:
            self._client.send(copy_done())

    async def _receive(self) -> None:
        """Process feedback until the client's CopyDone."""
        while True:
            received = await self._client.next_message()
            self._heard_at_s, self._ping_sent = self._clock(), False
            match received.tag:
                case b"d":
                    self._on_feedback(unpack_from_receiver(received.body))
                case b"c":
                    return
                case tag:
                    raise RemoteProtocolError(f"invalid standby message type {tag!r}")

    def _on_feedback(self, said: StandbyStatus | HotStandbyFeedback) -> None:
        reader = self._reader
        if isinstance(said, HotStandbyFeedback):
            reader.xmin = _full_xid(said.xmin_epoch, said.xmin)
            reader.catalog_xmin = _full_xid(said.catalog_xmin_epoch, said.catalog_xmin)
            self._log.readers.on_feedback()
            return
        reader.write_lsn, reader.flush_lsn = said.write_lsn, said.flush_lsn
        reader.replay_lsn, reader.reply_time_us = said.replay_lsn, said.sent_at_us
        self._log.readers.on_feedback()
        if said.reply_requested:
            self._answer_soon()
        confirmed = min(reader.confirmed_lsn, self._log.readable_lsn)
        if reader.slot is not None and confirmed:
            self._log.slots.slots.confirm(reader.slot, confirmed, pid=reader.pid)

    def _answer_soon(self) -> None:
        """Send a keepalive now, or let the sender do it when the client has room.

        A client that requests answers and never reads must not fill our memory.
        """
        if self._client.has_room:
            self._send_keepalive(reply_requested=False)
        else:
            self._keepalive_owed = True

    async def _watch_end(self) -> None:
        """End the stream at once, also while it waits for WAL or for the client."""
        await self._ended.wait()
        raise StreamEnded(self._reader.end_reason)

    async def _send(self) -> None:
        """Send WAL and keepalives until a fork, and then wait for the client's CopyDone."""
        reader, log = self._reader, self._log
        reader.state = ReaderState.CATCHUP
        while True:
            fork, whole_lsn = fork_of(log, self._timeline), log.whole_lsn
            end_lsn = whole_lsn if fork is None else min(whole_lsn, fork.lsn)
            if log.readable_lsn < reader.promised_lsn:
                raise StreamEnded(
                    f"{log.readable_lsn} is committed, {reader.promised_lsn} was sent"
                )
            if fork is not None and reader.sent_lsn >= fork.lsn:
                break
            if reader.sent_lsn < end_lsn:
                await self._send_piece(end_lsn)
            else:
                reader.state = ReaderState.STREAMING
                await log.wait_for_whole(reader.sent_lsn, self._until_next_duty_s())
            await self._do_duties()
        self._client.send(copy_done())
        self._copy_done_sent = True
        await asyncio.sleep(self._limits.sender_timeout_s)
        raise SilentClient("no CopyDone")

    async def _send_piece(self, end_lsn: Lsn) -> None:
        """Send a piece of what lies below end_lsn in messages, while the piece after it is read."""
        reader, coming = self._reader, self._coming
        begin, self._coming = reader.sent_lsn, None
        if coming is None:
            coming = self._reading(begin, end_lsn)
        wal = memoryview(await coming if isinstance(coming, asyncio.Future) else coming)
        if reader.end_reason:
            raise StreamEnded(reader.end_reason)
        end = begin + len(wal)
        assert begin < end == reader.promised_lsn, f"{begin=} {end=} {reader.promised_lsn=}"
        self._client.send_wal([*self._messages(begin, wal)])
        reader.sent_lsn = end
        self._sent_at_s = self._clock()
        if end < end_lsn:
            self._coming = self._reading(end, end_lsn)
        await self._client.drain(self._limits.sender_timeout_s)

    def _messages(self, begin: Lsn, wal: memoryview) -> Iterator[Buffer]:
        """Yield the header and the WAL of each message by turns. The WAL is not copied."""
        end, lsn = begin + len(wal), begin
        wal_end_lsn, sent_at_us = max(end, self._log.readable_lsn), self._now_us()
        while lsn < end:
            until = message_end(lsn, end, segment_bytes=self._log.segment_bytes)
            yield XLogData.pack_header(
                start_lsn=lsn,
                wal_end_lsn=wal_end_lsn,
                sent_at_us=sent_at_us,
                payload_bytes=until - lsn,
            )
            yield wal[lsn - begin : until - begin]
            lsn = until

    def _reading(self, begin: Lsn, end_lsn: Lsn) -> asyncio.Future[Buffer] | Buffer:
        """Read as many messages at once as PIECE_BYTES_MAX has room for.

        The end is promised before the read. A truncation during the read, or before all is sent,
        then ends this connection. The bytes that it replaced are never sent. WAL in the page cache
        needs no task and no wait.
        """
        segment, most = self._log.segment_bytes, PIECE_BYTES_MAX
        end = message_end(begin, end_lsn, segment_bytes=segment, bytes_max=most)
        self._reader.promised_lsn = end
        wal = self._log.read_cached(begin, end)
        return asyncio.ensure_future(self._log.read_committed(begin, end)) if wal is None else wal

    async def _drop_coming(self) -> None:
        """End the read that is under way, and pass over what it failed of."""
        if isinstance(self._coming, asyncio.Future):
            self._coming.cancel()
            await asyncio.gather(self._coming, return_exceptions=True)

    def _until_next_duty_s(self) -> float:
        """Return the time until a keepalive, a ping or the end of the client's time is due."""
        now_s, timeout_s = self._clock(), self._limits.sender_timeout_s
        keepalive_s = self._sent_at_s + self._limits.keepalive_interval_s
        answer_s = self._heard_at_s + (timeout_s if self._ping_sent else timeout_s / 2)
        return max(min(keepalive_s, answer_s) - now_s, 0.0)

    async def _do_duties(self) -> None:
        """Send the keepalives that are due; raise SilentClient when the client's time is over."""
        now_s, timeout_s = self._clock(), self._limits.sender_timeout_s
        silent_s = now_s - self._heard_at_s
        if silent_s >= timeout_s:
            raise SilentClient("does not answer")
        ping = silent_s >= timeout_s / 2 and not self._ping_sent
        due = now_s - self._sent_at_s >= self._limits.keepalive_interval_s
        if ping or due or self._keepalive_owed:
            self._keepalive_owed = False
            self._ping_sent = self._ping_sent or ping
            self._send_keepalive(reply_requested=ping)
            await self._client.drain(self._limits.sender_timeout_s)

    def _send_keepalive(self, *, reply_requested: bool) -> None:
        wal_end_lsn = min(self._reader.sent_lsn, self._log.readable_lsn)
        keepalive = Keepalive(wal_end_lsn, self._now_us(), reply_requested)
        self._client.send(copy_data(keepalive.pack()))
        self._sent_at_s = self._clock()

    def _now_us(self) -> int:
        return int(self._now() * 1_000_000) - UNIX_EPOCH_TO_2000_US


def _full_xid(epoch: int, xid: int) -> int:
    """Return 64 bits, so that horizons compare across a wraparound, or 0 for none."""
    return epoch << 32 | xid if xid else 0
