"""Is the past of the primary that of the log? What it decodes again must be in the log. Pure.

    Overlap(tail, end_lsn, confirmed_lsn)    for one connection; begin_lsn: START_REPLICATION there
    on_transaction    one that committed below the log's end
    on_reached        all that committed below an LSN has come

LSNs alone do not tell. A server that was set back to a snapshot of its disk, its slot included, is
on the same timeline and soon writes beyond the log's end; what it wrote below would be taken for
what the log has, dropped, and acknowledged. There are no bytes to compare, as decoding the same WAL
again need not give the same bytes, but it gives the same transactions. So PostgreSQL is asked for
them from the log's last one on: that one must come first, with its LSNs and its time, and behind it
nothing below the log's end. Whatever the slot has confirmed was decoded of this very WAL for this
log, and is not asked for again. Until it is over, nothing beyond that may be confirmed.

Only transactions with rows count: before 15 empty ones are sent too, and emitted messages come or
do not come as the proposer was told.
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
    """What the slot decodes below the log's end is not what the log has there."""


@dataclass(frozen=True, slots=True)
class LoggedTail:
    """The log's last transaction with rows. None: it has none that ended behind since_lsn."""

    last: Commit | None = None
    since_lsn: Lsn = ZERO_LSN

    def is_enough(self, confirmed_lsn: Lsn | None) -> bool:
        """To compare with a slot that confirmed so much."""
        return self.last is not None or confirmed_lsn is None or self.since_lsn <= confirmed_lsn


class Overlap:
    """Of the log, which ends at end_lsn, with one connection's stream."""

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
        """DiffersFromLog, if it is not in the log."""
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
        """DiffersFromLog, if the log's last transaction has not come by then."""
        if self.is_over or lsn < self._end_lsn:
            return
        if self.expected is not None:
            raise DiffersFromLog(
                f"the log's last transaction committed at {self.expected.commit_lsn}, and the "
                "primary does not have it"
            )
        self.is_over = True
