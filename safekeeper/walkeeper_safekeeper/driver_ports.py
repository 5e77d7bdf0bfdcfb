"""The ports of the driver: its workers, its surroundings, and two places for WAL. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from walkeeper_common.history import History
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.severity import Severity
from walkeeper_common.pace import Pace
from walkeeper_common.wire.framing import Message
from walkeeper_safekeeper.storage.wal_store import WalStore


class Worker(Protocol):
    """Runs jobs one after the other, away from the loop; `done` is called back on the loop."""

    def submit(
        self, job: Callable[[], object], done: Callable[[object], None], *, brief: bool = False
    ) -> None:
        """Run a job; call `done` with its result, or with the WalkeeperError that it raised.

        A `brief` job makes at most one small write with its fdatasync, and may block the loop."""
        ...

    def at_once(self) -> Pace | None:
        """Return the pace of brief jobs that may run on the loop, unsubmitted, until a `submit`.

        Return None if other jobs are before them, or if they should not block the loop."""
        ...


class Surroundings(Protocol):
    """The driver's port to its surroundings; every method returns at once."""

    def send(self, connection: int, message: Message) -> None: ...
    def commit_moved(self, commit_lsn: Lsn) -> None: ...
    def settle_later(self, settle: Callable[[], None]) -> None:
        """Call `settle` within some milliseconds; at once if a reader waits for commit_lsn."""
        ...

    def end_readers(self, above_lsn: Lsn) -> None: ...
    def note(
        self, text: str, facts: Sequence[tuple[str, object]], severity: Severity, /
    ) -> None: ...


class OlderWal(Protocol):
    """WAL that is not in the store: an archive, or other members."""

    def read(self, begin_lsn: Lsn, end_lsn: Lsn, done: Callable[[object], None]) -> None:
        """Read [begin_lsn, end_lsn); call `done` with the bytes or a WalkeeperError."""
        ...


class KeepsOrphans(Protocol):
    """The place for WAL that a truncation removes (orphans.py)."""

    def keep(self, store: WalStore, history: History, begin_lsn: Lsn) -> str | None:
        """Copy the WAL to cut, durably; return a text for the operator, or None. Raise nothing."""
        ...
