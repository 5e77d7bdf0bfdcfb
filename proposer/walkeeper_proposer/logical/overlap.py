"""Is the past of the primary that of the log? Changes that it decodes again must be there. Pure.

    Overlap(tail, end_lsn, confirmed_lsn)    for one connection; START_REPLICATION at its begin_lsn
    on_transaction    a transaction has committed below the log's end
    on_reached        all transactions that committed below an LSN have come

LSNs alone do not tell. A server may have been set back to a snapshot of its disk, slot included.
It is on the same timeline and soon writes beyond the log's end. Its new changes below that end
would be taken for those of the log, dropped, and acknowledged. There are no bytes to compare, as
decoding the same WAL again need not give the same bytes. It gives the same transactions. So the
proposer reads them again, from the log's last one on. That one must come first, with its LSNs and
its time, and after it no transaction may come below the log's end. The slot's confirmed changes
were decoded from this very WAL for this log, and are not read again. Until the comparison is over,
the proposer confirms no later change.

Only transactions with rows count. Before 15, empty ones are sent too. Emitted messages depend on
the proposer's options.
"""

from __future__ import annotations

from dataclasses import dataclass

from walkeeper_common.errors import WalkeeperError
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.postgres.pgoutput import Commit

NEW_LOG = (
    "make a new log (`walkeeper create --logical` under another --cluster) and copy the tables "
    "anew for its consumers"
)


class DiffersFromLog(WalkeeperError):
    """The slot decodes other transactions below the log's end than the log has there."""


@dataclass(frozen=True, slots=True)
class LoggedTail:
    """The log's last transaction with rows, or None if none ended after since_lsn."""

    last: Commit | None = None
    since_lsn: Lsn = ZERO_LSN

    def is_enough(self, confirmed_lsn: Lsn | None) -> bool:
        """Return True if it is enough for a comparison with a slot that confirmed so much."""
        return self.last is not None or confirmed_lsn is None or self.since_lsn <= confirmed_lsn


class Overlap:
    """The comparison of the log, which ends at end_lsn, with one connection's stream."""

    def __init__(self, tail: LoggedTail, end_lsn: Lsn, confirmed_lsn: Lsn) -> None:
        last = tail.last
        self.expected = last if last is not None and last.commit_lsn >= confirmed_lsn else None
        self._end_lsn = end_lsn
        self.confirmed_lsn = min(confirmed_lsn, end_lsn)
        self.begin_lsn = min(max(confirmed_lsn, tail.since_lsn), end_lsn)
        if last is not None:
            self.begin_lsn = max(confirmed_lsn, last.commit_lsn)
        self.is_over = confirmed_lsn >= end_lsn

    def on_transaction(self, commit: Commit, *, has_rows: bool) -> None:
        """Compare a transaction; raise DiffersFromLog if it is not in the log."""
        if self.is_over or commit.commit_lsn < self.begin_lsn:
            return
        if commit == self.expected:
            self.expected = None
            self.is_over = commit.end_lsn >= self._end_lsn
        elif has_rows:
            raise DiffersFromLog(
                f"the primary has a transaction that committed at {commit.commit_lsn}, and the "
                f"log, which goes to {self._end_lsn}, does not have it"
            )

    def on_reached(self, lsn: Lsn) -> None:
        """Note that all below `lsn` has come.

        Raise DiffersFromLog if the log's last transaction is not among it.
        """
        if self.is_over or lsn < self._end_lsn:
            return
        if self.expected is not None:
            raise DiffersFromLog(
                f"the log's last transaction committed at {self.expected.commit_lsn}, and the "
                "primary does not have it"
            )
        self.is_over = True
