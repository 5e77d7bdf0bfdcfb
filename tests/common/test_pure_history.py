"""Histories in logs that really are written: the naive twin keeps the author of every byte.

Random elections over three or five logs, byte by byte, by R4 to R7 and R10. The history's
arithmetic decides where logs part; the twin, which sees all bytes at once, judges it. Some leaders
fold the history that they go on from, others do not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product
from random import Random
from typing import TypeVar

from walkeeper_common import history as h
from walkeeper_common.history import NO_BALLOT, Ballot, Fragment, History
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import acknowledged_lsn
from walkeeper_common.timelines import Timelines

RUNS, TERMS, WRITES = 1000, 16, 8

Byte = tuple[Ballot, int]  # its writer, and its number among that writer's bytes


def entry(ballot: Ballot, start: int, timeline: int = 1) -> Fragment:
    return Fragment(ballot, Lsn(start), timeline, False, (), 2)


@dataclass
class Log:
    """One acceptor: what is written here, and the history that it adopted."""

    wal: list[Byte] = field(default_factory=list)
    history: History = (entry(NO_BALLOT, 0),)
    restart: int = 0
    """The LSN that, as it has learned, all logs have."""

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
        self.cuts = self.folds = 0

    def term(self, number: int) -> None:
        random = self.random
        ballot = Ballot(number, random.randbytes(16))
        voters = random.sample(self.logs, len(self.logs) - self.ack_quorum + 1)
        donor = max(voters, key=lambda log: (log.cut[-1].ballot, len(log.wal)))
        # A may lie before C, inside a record: but never before what is committed.
        start = len(donor.wal) - random.randrange(2)
        start = max(start, min(len(donor.wal), len(self.committed)), donor.cut[-1].start_lsn)
        wal = donor.wal[:start]
        assert wal[: len(self.committed)] == self.committed, "a leader lacks what was committed"
        history = h.extended(self.shortened(donor, start), entry(ballot, start))
        attached: list[Log] = []
        waiting = list(voters)
        for write in range(random.randrange(WRITES)):
            if waiting and random.random() < 0.7:
                attached.append(self.attach(waiting.pop(), history, wal))
            elif random.random() < 0.3:
                late = [log for log in self.logs if log not in attached and log not in waiting]
                waiting += late[:1]
            wal.append((ballot, write))
            for log in attached:
                have = len(log.wal)
                log.wal += wal[have : have + random.randrange(3)]
            flushed = [
                len(x.wal) if x in attached and len(x.wal) >= start else 0 for x in self.logs
            ]
            for log in random.sample(attached, random.randint(0, len(attached))):
                log.restart = max(log.restart, min(flushed))
            commit = acknowledged_lsn(map(Lsn, flushed), self.ack_quorum)
            if commit > len(self.committed):
                self.committed = wal[:commit]

    def shortened(self, donor: Log, start: int) -> History:
        if self.random.random() < 0.5:
            return donor.cut
        short = h.folded(donor.cut, h.foldable_lsn(donor.cut, Lsn(min(donor.restart, start))))
        self.folds += len(short) < len(donor.cut)
        return short

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
        log.restart = min(log.restart, history[-1].start_lsn)
        return log


def test_no_run_keeps_a_foreign_byte_or_cuts_a_committed_one() -> None:
    cuts = committed = folds = 0
    for seed in range(RUNS):
        run = Run(seed)
        for number in range(1, TERMS):
            run.term(number)
        cuts += run.cuts
        folds += run.folds
        committed += len(run.committed)
    quiet = f"the runs were too quiet: {cuts=} {committed=} {folds=}"
    assert cuts > RUNS and committed > RUNS and folds > RUNS / 5, quiet


def test_a_folded_history_says_the_rest_as_before() -> None:
    """Timelines, members and quorums stay; only who wrote what all have is left out."""
    ballots = [Ballot(term, b"p" * 16) for term in range(9)]
    whole = (
        entry(NO_BALLOT, 0), entry(ballots[1], 2), entry(ballots[2], 4, 2), entry(ballots[3], 6, 2),
        replace(entry(ballots[4], 6, 2), members=("4#",)), entry(ballots[5], 8, 2),
        entry(ballots[6], 9, 2),
    )  # fmt: skip
    assert h.folded(whole, Lsn(0)) == whole
    assert h.foldable_lsn(whole, Lsn(7)) == 6
    short = h.folded(whole, Lsn(8))
    assert short[0].folded_lsn == 8 and h.is_well_formed(short)
    assert [e.ballot.term for e in short] == [0, 2, 4, 5, 6]
    assert Timelines(short).ends() == Timelines(whole).ends()
    assert h.folded(h.folded(whole, Lsn(6)), Lsn(8)) == short == h.folded(short, Lsn(4))
    assert not h.is_well_formed((whole[0], replace(whole[1], folded_lsn=Lsn(1))))
    for end in range(1, 12):
        assert h.divergence(short, whole, Lsn(end)) == h.divergence(whole, short, Lsn(end)) == end


def test_entries_of_one_ballot_on_two_timelines_are_separate() -> None:
    """A promotion: ballot 1 goes on at 5 on timeline 2. A log without that diverges at 5."""
    one = Ballot(1, b"p" * 16)
    before = (entry(NO_BALLOT, 0), entry(one, 2))
    after = (*before, entry(one, 5, 2))
    assert h.divergence(after, before, Lsn(8)) == 5
    assert h.divergence(after, before, Lsn(4)) == 4
    assert h.divergence(after, after, Lsn(8)) == 8
    assert h.term_start(after, one) == 2


Ordered = TypeVar("Ordered", Ballot, int)


def is_sorted(column: list[Ordered]) -> bool:
    return column == sorted(column)


def test_a_well_formed_history_is_sorted_from_the_creation_on() -> None:
    """Twin: each of the three columns is sorted, and the first entry is that of the creation."""
    ballots = (NO_BALLOT, Ballot(1, b"a" * 16), Ballot(1, b"b" * 16))
    rows = list(product(ballots, (0, 1), (1, 2)))
    for first, second, third in product(rows, repeat=3):
        history = tuple(entry(*row) for row in (first, second, third))
        three = (first, second, third)
        naive = (
            first[0] == NO_BALLOT
            and is_sorted([ballot for ballot, _, _ in three])
            and is_sorted([start for _, start, _ in three])
            and is_sorted([timeline for _, _, timeline in three])
        )
        assert h.is_well_formed(history) == naive, f"{history=}"
    assert not h.is_well_formed(())
