"""What must never happen, whatever goes wrong. Each check compares bytes, not only positions."""

from __future__ import annotations

from walkeeper_common.errors import StorageError
from walkeeper_common.history import Ballot
from walkeeper_common.lsn import Lsn
from walkeeper_safekeeper.wal_store import WalStore


class Violation(Exception):
    """Lost, forked or uncommitted bytes, two leaders, a broken promise: exit code 2."""


class NoProgress(Exception):
    """The world was healed and nothing moved: exit code 3."""


def whole_end(who: str, store: WalStore, lsn: Lsn) -> Lsn:
    """Where the last whole record below a committed LSN ends."""
    try:
        return store.record_end(lsn).end_lsn
    except StorageError as error:
        raise Violation(f"{who} committed {lsn}, but {error}") from error


class Acknowledged:
    """Every byte that PostgreSQL was told a quorum has; grows, never changes.

    Who is elected needs what was acknowledged under smaller ballots. A late winner of a ballot that
    has been passed may lack more: nobody listens to it any more.
    """

    def __init__(self, start_lsn: Lsn) -> None:
        self.start_lsn = start_lsn
        self.wal = bytearray()
        self._ends: dict[Ballot, Lsn] = {}

    @property
    def end_lsn(self) -> Lsn:
        return self.start_lsn + len(self.wal)

    def end_below(self, ballot: Ballot) -> Lsn:
        """What was acknowledged under smaller ballots."""
        return max((e for b, e in self._ends.items() if b < ballot), default=self.start_lsn)

    def acknowledge(self, who: str, wal: bytes, ballot: Ballot) -> None:
        """`wal` is that primary's log from start_lsn on, up to the last whole record it may ack."""
        common = min(len(wal), len(self.wal))
        if wal[:common] != self.wal[:common]:
            at = next(i for i in range(common) if wal[i] != self.wal[i])
            raise Violation(f"{who} was told of other bytes at {self.start_lsn + at}: a fork")
        if len(wal) > len(self.wal):
            self.wal[:] = wal
        self._ends[ballot] = max(self._ends.get(ballot, self.start_lsn), self.start_lsn + len(wal))

    def hold_against(
        self, who: str, wal: bytes, begin_lsn: Lsn, end_lsn: Lsn | None = None
    ) -> None:
        """`wal` is what `who` would go on from: it must have all that was acknowledged."""
        offset = begin_lsn - self.start_lsn
        wanted = bytes(self.wal[offset:])
        if end_lsn is not None:
            wanted = wanted[: max(0, end_lsn - begin_lsn)]
        if wal[: len(wanted)] != wanted:
            same = next(
                (i for i, (a, b) in enumerate(zip(wal, wanted, strict=False)) if a != b), len(wal)
            )
            raise Violation(
                f"{who} lacks acknowledged bytes from {begin_lsn + same} to {self.end_lsn}"
            )


class Committed:
    """Whole records that any safekeeper calls committed: the same bytes everywhere, for ever."""

    def __init__(self, start_lsn: Lsn) -> None:
        self.start_lsn = start_lsn
        self.wal = bytearray()

    def check(self, who: str, begin_lsn: Lsn, wal: bytes) -> None:
        offset = begin_lsn - self.start_lsn
        known = self.wal[offset : offset + len(wal)]
        if wal[: len(known)] != known:
            raise Violation(f"{who} committed other bytes within {len(wal)} of {begin_lsn}")
        if offset <= len(self.wal) < offset + len(wal):
            self.wal[offset:] = wal


class Leaders:
    """At most one leader a ballot (Raft's election safety)."""

    def __init__(self) -> None:
        self._by_ballot: dict[Ballot, str] = {}

    def elected(self, ballot: Ballot, who: str) -> None:
        if self._by_ballot.setdefault(ballot, who) != who:
            raise Violation(f"{ballot} was won by {self._by_ballot[ballot]} and by {who}")


class Promises:
    """A promised ballot is kept over every crash."""

    def __init__(self) -> None:
        self._greatest: dict[str, Ballot] = {}

    def promised(self, who: str, ballot: Ballot) -> None:
        self._greatest[who] = max(self._greatest.get(who, ballot), ballot)

    def restarted(self, who: str, ballot: Ballot) -> None:
        if who in self._greatest and ballot < self._greatest[who]:
            raise Violation(f"{who} forgot its promise to {self._greatest[who]}, has {ballot}")


