"""The gate's rows for a promoted primary, the leader's history for it, whose bytes are whose."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.support.scenario_words import SYSTEM_ID, configuration_of
from walkeeper_common.history import NO_BALLOT, Ballot, Fragment, History, cut, is_well_formed
from walkeeper_common.lsn import LSN_MAX, Lsn
from walkeeper_common.quorum import LogKind
from walkeeper_common.timelines import (
    SKIPPED_MAX,
    Timelines,
    ancestor_file,
    extended_over,
    numbers_served,
    parse_timeline_file,
    served_file,
    timeline_files,
)
from walkeeper_common.wire.fields import Reader, Writer
from walkeeper_common.wire.messages import VoteResponse
from walkeeper_proposer.consensus import admission
from walkeeper_proposer.consensus.campaign import Campaign
from walkeeper_proposer.consensus.leadership import Leader
from walkeeper_proposer.consensus.proposer_events import PrimaryIdentity

SEGMENT = 0x10000
CONFIGURATION = replace(configuration_of(3), segment_bytes=SEGMENT, creation_lsn=Lsn(SEGMENT))
SECOND = b"1\t0/25000\tno recovery target specified\n"
THIRD = SECOND + b"\n2\t0/38000\tno recovery target specified\n"
FIRST_FORK, SECOND_FORK = Lsn(0x25000), Lsn(0x38000)


def entry(term: int, start: int, timeline: int = 1, *, sealed: bool = False) -> Fragment:
    ballot = Ballot(term, bytes(16)) if term else NO_BALLOT
    return Fragment(ballot, Lsn(start), timeline, sealed, CONFIGURATION.members, 2)


def primary(timeline: int, file: bytes = b"", flush: int = 0x60000) -> PrimaryIdentity:
    return PrimaryIdentity(
        SYSTEM_ID, timeline, Lsn(flush), SEGMENT, "15.18", 150018, False, True, True, file
    )


def log_of(history: History, end: int) -> admission.LogEnd:
    return admission.LogEnd(CONFIGURATION, cut(history, Lsn(end)), Lsn(end), Lsn(end))


CREATED = entry(0, SEGMENT)
ON_FIRST = (CREATED, entry(1, SEGMENT))
ON_SECOND = (CREATED, entry(1, SEGMENT), entry(2, 0x25000, 2))


@pytest.mark.parametrize(
    ("server", "history", "end", "words"),
    [
        (primary(2, SECOND), ON_FIRST, 0x25000, None),
        (primary(2, SECOND), ON_FIRST, 0x24000, None),
        (primary(2, SECOND), ON_FIRST, 0x25008, "left out 8 bytes from 0/25000"),
        (primary(3, THIRD), ON_SECOND, 0x30000, None),
        (primary(3, THIRD), ON_SECOND, 0x38001, "left out 1 bytes from 0/38000"),
        (primary(3, THIRD), (CREATED,), 0x20000, None),
        (primary(1), ON_SECOND, 0x30000, "parted from it at 0/25000"),
        (primary(1), ON_SECOND, 0x30000, "pg_rewind --target-pgdata="),
        (primary(2, SECOND), ON_SECOND, 0x30000, None),
        (primary(2, SECOND, 0x2FFFF), ON_SECOND, 0x30000, "lost 1 bytes"),
        (primary(2, b"1\t0/25008\tx\n"), ON_SECOND, 0x30000, "another branch"),
        (primary(3, b"1\t0/25000\tx\n"), ON_SECOND, 0x30000, "does not descend from"),
        (primary(3, b"2\t0/38000\tx\n"), ON_SECOND, 0x30000, "does not descend from"),
    ],
)
def test_a_promotion_may_leave_out_nothing_of_the_log(
    server: PrimaryIdentity, history: History, end: int, words: str | None
) -> None:
    said = admission.refusal(server, log_of(history, end), admission.Waivers())
    assert said is None if words is None else said is not None and words in said, said


def test_a_seal_keeps_out_the_old_primary_and_not_the_promoted_one() -> None:
    log = log_of((CREATED, entry(1, SEGMENT), entry(2, 0x25000, sealed=True)), 0x25000)
    assert "sealed" in (admission.refusal(primary(1), log, admission.Waivers()) or "")
    assert admission.refusal(primary(1), log, admission.Waivers(resume=True)) is None
    assert admission.refusal(primary(2, SECOND), log, admission.Waivers()) is None


def test_a_number_that_a_promotion_passed_over_has_a_file_without_an_ancestor() -> None:
    files = {2: SECOND, 5: THIRD}
    assert [served_file(files, number, 1) for number in (1, 2, 5, 6)] == [None, SECOND, THIRD, None]
    for number in (3, 4):
        skipped = served_file(files, number, 1)
        assert skipped is not None and not parse_timeline_file(skipped)
    assert served_file({5: THIRD}, 3, 4) is None, "the log began later"
    assert served_file({}, 2, 1) is None


def test_the_numbers_between_two_timelines_are_bounded() -> None:
    far = 1 << 31
    history = (CREATED, entry(2, 0x12000, 4), entry(3, 0x25000, far))
    numbers = numbers_served(history)
    assert numbers[:4] == [1, 2, 3, 4] and numbers[-1] == far
    assert len(numbers) == 5 + SKIPPED_MAX


def test_the_leaders_history_has_an_entry_for_each_timeline_with_its_file() -> None:
    donor = (CREATED, entry(1, SEGMENT))
    history = extended_over(donor, entry(5, 0x20000), [(1, FIRST_FORK), (2, SECOND_FORK)], 3, THIRD)
    assert [(e.ballot.term, e.start_lsn, e.timeline) for e in history[2:]] == [
        (5, 0x20000, 1), (5, 0x25000, 2), (5, 0x38000, 3),
    ]  # fmt: skip
    assert is_well_formed(history)
    assert timeline_files(history) == {2: SECOND, 3: THIRD}
    assert timeline_files(cut(history, FIRST_FORK)) == {2: SECOND}


def test_a_log_that_ends_at_the_fork_goes_on_on_the_new_timeline() -> None:
    donor = (CREATED, entry(1, SEGMENT), entry(4, 0x25000, sealed=True))
    history = extended_over(donor, entry(5, 0x25000, sealed=True), [(1, FIRST_FORK)], 2, SECOND)
    assert history == (
        CREATED, entry(1, SEGMENT), replace(entry(5, 0x25000, 2), timeline_file=SECOND)
    )  # fmt: skip


def test_the_seal_stays_on_the_parent_up_to_a_fork_that_is_not_reached() -> None:
    history = extended_over(
        (CREATED,), entry(5, 0x20000, sealed=True), [(1, FIRST_FORK)], 2, SECOND
    )
    assert [e.sealed for e in history] == [False, True, False]


def test_the_file_is_kept_when_the_entry_that_carried_it_is_replaced() -> None:
    """No WAL was written after the fork: the next term starts at the same LSN."""
    carrying = replace(entry(2, 0x25000, 2), timeline_file=SECOND)
    for successor in (entry(3, 0x25000, 2), entry(3, 0x26000, 2)):
        history = extended_over((CREATED, carrying), successor, [], 2, b"")
        assert timeline_files(history) == {2: SECOND}
        assert [e.timeline_file for e in history].count(SECOND) == 1


def test_older_files_are_the_beginning_of_newer_ones() -> None:
    assert ancestor_file(THIRD, 2) == SECOND
    assert ancestor_file(THIRD, 7) is None
    assert parse_timeline_file(THIRD) == [(1, FIRST_FORK), (2, SECOND_FORK)]
    carrying = replace(entry(9, 0x38000, 3), timeline_file=THIRD)
    assert timeline_files((CREATED, carrying)) == {2: SECOND, 3: THIRD}


def test_a_fragment_with_its_file_crosses_the_wire() -> None:
    plain = entry(9, 0x38000, 3)
    carrying = replace(plain, timeline_file=THIRD)
    for fragment in (plain, carrying, replace(carrying, sealed=True)):
        writer = Writer()
        writer.fragment(fragment)
        assert Reader(writer.finish()).fragment() == fragment


def test_every_byte_has_one_owner() -> None:
    """Against a naive twin: the last entry that starts at or below it."""
    history = (CREATED, entry(1, 0x12000), entry(2, 0x25000, 2), entry(3, 0x25000, 3),
               entry(4, 0x26000, 3), entry(4, 0x38000, 5))  # fmt: skip
    timelines = Timelines(history)
    edges = sorted({int(e.start_lsn) + by for e in history for by in (-1, 0, 1)} | {0x50000})
    for lsn in map(Lsn, edges):
        assert timelines.at(lsn) == cut(history, lsn)[-1].timeline
        others = (Lsn(x) for x in edges if x > lsn and timelines.at(Lsn(x)) != timelines.at(lsn))
        assert timelines.next_fork(lsn) == next(others, LSN_MAX)
        assert timelines.before(lsn + 1) == timelines.at(lsn)
    assert timelines.ends() == [(1, 0x25000), (2, 0x25000), (3, 0x38000)]
    assert timelines.owners(Lsn(0x20000), Lsn(0x30000)) == [1, 3]
    for begin, end in pairwise(map(Lsn, edges)):
        forks = timelines.forks_between(begin, end)
        assert forks == sorted({x for x in (FIRST_FORK, SECOND_FORK) if begin <= x <= end})


def test_a_segment_is_read_under_the_newest_timeline_that_has_it() -> None:
    timelines = Timelines((CREATED, entry(2, 0x25000, 2), entry(4, 0x38000, 3)))
    read = [(timelines.shown_by(Lsn(x), SEGMENT), timelines.shown_until(Lsn(x), SEGMENT))
            for x in (0x1F000, 0x20000, 0x25000, 0x30000, 0x50000)]  # fmt: skip
    assert [timeline for timeline, _ in read] == [1, 2, 2, 3, 3]
    assert [until for _, until in read[:3]] == [0x20000, 0x30000, 0x30000]


@pytest.mark.parametrize("kind", LogKind)
def test_only_a_log_of_wal_goes_over_the_forks_of_a_promoted_primary(kind: LogKind) -> None:
    """A logical log's positions are no LSNs: a fork's LSN in its history would cut it anywhere."""
    end, ballot = Lsn(0x24000), Ballot(2, b"p" * 16)
    donor = VoteResponse(1, ballot, True, Lsn(SEGMENT), end, end, end, ON_FIRST)
    campaign = Campaign("main", b"p" * 16, 3, kind=kind)
    promoted = primary(2, SECOND)
    leader = Leader(CONFIGURATION, ballot, donor, [], campaign, promoted)
    new = [(one.start_lsn, one.timeline) for one in leader.history if one.ballot == ballot]
    forks = [(FIRST_FORK, 2)] if kind is LogKind.PHYSICAL else []
    assert new == [(end, 1), *forks]
    assert leader.is_for(promoted)
