"""The primary, as its synchronous standby sees it: the driver's PrimaryPort. An asyncio shell.

It answers keepalives at once and sends a status every second, whatever the safekeepers do. So the
walsender neither times out nor delays `pg_ctl stop -m fast` while a quorum lives.

The report is clamped twice: the core never reports more than a quorum has, and the shell never more
than this connection has received. One status that is too high releases commits without a quorum
until the primary is restarted, even under a later, honest proposer.
(Reference, and measured: SyncRepReleaseWaiters.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import time

from walkeeper_common.errors import Refused, RemoteProtocolError, WalkeeperError
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.operator_text.last_text import LastText
from walkeeper_common.postgres.pgwire import (
    HotStandbyFeedback,
    Keepalive,
    StandbyStatus,
    XLogData,
    unpack_from_sender,
    wal_of,
)
from walkeeper_common.wire.messages import Feedback
from walkeeper_fastpath.ports import Commits, FastStream, StreamEnds
from walkeeper_fastpath.switch import primary_path
from walkeeper_proposer.consensus.proposer_events import (
    Event,
    PrimaryIdentified,
    PrimaryIdentity,
    PrimaryLost,
    PrimaryRead,
    PrimaryReadFailed,
    WalArrived,
)
from walkeeper_proposer.postgres.commit_times import new_commit_times
from walkeeper_proposer.postgres.primary_identity import identify
from walkeeper_proposer.postgres.primary_retention import Retention
from walkeeper_proposer.postgres.replication_connection import (
    SLOT_IN_USE,
    ReplicationConnection,
    SlotMissing,
    SlotUnusable,
    Unavailable,
    WalRemovedOnPrimary,
)
from walkeeper_proposer.postgres.slot_rivals import SlotRivals
from walkeeper_proposer.postgres.standby_feedback import applied_lsn, needed_xmins
from walkeeper_proposer.postgres.stream_ends import SlowEnds

logger = logging.getLogger("walkeeper.primary")

STATUS_S = 1.0
SILENT_STATUSES_ASK = 30  # an idle server says nothing by itself, but answers
RETRY_S, SLOT_RETRY_S = 0.5, 0.2
READ_TIMEOUT_S = 30.0
POSTGRES_EPOCH_S = 946_684_800
GATHERED_BYTES_MAX = 128 << 10  # as one append has at the most
XMIN_GRACE_STATUSES = 15  # a standby connects again within wal_retrieve_retry_interval, 5 s


class Primary:
    """The primary's shell. `run` keeps one connection up; the core requests all the rest."""

    _streamed = "WAL"
    _silent_statuses_first = 60  # as wal_receiver_timeout

    def __init__(
        self,
        dsn: str,
        application_name: str,
        slot: str,
        *,
        apply_quorum: bool,
        on_streaming: Callable[[Lsn], None],
    ) -> None:
        self._dsn, self._application_name, self._slot = dsn, application_name, slot
        self._apply_quorum, self._on_streaming = apply_quorum, on_streaming
        self._feedback: Sequence[Feedback] = ()
        self._xmins = (0, 0)
        self._sent_xmins: tuple[int, int] | None = None
        self._silent_xmins = 0
        self._silent_statuses_max = self._silent_statuses_first
        self._post: Callable[[Event], None]
        self._connection: ReplicationConnection | None = None
        self._group: asyncio.TaskGroup
        self._lost: asyncio.Future[WalkeeperError]
        self._reading: asyncio.Task[None] | None = None
        self._retention = Retention(dsn, slot)
        self.retain = self._retention.retain
        self._rivals = SlotRivals(dsn, slot)
        self.commits: Commits = new_commit_times()
        self._is_streaming = self._is_paused = False
        self._identifying: ReplicationConnection | None = None  # it identifies now
        self._is_asked_again = False
        self._at = self._new_ends()
        self._gathered: list[memoryview] = []  # WAL up to received_lsn, not posted yet
        self._gathered_bytes = 0

    def _new_ends(self) -> StreamEnds:
        make = primary_path()
        if make is None:
            return SlowEnds(self.on_readable)
        return make(
            self,
            StandbyStatus(ZERO_LSN, ZERO_LSN, ZERO_LSN, 0, False).pack(),
            gathered_bytes_max=GATHERED_BYTES_MAX,
            silent_statuses_ask=SILENT_STATUSES_ASK,
        )

    @property
    def spooled_bytes(self) -> int:
        """The bytes of transactions that are open at the primary; a physical log spools none."""
        return 0

    async def run(self, post: Callable[[Event], None]) -> None:
        """Run until cancelled; raise Refused if the operator must change something first."""
        self._post = post
        async with asyncio.TaskGroup() as self._group:
            self._group.create_task(self._send_statuses(), name="status updates")
            last_error = LastText()
            while True:
                error = await self._one_connection()
                if last_error.changes_to(error):
                    logger.warning("%s; retrying", error)
                await asyncio.sleep(RETRY_S)

    async def _one_connection(self) -> WalkeeperError:
        """Connect, identify, serve the core until the connection is lost; returns why."""
        self._lost = asyncio.get_running_loop().create_future()
        try:
            connection = await self._open()
        except Unavailable as unavailable:
            return unavailable
        lost: WalkeeperError
        try:
            identity = await self._identify(connection)
            self._connection = connection
            connection.on_drained, connection.on_lost = self._send_status, self._lose
            self._post(PrimaryIdentified(identity))
            lost = await self._lost
        except Unavailable as unavailable:
            lost = unavailable
        finally:
            self._connection, self._is_streaming = None, False
            self._at.close()
            self.commits.forget()
            self._stop_reading_range()
            self._retention.stop()
            connection.close()
        self._post(PrimaryLost(str(lost)))
        if isinstance(lost, Refused):
            raise lost
        return lost

    async def _open(self) -> ReplicationConnection:
        return await ReplicationConnection.open(self._dsn, self._application_name)

    async def _identify(self, connection: ReplicationConnection) -> PrimaryIdentity:
        return await identify(connection)

    def _lose(self, error: WalkeeperError) -> None:
        if not self._lost.done():
            self._lost.set_result(error)
        if self._connection is not None:
            self._connection.stop_reading()

    def identify(self) -> None:
        """Identify the primary again, on the connection that does not stream yet. If that is under
        way (a slow primary outlasts a candidate), repeat it afterwards: the first answer is older
        than this request."""
        connection = self._connection
        if connection is None:
            return
        if self._identifying is connection:
            self._is_asked_again = True
            return
        self._identifying = connection
        self._group.create_task(self._identify_again(connection), name="identify the primary")

    async def _identify_again(self, connection: ReplicationConnection) -> None:
        try:
            while True:
                self._is_asked_again = False
                identity = await self._identify(connection)
                if connection is not self._connection:
                    return
                if not self._is_asked_again:
                    break
        except WalkeeperError as error:
            if connection is self._connection:
                self._lose(error)
            return
        finally:
            if self._identifying is connection:
                self._identifying = None
        self._post(PrimaryIdentified(identity))

    # The stream

    def stream(self, start_lsn: Lsn, timeline: int) -> None:
        """Send START_REPLICATION; WalArrived follows, or PrimaryLost."""
        connection, self._is_paused = self._connection, False
        if connection is not None:
            starting = self._start_stream(connection, start_lsn, timeline)
            self._group.create_task(starting, name="start streaming")

    async def _start_stream(
        self, connection: ReplicationConnection, start_lsn: Lsn, timeline: int
    ) -> None:
        command = f'START_REPLICATION SLOT "{self._slot}" PHYSICAL {start_lsn} TIMELINE {timeline}'
        if await self._start_copy(connection, command):
            self._at.received_lsn = start_lsn
            self._started(connection, start_lsn, timeline)
            self._retention.start(self._group, connection.backend_pid, self._post)

    async def _start_copy(self, connection: ReplicationConnection, command: str) -> bool:
        """Start streaming; return True if it streams on the connection still in use."""
        try:
            while connection is self._connection:
                try:
                    await connection.start_copy(command)
                    self._rivals.own(connection.backend_pid)
                    break
                except SlotMissing:
                    # A promoted server: physical slots are not copied to standbys. WAL before
                    # this LSN is the safekeepers'.
                    made = f'CREATE_REPLICATION_SLOT "{self._slot}" PHYSICAL RESERVE_WAL'
                    await connection.query(made)
                    logger.info("made the replication slot %s on this server", self._slot)
                except SlotUnusable as error:
                    await self._drop_if_lost(connection, error)
                except Unavailable as error:
                    if error.sqlstate != SLOT_IN_USE:
                        raise
                    # We were elected, so the slot's holder is deposed; its walsender may
                    # not know for wal_sender_timeout when its host vanished without a FIN.
                    logger.warning("%s; ending that connection", error)
                    await self._rivals.free_slot()
                    await asyncio.sleep(SLOT_RETRY_S)
        except WalkeeperError as error:
            if connection is self._connection:
                self._lose(error)
            return False
        return connection is self._connection

    async def _drop_if_lost(self, connection: ReplicationConnection, error: SlotUnusable) -> None:
        """Drop a slot that max_slot_wal_keep_size has invalidated, and that retains no WAL;
        PostgreSQL 18 refuses it. Raise `error` for any other reason."""
        try:
            found = await connection.query(f'READ_REPLICATION_SLOT "{self._slot}"')
        except Refused:  # a logical one
            raise error from None
        if [row[:2] for row in found] != [["physical", None]]:
            raise error
        await connection.query(f'DROP_REPLICATION_SLOT "{self._slot}"')
        logger.warning("dropped the replication slot %s, which was lost: %s", self._slot, error)

    def _started(self, connection: ReplicationConnection, start_lsn: Lsn, timeline: int) -> None:
        # Kept as far as it is this stream's. A commit may wait for an LSN that was reported while
        # there was no connection, and no new WAL may come.
        self._at.flush_lsn = min(self._at.flush_lsn, start_lsn)
        self._at.apply_lsn = min(self._at.apply_lsn, start_lsn)
        self._at.open(connection, self.commits)
        self._is_streaming = True
        what = f"started streaming {self._streamed} from primary"
        logger.info("%s at %s on timeline %s", what, start_lsn, timeline)
        # The slot may keep an xmin of an older proposer's standbys: it is replaced, or cleared when
        # standbys have had the time to connect again.
        self._sent_xmins, self._silent_xmins = None, XMIN_GRACE_STATUSES
        self._send_status()
        self._on_streaming(start_lsn)
        if not self._is_paused:
            connection.start_reading(self._at.on_readable)
            self.on_readable()  # libpq may have read the first bytes already

    def on_readable(self) -> None:
        """Read all that is there on the slow path."""
        self._at.silent_statuses = 0
        connection = self._connection
        if connection is None:
            return
        try:
            try:
                connection.receive_all(self._on_copy_data)
            finally:
                self._deliver()
        except WalkeeperError as error:
            self._lose(error)

    def on_rest(self, payload: memoryview) -> None:
        """Take a CopyData that the fast path leaves, and all after it."""
        try:
            try:
                self._on_copy_data(payload)
            finally:
                self._deliver()
        except WalkeeperError as error:
            self._lose(error)
            return
        self.on_readable()

    def on_wal(self, begin_lsn: int, wal: memoryview) -> None:
        """Post WAL that the fast path has received, and could not send."""
        self._post(WalArrived(Lsn(begin_lsn), wal))

    def on_stream_over(self, error: Exception | None) -> None:
        """Lose the connection by libpq's error, or because the stream has ended."""
        connection = self._connection
        if connection is not None:
            self._lose(connection.over(error))

    def _on_copy_data(self, payload: memoryview) -> None:
        data = wal_of(payload)
        if data is None:
            message = unpack_from_sender(payload)
            if isinstance(message, Keepalive) and message.reply_requested:
                self._send_status()
            return
        start_lsn, wal = data
        if start_lsn != self._at.received_lsn:
            raise RemoteProtocolError(
                f"the primary sent WAL at {Lsn(start_lsn)}, expected {Lsn(self._at.received_lsn)}"
            )
        if self._gathered_bytes + len(wal) > GATHERED_BYTES_MAX:
            self._deliver()  # a walsender's bulk messages are that long, and never copied
        self._at.received_lsn = Lsn(start_lsn + len(wal))
        self._gathered.append(wal)
        self._gathered_bytes += len(wal)

    def _deliver(self) -> None:
        """Post the gathered WAL in one piece: a copy of a few small messages costs far less than
        sending each to every safekeeper."""
        gathered, size = self._gathered, self._gathered_bytes
        if not gathered:
            return
        self._gathered, self._gathered_bytes = [], 0
        wal = gathered[0] if len(gathered) == 1 else memoryview(b"".join(gathered))
        self.commits.on_wal(self._at.received_lsn)
        self._post(WalArrived(Lsn(int(self._at.received_lsn) - size), wal))

    def pause(self) -> None:
        """Read no more, also of a stream that is being started; statuses go on, so the walsender
        does not time out."""
        self._is_paused = True
        if self._connection is not None:
            self._connection.stop_reading()

    def resume(self) -> None:
        connection, self._is_paused = self._connection, False
        if connection is not None and self._is_streaming:
            connection.start_reading(self._at.on_readable)
            asyncio.get_running_loop().call_soon(self._read_on, connection)

    def _read_on(self, connection: ReplicationConnection) -> None:
        if connection is self._connection and self._is_streaming and connection.is_reading:
            self.on_readable()

    def stream_first(self, stream: FastStream) -> None:
        """Give the stream's WAL to the fast path of the leader, and let it report."""
        self._at.stream_first(stream)

    def report(self, commit_lsn: Lsn, feedback: Sequence[Feedback]) -> None:
        """Report write = flush = apply = commit_lsn at once (R12)."""
        at = self._at
        at.flush_lsn = at.apply_lsn = flush_lsn = Lsn(max(at.flush_lsn, commit_lsn))
        if self._apply_quorum:
            at.feedback = feedback  # the fast path may go on with this report
        else:
            at.apply_lsn = applied_lsn(flush_lsn, feedback)
        if feedback != self._feedback:
            self._feedback, self._xmins = feedback, needed_xmins(feedback)
        self._send_status()
        self.commits.on_commit(commit_lsn)

    def _send_status(self) -> None:
        if self._connection is None or not self._is_streaming:
            return
        flush_lsn = Lsn(min(self._at.flush_lsn, self._at.received_lsn))
        apply_lsn = Lsn(min(self._at.apply_lsn, flush_lsn))
        asks = self._at.silent_statuses >= SILENT_STATUSES_ASK
        status = StandbyStatus(flush_lsn, flush_lsn, apply_lsn, _now_us(), asks)
        try:
            self._connection.send(status.pack())  # if it is full, on_drained sends the newest
        except Unavailable as error:
            self._lose(error)

    async def _send_statuses(self) -> None:
        while True:
            await asyncio.sleep(STATUS_S)
            self._count_silence()
            self._send_status()
            self._send_xmins()

    def _count_silence(self) -> None:
        """Count status updates without an answer, since a proxy may answer TCP for a server that
        is gone. While we do not read, the silence is ours."""
        connection = self._connection
        if connection is None or not (self._is_streaming and connection.is_reading):
            self._at.silent_statuses = 0
            return
        self._at.silent_statuses += 1
        if self._at.silent_statuses > self._silent_statuses_max:
            self._lose(Unavailable(self._on_silence()))

    def _on_silence(self) -> str:
        """Return the text for a silence that lasted too long."""
        return f"nothing came from the primary for {self._silent_s_max:g} s"

    @property
    def _silent_s_max(self) -> float:
        return self._silent_statuses_max * STATUS_S

    def _send_xmins(self) -> None:
        """Send changed hot_standby_feedback of the standbys of the safekeepers."""
        if self._connection is None or not self._is_streaming or self._xmins == self._sent_xmins:
            return
        if self._sent_xmins is None and self._xmins == (0, 0) and self._silent_xmins:
            self._silent_xmins -= 1
            return
        xmin, catalog_xmin = self._xmins
        low = 0xFFFFFFFF
        said = HotStandbyFeedback(
            _now_us(), xmin & low, xmin >> 32, catalog_xmin & low, catalog_xmin >> 32
        )
        try:
            if self._connection.send(said.pack()):
                self._sent_xmins = self._xmins
        except Unavailable as error:
            self._lose(error)

    # Reading a range, to compare it

    def read(self, begin_lsn: Lsn, end_lsn: Lsn, timeline: int) -> None:
        """Read a range; PrimaryRead pieces follow, or PrimaryReadFailed. End an earlier read."""
        self._stop_reading_range()
        reading = self._read(begin_lsn, end_lsn, timeline)
        self._reading = self._group.create_task(reading, name="read the primary's WAL")

    def _stop_reading_range(self) -> None:
        """Cancel the read; the core would take its pieces for those of the next one."""
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self, begin_lsn: Lsn, end_lsn: Lsn, timeline: int) -> None:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                connection = await ReplicationConnection.open(
                    self._dsn, f"{self._application_name}_compare"
                )
                try:
                    await self._read_through(connection, begin_lsn, end_lsn, timeline)
                finally:
                    connection.close()
        except TimeoutError:
            self._post(PrimaryReadFailed("reading the primary's WAL took too long", False))
        except WalkeeperError as error:
            removed = isinstance(error, WalRemovedOnPrimary)
            self._post(PrimaryReadFailed(str(error), removed))

    async def _read_through(
        self, connection: ReplicationConnection, begin_lsn: Lsn, end_lsn: Lsn, timeline: int
    ) -> None:
        await connection.start_copy(f"START_REPLICATION PHYSICAL {begin_lsn} TIMELINE {timeline}")
        next_lsn = begin_lsn
        while next_lsn < end_lsn:
            payload = connection.receive()
            if payload is None:
                await connection.wait_readable()
                continue
            data = unpack_from_sender(payload)
            if isinstance(data, XLogData):
                piece = data.payload[: end_lsn - next_lsn]
                next_lsn = next_lsn + len(piece)
                self._post(PrimaryRead(next_lsn - len(piece), piece))


def _now_us() -> int:
    """Return the time of PostgreSQL's clock, in microseconds since 2000-01-01 UTC."""
    return int((time() - POSTGRES_EPOCH_S) * 1e6)
