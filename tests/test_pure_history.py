"""Histories in logs that really are written: the naive twin keeps the author of every byte.

Random elections over three or five logs, byte by byte, by rules 4 to 7 and 10. The history's
arithmetic decides where logs part; the twin, which sees all bytes at once, judges it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from random import Random

from walkeeper_common import history as h
from walkeeper_common.history import NO_BALLOT, Ballot, Fragment, History
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import acknowledged_lsn

RUNS, TERMS, WRITES = 400, 8, 6

Byte = tuple[Ballot, int]  # who wrote it, and that one's how many-th


def entry(ballot: Ballot, start: int, timeline: int = 1) -> Fragment:
    return Fragment(ballot, Lsn(start), timeline, False, (), 2)


@dataclass
class Log:
    """One acceptor: what is written here, and the history that it adopted."""

    wal: list[Byte] = field(default_factory=list)
    history: History = (entry(NO_BALLOT, 0),)

    @property
    def cut(self) -> History:
        return h.cut(self.history, Lsn(len(self.wal)))


def common_bytes(one: list[Byte], other: list[Byte]) -> int:
    same = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        same += 1
    return same


class Run:
    """`committed` is what an ack quorum had in its term; it must stay in every later leader."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        members = self.random.choice((3, 5))
        self.ack_quorum = self.random.randrange(2, members + 1)
        self.logs = [Log() for _ in range(members)]
        self.committed: list[Byte] = []
        self.cuts = 0

    def term(self, number: int) -> None:
        random = self.random
        ballot = Ballot(number, random.randbytes(16))
        voters = random.sample(self.logs, len(self.logs) - self.ack_quorum + 1)
        donor = max(voters, key=lambda log: (log.cut[-1].ballot, len(log.wal)))
        # A may lie before C, inside a record: but never before what is committed.
        start = len(donor.wal) - random.randrange(2)
        start = max(start, min(len(donor.wal), len(self.committed)))
        wal = donor.wal[:start]
        assert wal[: len(self.committed)] == self.committed, "a leader lacks what was committed"
        history = h.extended(donor.cut, entry(ballot, start))
        attached: list[Log] = []
        waiting = list(voters)
        for write in range(random.randrange(WRITES)):
            if waiting and random.random() < 0.7:
                attached.append(self.attach(waiting.pop(), history, wal))
            elif random.random() < 0.2:
                late = [log for log in self.logs if log not in attached and log not in waiting]
                waiting += late[:1]
            wal.append((ballot, write))
            for log in attached:
                have = len(log.wal)
                log.wal += wal[have : have + random.randrange(3)]
            flushed = [
                len(x.wal) if x in attached and len(x.wal) >= start else 0 for x in self.logs
            ]
            commit = acknowledged_lsn(map(Lsn, flushed), self.ack_quorum)
            if commit > len(self.committed):
                self.committed = wal[:commit]

    def attach(self, log: Log, history: History, wal: list[Byte]) -> Log:
        part = h.divergence(history, log.cut, Lsn(len(log.wal)))
        same = common_bytes(log.wal, wal)
        assert part <= same, f"{part=} {same=}: a byte that the leader does not have is kept"
        kept_commit = min(same, len(self.committed))
        assert part >= kept_commit, f"{part=} {kept_commit=}: committed WAL is cut"
        assert part == h.divergence(history, log.history, Lsn(len(log.wal))), "cut once or twice"
        self.cuts += part < len(log.wal)
        del log.wal[part:]
        log.history = history
        return log


def test_no_run_keeps_a_foreign_byte_or_cuts_a_committed_one() -> None:
    cuts = committed = 0
    for seed in range(RUNS):
        run = Run(seed)
        for number in range(1, TERMS):
            run.term(number)
        cuts += run.cuts
        committed += len(run.committed)
    assert cuts > RUNS and committed > RUNS, f"the runs were too quiet: {cuts=} {committed=}"


def test_entries_of_one_ballot_on_two_timelines_are_told_apart() -> None:
    """A promotion: ballot 1 goes on at 5 on timeline 2. Who has only the first part parts at 5."""
    one = Ballot(1, b"p" * 16)
    before = (entry(NO_BALLOT, 0), entry(one, 2))
    after = (*before, entry(one, 5, 2))
    assert h.divergence(after, before, Lsn(8)) == 5
    assert h.divergence(after, before, Lsn(4)) == 4
    assert h.divergence(after, after, Lsn(8)) == 8
    assert h.term_start(after, one) == 2


def test_what_is_well_formed() -> None:
    """Twin: each of the three columns is sorted, and the first entry is that of the creation."""
    ballots = (NO_BALLOT, Ballot(1, b"a" * 16), Ballot(1, b"b" * 16))
    rows = list(product(ballots, (0, 1), (1, 2)))
    for first, second, third in product(rows, repeat=3):
        history = tuple(entry(*row) for row in (first, second, third))
        columns = list(zip(first, second, third, strict=True))
        naive = first[0] == NO_BALLOT and all(list(c) == sorted(c) for c in columns)
        assert h.is_well_formed(history) == naive, f"{history=}"
    assert not h.is_well_formed(())
