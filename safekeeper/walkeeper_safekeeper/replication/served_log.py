"""What serving PostgreSQL clients needs of a log, and what it tells the log about its readers.

`ServedLog` and `Catalog` are ports: the daemon provides them. `Readers` is ours: one Reader for
each connection that streams, with pg_stat_replication's columns for `walkeeper status`. It has the
position from which each still needs WAL (docs/protocol.md R14). Nothing here does I/O or waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_safekeeper.replication.durable_slots import DurableSlots

if TYPE_CHECKING:
    from walkeeper_safekeeper.replication.logical_log import LogicalLog


class ReaderState(Enum):
    """pg_stat_replication.state."""

    STARTUP = "startup"
    CATCHUP = "catchup"
    STREAMING = "streaming"


@dataclass(slots=True)
class Reader:
    """One streaming connection; the LSNs are what pg_stat_replication shows on a primary.

    `promised_lsn` is the end of what was sent or is being read to be sent on this connection: a
    truncation below it ends the connection, by `end`, before the reader can learn other bytes.
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
    end_reason: str = ""  # set: nothing more may be sent
    on_end: Callable[[], None] = lambda: None

    def end(self, reason: str) -> None:
        """Ends the connection. What is being read for it is not sent any more."""
        self.end_reason = reason
        self.on_end()

    @property
    def confirmed_lsn(self) -> Lsn:
        """What the reader has flushed of what we sent: its word, never past our sent_lsn."""
        return min(self.flush_lsn, self.sent_lsn)

    @property
    def retention_lsn(self) -> Lsn:
        """WAL from here on is kept while the reader is connected.

        pg_receivewal without a slot and --synchronous reports flush 0/0 always: then what it has
        written must do, or its connection would keep WAL for ever.
        """
        has = self.flush_lsn or self.write_lsn
        return max(self.begin_lsn, min(has, self.sent_lsn))


@dataclass(slots=True)
class Readers:
    """The streaming connections of one log."""

    _by_pid: dict[int, Reader] = field(default_factory=dict)
    on_feedback: Callable[[], None] = lambda: None  # one of them has said something, or has left

    def register(self, reader: Reader) -> None:
        """From now on it counts."""
        assert reader.pid not in self._by_pid, f"{reader.pid=} streams twice"
        self._by_pid[reader.pid] = reader

    def unregister(self, reader: Reader) -> None:
        """It has ended."""
        del self._by_pid[reader.pid]
        self.on_feedback()

    def __iter__(self) -> Iterator[Reader]:
        return iter(sorted(self._by_pid.values(), key=lambda reader: reader.pid))

    def __len__(self) -> int:
        return len(self._by_pid)

    def retention_lsn(self) -> Lsn | None:
        """The least position that a connected reader needs; None without readers."""
        return min((reader.retention_lsn for reader in self._by_pid.values()), default=None)

    def end_those_sent_beyond(self, lsn: Lsn) -> None:
        """Call it with a truncation, before other bytes can be committed (R7)."""
        for reader in self:
            if reader.promised_lsn > lsn:
                reader.end(f"the log was truncated to {lsn}, below what this connection was sent")


class ServedLog(Protocol):
    """One log, as its PostgreSQL clients see it.

    `timeline` is that of the WAL at commit_lsn: it changes before commit_lsn passes the fork, and
    its history file is here by then. On every timeline the log is one sequence of bytes, as the
    first segment of a new timeline repeats its parent's bytes up to the fork.
    """

    @property
    def cluster(self) -> str: ...
    @property
    def system_id(self) -> int: ...
    @property
    def timeline(self) -> int: ...
    @property
    def segment_bytes(self) -> int: ...
    @property
    def server_version(self) -> str:
        """The primary's own text: `15.18 (Debian 15.18-0+deb12u1)`."""
        ...

    @property
    def first_lsn(self) -> Lsn: ...
    @property
    def commit_lsn(self) -> Lsn: ...
    @property
    def whole_lsn(self) -> Lsn:
        """What below commit_lsn is whole records, as far as anybody has looked: never less later.

        Of a logical log commit_lsn. `whole_end` and `wait_for_whole` look further.
        """
        ...

    @property
    def slots(self) -> DurableSlots: ...
    @property
    def readers(self) -> Readers: ...
    @property
    def logical(self) -> LogicalLog | None:
        """Of a logical log, whose LSNs are positions; else None."""
        ...

    async def read_committed(self, begin: Lsn, end: Lsn) -> bytes:
        """All of [begin, end), at most 128 KiB within one segment, off the event loop.

        WalRemoved below first_lsn; Refused if commit_lsn has fallen below `end`; StorageError.
        """
        ...

    async def wait_for_commit(self, beyond: Lsn, timeout_s: float) -> Lsn:
        """commit_lsn as soon as it is greater than `beyond`, or when the time is over."""
        ...

    async def whole_end(self) -> Lsn:
        """whole_lsn as of now. CorruptWal, StorageError."""
        ...

    async def wait_for_whole(self, beyond: Lsn, timeout_s: float) -> Lsn:
        """whole_lsn as soon as it is greater than `beyond`, or when the time is over.

        CorruptWal, StorageError.
        """
        ...

    def timeline_history(self, timeline: int) -> bytes | None:
        """`0000000N.history` as PostgreSQL wrote it; None for timeline 1 and unknown ones."""
        ...


class Catalog(Protocol):
    """The logs of one safekeeper."""

    def clusters(self) -> Sequence[str]:
        """Every cluster with a log here, also one that cannot be served now."""
        ...

    def logical_databases(self) -> Mapping[str, str]:
        """Of the logical logs that can be served now, by cluster; "" while it is not known."""
        ...

    def open_log(self, cluster: str) -> ServedLog:
        """Of one of `clusters()`. Refused, with the reason, while it cannot be served."""
        ...
