"""How far a log is: the part of an acceptor's state that the fast path moves as well. Pure.

Appends move these positions, and nothing else of the acceptor. So the fast path takes several
appends, and afterwards hands the acceptor the positions that they reached (`AppendsTaken`).

Invariant I2: flush_lsn <= write_lsn. I3: commit_lsn <= flush_lsn.
"""

from __future__ import annotations

from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_safekeeper.consensus.acceptor_events import AppendsTaken, CommitMoved, Effect
from walkeeper_safekeeper.consensus.durable import Durable


class LogPositions:
    """The positions of one log here, and those that its leader announced for the whole log."""

    def __init__(self, durable: Durable, flush_lsn: Lsn) -> None:
        self.write_lsn = self.flush_lsn = flush_lsn
        self.commit_lsn = min(durable.commit_lsn, flush_lsn)
        self.leader_commit_lsn = self.commit_lsn  # the highest that a leader announced
        self.restart_lsn = durable.restart_lsn
        self.acked_lsn: Lsn | None = None  # the newest flush_lsn acknowledged to `appender`
        self.elected_commit_lsn = ZERO_LSN  # the last one of the leader elected here
        self.silent_ticks = 0

    def hear(self, commit_lsn: Lsn, restart_lsn: Lsn) -> None:
        """Take the commit_lsn and restart_lsn of an append of the elected leader."""
        self.silent_ticks = 0
        self.elected_commit_lsn = commit_lsn
        self.leader_commit_lsn = max(self.leader_commit_lsn, commit_lsn)
        self.restart_lsn = max(self.restart_lsn, restart_lsn)

    def on_appends_taken(self, taken: AppendsTaken) -> list[Effect]:
        """Take appends that were made durable and acknowledged already (expected_append.py)."""
        assert self.write_lsn == self.flush_lsn <= taken.flush_lsn, f"{self.write_lsn=} {taken=}"
        if taken.flush_lsn > self.flush_lsn:
            self.write_lsn = self.flush_lsn = self.acked_lsn = taken.flush_lsn
        self.hear(taken.commit_lsn, taken.restart_lsn)
        return self.move_commit()

    def move_commit(self) -> list[Effect]:
        before_lsn = self.commit_lsn
        self.commit_lsn = max(before_lsn, min(self.leader_commit_lsn, self.flush_lsn))
        return [CommitMoved(self.commit_lsn)] if self.commit_lsn > before_lsn else []
