"""The log as its PostgreSQL clients see it, and its readers as the log sees them.

`ServedLog` is a port, which the daemon provides. `Readers` is ours. It has one Reader
for each connection that streams, with pg_stat_replication's columns for `walkeeper status`. A
Reader has the position from which its client still needs WAL (docs/protocol.md R14). This module
does no I/O and never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from walkeeper_common.buffers import Buffer
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.quorum import LogKind
from walkeeper_safekeeper.replication.durable_slots import DurableSlots


class ReaderState(Enum):
    """pg_stat_replication.state."""

    STARTUP = "startup"
    CATCHUP = "catchup"
    STREAMING = "streaming"


@dataclass(slots=True)
class Reader:
    """One streaming connection; the LSNs are those that pg_stat_replication shows on a primary.

    `promised_lsn` is the end of the WAL that was sent on this connection, or is being read for it.
    A truncation below it ends the connection by `end`, before the reader can learn other bytes.
    """

    pid: int
    user: str
    application_name: str
    client_addr: str
    client_port: int
    begin_lsn: Lsn
    slot: str | None
    state: ReaderState = ReaderState.STARTUP
    sent_lsn: Lsn = ZERO_LSN
    write_lsn: Lsn = ZERO_LSN
    flush_lsn: Lsn = ZERO_LSN
    replay_lsn: Lsn = ZERO_LSN
    promised_lsn: Lsn = ZERO_LSN
    reply_time_us: int = 0  # the receiver's clock, microseconds since 2000-01-01 UTC
    xmin: int = 0  # hot_standby_feedback, epoch and xid in 64 bits; 0 when it is off
    catalog_xmin: int = 0
    end_reason: str = ""  # if set, the stream sends nothing more
    on_end: Callable[[], None] = lambda: None

    def end(self, reason: str) -> None:
        """End the connection. WAL that is being read for it is not sent any more."""
        self.end_reason = reason
        self.on_end()

    @property
    def confirmed_lsn(self) -> Lsn:
        """The end of our WAL that the reader reports as flushed, never past our sent_lsn."""
        return min(self.flush_lsn, self.sent_lsn)

    @property
    def retention_lsn(self) -> Lsn:
        """WAL from here on is kept while the reader is connected.

        Without a slot and --synchronous, pg_receivewal always reports flush 0/0. In that case its
        write position counts, since otherwise its connection would keep WAL for ever.
        """
        has = self.flush_lsn or self.write_lsn
        return max(self.begin_lsn, min(has, self.sent_lsn))


@dataclass(slots=True)
class Readers:
    """The streaming connections of one log."""

    _by_pid: dict[int, Reader] = field(default_factory=dict)
    # called when a reader has sent feedback or has left
    on_feedback: Callable[[], None] = lambda: None

    def register(self, reader: Reader) -> None:
        """Add a reader, whose position counts from now on."""
        assert reader.pid not in self._by_pid, f"{reader.pid=} streams twice"
        self._by_pid[reader.pid] = reader

    def unregister(self, reader: Reader) -> None:
        """Remove a reader that has ended."""
        del self._by_pid[reader.pid]
        self.on_feedback()

    def __iter__(self) -> Iterator[Reader]:
        return iter(sorted(self._by_pid.values(), key=lambda reader: reader.pid))

    def __len__(self) -> int:
        return len(self._by_pid)

    def retention_lsn(self) -> Lsn | None:
        """Return the least position that a connected reader needs, or None without readers."""
        return min((reader.retention_lsn for reader in self._by_pid.values()), default=None)

    def end_those_sent_beyond(self, lsn: Lsn) -> None:
        """End the readers that were sent WAL beyond `lsn`.

        Call it with a truncation, before other bytes can be committed (R7).
        """
        for reader in self:
            if reader.promised_lsn > lsn:
                reader.end(f"the log was truncated to {lsn}, below what this connection was sent")


class ServedLog(Protocol):
    """One log, as its PostgreSQL clients see it.

    `timeline` is that of the WAL at readable_lsn. It changes before readable_lsn passes the fork,
    and its history file is here by then. On every timeline the log is one sequence of bytes. The
    first segment of a new timeline repeats its parent's bytes up to the fork.
    """

    @property
    def cluster(self) -> str: ...
    @property
    def system_id(self) -> int: ...
    @property
    def kind(self) -> LogKind: ...
    @property
    def timeline(self) -> int: ...
    @property
    def segment_bytes(self) -> int: ...
    @property
    def server_version(self) -> str:
        """The primary's own text: `15.18 (Debian 15.18-0+deb12u1)`."""
        ...

    @property
    def oldest_lsn(self) -> Lsn: ...
    async def is_elsewhere(self, lsn: Lsn) -> bool:
        """Return True if `lsn` is below oldest_lsn, and another member holds WAL there (M8).

        It does not wait if the WAL is here."""
        ...

    @property
    def readable_lsn(self) -> Lsn: ...
    @property
    def whole_lsn(self) -> Lsn:
        """The end of the whole records below readable_lsn, as far as the log was read. It never
        falls.

        In a logical log it is readable_lsn. `whole_end` and `wait_for_whole` read further.
        """
        ...

    @property
    def slots(self) -> DurableSlots: ...
    @property
    def readers(self) -> Readers: ...

    async def read_committed(self, begin: Lsn, end: Lsn) -> Buffer:
        """Return all of [begin, end), which lies within one segment. The loop waits for no disk.

        Raise WalRemoved for WAL that is neither here nor elsewhere, Refused if readable_lsn has
        fallen below `end`, and StorageError if the disk fails.
        """
        ...

    def read_cached(self, begin: Lsn, end: Lsn) -> Buffer | None:
        """Return what `read_committed` would return, or None if it would have to wait or raise."""
        ...

    async def wait_for_readable(self, beyond: Lsn, timeout_s: float) -> Lsn:
        """Return readable_lsn as soon as it is greater than `beyond`, or when the time is over."""
        ...

    async def whole_end(self) -> Lsn:
        """Return the present whole_lsn; raise CorruptWal or StorageError."""
        ...

    async def wait_for_whole(self, beyond: Lsn, timeout_s: float) -> Lsn:
        """Return whole_lsn as soon as it is greater than `beyond`, or when the time is over.

        Raise CorruptWal or StorageError.
        """
        ...

    def timeline_history(self, timeline: int) -> bytes | None:
        """Return `0000000N.history` as PostgreSQL wrote it, or None for 1 and unknown timelines."""
        ...
