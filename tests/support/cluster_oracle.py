"""Facts that must never be seen on the cluster stage, in any scenario; one word each.

    LOST              an elected leader's log lacks bytes that were reported under a smaller ballot
    FORKED            two reports, or two logs of the same last ballot, hold different bytes
    NOT ON A QUORUM   a report of bytes that fewer than an ack quorum have on disk
    TAKEN BACK        a whole record was cut that readers without a ballot could have been sent
    OTHER BYTES       a log that a primary's WAL was to be in holds something else
    DAMAGED           a safekeeper takes its log for damaged, and nobody has damaged it

The verdicts are lines among a scenario's effects, in capitals. test_scenarios.py refuses a file
with one of them, so a broken rule cannot be rewritten into the expected text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

from walkeeper_common.history import Ballot, cut
from walkeeper_common.lsn import Lsn
from walkeeper_safekeeper.consensus.acceptor import Acceptor

VERDICTS = ("LOST", "FORKED", "NOT ON A QUORUM", "TAKEN BACK", "OTHER BYTES", "DAMAGED")


class Log(Protocol):
    """One safekeeper, as the oracle sees it."""

    @property
    def number(self) -> int: ...
    @property
    def acceptor(self) -> Acceptor: ...
    def durable_wal(self) -> bytes:
        """Return the WAL that a power cut now would leave."""
        ...


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """`wal` was reported to a primary under `ballot`."""

    ballot: Ballot
    wal: bytes


class Oracle:
    """The judge of one scenario: each method returns its verdicts as text, or an empty list."""

    def __init__(self) -> None:
        self.acknowledged: list[Acknowledged] = []

    def reported(
        self, ballot: Ballot, wal: bytes, logs: Iterable[Log], *, whole_bytes: int, ack_quorum: int
    ) -> list[str]:
        """Judge a report that `wal` is committed; its whole records are `whole_bytes` long.

        No session waits for a part of a record, so that part may go (R5).
        """
        found = []
        holders = [log.number for log in logs if log.durable_wal().startswith(wal)]
        if len(holders) < ack_quorum:
            found.append(f"NOT ON A QUORUM: on {named(holders)} of {ack_quorum}")
        if any(not is_prefix(wal[:whole_bytes], other.wal) for other in self.acknowledged):
            found.append("FORKED: other bytes were reported before")
        self.acknowledged.append(Acknowledged(ballot, wal[:whole_bytes]))
        return found

    def elected(self, ballot: Ballot, wal: bytes) -> list[str]:
        """Judge a term that starts after `wal`."""
        lost = [a for a in self.acknowledged if a.ballot < ballot and not wal.startswith(a.wal)]
        return [f"LOST: {len(lost)} reports are not in the new leader's log"] if lost else []

    def logs(self, logs: Iterable[Log]) -> list[str]:
        """Judge that of two logs with the same last ballot, one is a prefix of the other."""
        found = []
        kept = [log for log in logs if log.acceptor.durable.configuration is not None]
        for one, other in combinations(kept, 2):
            ballots = {last_log_ballot(one.acceptor), last_log_ballot(other.acceptor)}
            if len(ballots) == 1 and not is_prefix(one.durable_wal(), other.durable_wal()):
                found.append(f"FORKED: sk{one.number} and sk{other.number} hold different bytes")
        return found


def last_log_ballot(acceptor: Acceptor) -> Ballot:
    return cut(acceptor.durable.history, acceptor.flush_lsn)[-1].ballot


def is_prefix(one: bytes, other: bytes) -> bool:
    """Return True if one of the two is a prefix of the other."""
    size = min(len(one), len(other))
    return one[:size] == other[:size]


def named(numbers: Iterable[int]) -> str:
    return " ".join(f"sk{number}" for number in numbers) or "none"


def taken_back(*, cut_lsn: Lsn, readable_lsn: Lsn) -> list[str]:
    """Judge a cut; `readable_lsn` is the end of the last record readable without a ballot."""
    if cut_lsn >= readable_lsn:
        return []
    return ["TAKEN BACK: readers could have been sent a record that is cut"]
