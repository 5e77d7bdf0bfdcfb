"""The ranges that are compared with the primary, and the outcomes.

Spec: docs/steps.md#check-of-the-primary.

The log is real WAL in segments of 64 KiB. Only a commit or a checkpoint tells one clone from
another, so the range grows backwards until it has one; XLOG_NOOP records do not count.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

import pytest

from tests.support.scenario_words import SYSTEM_ID, configuration_of
from tests.support.wal_maker import WalMaker
from walkeeper_common.buffers import Buffer
from walkeeper_common.history import NO_BALLOT, Fragment
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.note import Note
from walkeeper_common.wire.requests import ReadRequest, ReadResponse
from walkeeper_common.wire.wal_crc import crc_of
from walkeeper_proposer.consensus import admission
from walkeeper_proposer.consensus.primary_check import PrimaryCheck, Range, Verdict, with_older
from walkeeper_proposer.consensus.proposer_events import (
    Effect,
    PrimaryIdentity,
    ReadPrimary,
    Send,
)

SEGMENT = 65536
COMMIT, TRANSACTIONS = 0x00, 1
SEGMENTS = 5


def wal_of(*, commits: tuple[int, ...], end: int = SEGMENTS * SEGMENT - 1000) -> bytes:
    """Make WAL from the start of segment 1 on, with a commit at the start of each named segment."""
    maker = WalMaker(Random(5), segment_bytes=SEGMENT)
    due = sorted(commits)
    while maker.end_lsn - maker.start_lsn < end:
        at = maker.end_lsn - maker.start_lsn
        if due and at >= (due[0] - 1) * SEGMENT:
            due.pop(0)
            maker.record(40, info=COMMIT, rmid=TRANSACTIONS)
        maker.record(700)
    return maker.read(maker.start_lsn, maker.start_lsn + end)


def lsn(segment: int, offset: int = 0) -> Lsn:
    """Return an LSN; the first segment is 1, as in WAL itself."""
    return Lsn(segment * SEGMENT + offset)


@dataclass
class Examination:
    """Plays both sources until there is a verdict."""

    log: bytes
    primary: bytes
    primary_first: Lsn = field(default_factory=lambda: lsn(1))
    log_first: Lsn = field(default_factory=lambda: lsn(1))
    older_first: Lsn | None = None
    held_from: Lsn | None = None
    primary_flush: Lsn | None = None  # where its WAL ends, if not where the log does
    ranges: list[tuple[Lsn, Lsn]] = field(default_factory=list)
    donor_reads: int = 0
    donors: set[int] = field(default_factory=set)

    def begin(self) -> tuple[PrimaryCheck, list[Effect]]:
        configuration = replace(configuration_of(3), segment_bytes=SEGMENT, creation_lsn=lsn(1))
        end_lsn = lsn(1) + len(self.log)
        creation = Fragment(NO_BALLOT, lsn(1), 1, False, configuration.members, 2)
        older = self.older_first
        scope = Range(self.log_first, end_lsn, 0, NO_BALLOT)
        check = PrimaryCheck(
            PrimaryIdentity(
                SYSTEM_ID,
                1,
                self.primary_flush or end_lsn,
                SEGMENT,
                "15.18",
                150018,
                False,
                True,
                True,
            ),
            admission.LogEnd(configuration, (creation,), end_lsn, end_lsn),
            admission.Waivers(),
            scope if older is None else with_older(scope, [(older, 1, self.log_first)]),
            self._held if self.held_from is not None else None,
        )
        return check, check.start()

    def _held(self, begin_lsn: Lsn, size_max: int) -> Buffer | None:
        assert self.held_from is not None
        if begin_lsn < self.held_from:
            return None
        return self.log[begin_lsn - lsn(1) :][:size_max]

    def run(self) -> PrimaryCheck:
        check, todo = self.begin()
        while todo:
            todo += self._answer(check, todo.pop(0))
        return check

    def _answer(self, check: PrimaryCheck, effect: Effect) -> list[Effect]:
        match effect:
            case ReadPrimary(begin_lsn, end_lsn):
                self.ranges.append((begin_lsn, end_lsn))
                if begin_lsn < self.primary_first:
                    return check.on_primary_read_failed("removed", removed=True)
                wal = self.primary[begin_lsn - lsn(1) : end_lsn - lsn(1)]
                return check.on_primary_read(begin_lsn, wal)
            case Send(link, ReadRequest(ballot, begin_lsn, size_max)):
                self.donor_reads += 1
                self.donors.add(link)
                assert begin_lsn >= (self.log_first if link == 0 else self.older_first or END)
                wal = self.log[begin_lsn - lsn(1) :][: min(size_max, 10_000)]
                response = ReadResponse(ballot, begin_lsn, crc_of(wal), wal)
                return check.on_log_read(response) if check.is_answered_by(link, response) else []
            case Note():
                return []
        raise AssertionError(effect)


END = lsn(1) + SEGMENTS * SEGMENT - 1000


def test_the_segment_before_the_ends_is_enough_if_it_tells() -> None:
    wal = wal_of(commits=(4,))
    examination = Examination(wal, wal)
    assert examination.run().verdict is Verdict.PASSED
    assert examination.ranges == [(lsn(4), END)]


def test_the_range_grows_backwards_until_it_tells() -> None:
    wal = wal_of(commits=(2,))
    examination = Examination(wal, wal)
    assert examination.run().verdict is Verdict.PASSED
    assert examination.ranges == [(lsn(4), END), (lsn(3), lsn(4)), (lsn(2), lsn(3))]


def test_it_ends_where_the_log_begins() -> None:
    wal = wal_of(commits=())
    whole = Examination(wal, wal)
    assert whole.run().verdict is Verdict.PASSED
    assert whole.ranges[-1] == (lsn(1), lsn(2))


def test_the_oldest_wal_kept_is_not_where_the_log_begins() -> None:
    """Retention took what would tell: nothing shows that this server wrote the log."""
    wal = wal_of(commits=())
    shortened = Examination(wal, wal, log_first=lsn(3))
    check = shortened.run()
    assert check.verdict is Verdict.REFUSED and "no commit and no checkpoint" in check.text
    assert shortened.ranges == [(lsn(4), END), (lsn(3), lsn(4))]


@pytest.mark.parametrize("log_first", [lsn(3), lsn(5), END])
def test_wal_that_a_donor_does_not_keep_is_read_from_another(log_first: Lsn) -> None:
    wal = wal_of(commits=(2,))
    examination = Examination(wal, wal, log_first=log_first, older_first=lsn(1))
    assert examination.run().verdict is Verdict.PASSED
    assert examination.ranges[-1] == (lsn(2), lsn(3)) and 1 in examination.donors
    other = bytearray(wal)
    other[SEGMENT + 1000] ^= 1
    check = Examination(wal, bytes(other), log_first=log_first, older_first=lsn(1)).run()
    assert check.verdict is Verdict.REFUSED and "another branch" in check.text
    check = Examination(wal, wal, log_first=log_first, older_first=lsn(3)).run()
    assert check.verdict is Verdict.REFUSED and "no commit and no checkpoint" in check.text


def test_a_log_without_a_byte_needs_no_read() -> None:
    examination = Examination(b"", b"")
    assert examination.run().verdict is Verdict.PASSED and examination.ranges == []


@pytest.mark.parametrize("end", [1, 8191, 8192, 8193, SEGMENT, SEGMENT + 1, 2 * SEGMENT])
def test_every_end_is_compared_to_the_last_byte(end: int) -> None:
    wal = wal_of(commits=(1, 2), end=3 * SEGMENT)[:end]
    assert Examination(wal, wal).run().verdict is Verdict.PASSED
    other = wal[:-1] + bytes([wal[-1] ^ 1])
    check = Examination(wal, other).run()
    assert check.verdict is Verdict.REFUSED and "differs" in check.text


def test_one_byte_anywhere_in_the_range_is_found() -> None:
    wal, random = wal_of(commits=(4,)), Random(11)
    for at in [
        3 * SEGMENT,
        len(wal) - 1,
        *(random.randrange(3 * SEGMENT, len(wal)) for _ in "x" * 30),
    ]:
        other = bytearray(wal)
        other[at] ^= 1 << random.randrange(8)
        check = Examination(wal, bytes(other)).run()
        assert check.verdict is Verdict.REFUSED and "differs" in check.text, f"{at=}"
        assert str((lsn(1) + at).round_down(8192)) in check.text


def test_a_primary_that_recycled_the_earlier_segment_is_compared_from_where_its_wal_begins() -> (
    None
):
    wal = wal_of(commits=(5,))
    examination = Examination(wal, wal, primary_first=lsn(5))
    assert examination.run().verdict is Verdict.PASSED
    assert examination.ranges == [(lsn(4), END), (lsn(5), END)]
    other = wal[:-1] + bytes([wal[-1] ^ 1])
    assert Examination(wal, other, primary_first=lsn(5)).run().verdict is Verdict.REFUSED


@pytest.mark.parametrize(
    ("commits", "primary_first", "end"),
    [
        ((4,), 5, END - lsn(1)),  # the rest has no telling record
        ((2,), 4, END - lsn(1)),  # the range would have to grow into what is gone
        ((4, 5), 6, END - lsn(1)),  # no WAL is left
        ((4,), 5, 4 * SEGMENT),  # the log ends where the primary's WAL begins
    ],
)
def test_a_primary_that_cannot_show_what_tells_is_refused(
    commits: tuple[int, ...], primary_first: int, end: int
) -> None:
    wal = wal_of(commits=commits)[:end]
    check = Examination(wal, wal, primary_first=lsn(primary_first)).run()
    assert check.verdict is Verdict.REFUSED and "58P01" in check.text
    assert "(detached), it has commits that this log lacks: do not rebuild it" in check.text


def test_a_source_that_went_away_is_no_verdict_on_the_primary() -> None:
    wal = wal_of(commits=(4,))
    check, _ = Examination(wal, wal).begin()
    check.on_primary_read_failed("the connection was reset", removed=False)
    assert check.verdict is Verdict.UNKNOWN
    for payload, crc in ((b"", 0), (wal[3 * SEGMENT :][:100], 1)):
        check, _ = Examination(wal, wal).begin()
        check.on_log_read(ReadResponse(NO_BALLOT, lsn(4), crc, payload))
        assert check.verdict is Verdict.UNKNOWN, f"{crc=}"


def test_only_the_read_that_is_under_way_is_an_answer() -> None:
    wal = wal_of(commits=(4,))
    check, _ = Examination(wal, wal).begin()
    right = ReadResponse(NO_BALLOT, lsn(4), 0, b"")
    assert check.is_answered_by(0, right)
    assert not check.is_answered_by(1, right)
    assert not check.is_answered_by(0, replace(right, begin_lsn=lsn(4, 8192)))
    assert not check.is_answered_by(0, replace(right, ballot=NO_BALLOT._replace(term=1)))


def test_wal_that_the_leader_holds_itself_is_not_read_from_a_donor() -> None:
    wal = wal_of(commits=(4,))
    all_held = Examination(wal, wal, held_from=lsn(1))
    assert all_held.run().verdict is Verdict.PASSED and all_held.donor_reads == 0
    half_held = Examination(wal, wal, held_from=lsn(5))
    assert half_held.run().verdict is Verdict.PASSED and half_held.donor_reads > 0
    other = wal[:-1] + bytes([wal[-1] ^ 1])
    assert Examination(wal, other, held_from=lsn(5)).run().verdict is Verdict.REFUSED


def test_a_shorter_primary_is_compared_before_its_position_is_judged() -> None:
    """R23: with equal numbers it lost WAL, or it never had it."""
    wal = wal_of(commits=(4,))
    for cut in (1, 8, 300, 9000, SEGMENT + 8):
        left, flush_lsn = wal[:-cut], lsn(1) + len(wal) - cut
        check = Examination(wal, left, primary_flush=flush_lsn).run()
        assert check.verdict is Verdict.REFUSED and f"lost {cut} bytes" in check.text
        other = left[:-1] + bytes([left[-1] ^ 1])
        check = Examination(wal, other, primary_flush=flush_lsn).run()
        assert check.verdict is Verdict.REFUSED, cut
        assert "another branch with the same number" in check.text and "lost" not in check.text


def test_a_shorter_primary_that_cannot_be_compared_is_refused_for_its_position() -> None:
    wal = wal_of(commits=(4,))
    flush_lsn = lsn(1) + len(wal) - 8
    gone = Examination(wal, wal[:-8], primary_first=flush_lsn, primary_flush=flush_lsn).run()
    assert gone.verdict is Verdict.REFUSED and "lost 8 bytes" in gone.text
    empty = Examination(wal, b"", primary_flush=lsn(1))
    check = empty.run()
    assert check.verdict is Verdict.REFUSED and "bytes that may have" in check.text
    assert not empty.ranges, "nothing of the log to compare"


def test_a_primary_from_before_a_promotion_is_refused() -> None:
    configuration = configuration_of(3)
    creation = Fragment(NO_BALLOT, lsn(1), 1, False, configuration.members, 2)
    log = admission.LogEnd(
        replace(configuration, segment_bytes=SEGMENT),
        (creation, replace(creation, start_lsn=lsn(2), timeline=2)),
        lsn(3),
        lsn(3),
    )
    behind = PrimaryIdentity(SYSTEM_ID, 1, lsn(9), SEGMENT, "15.18", 150018, False, True, True)
    said = admission.refusal(behind, log, admission.Waivers())
    assert said is not None and "pg_rewind" in said
    on_it = replace(behind, timeline=2, timeline_file=b"1\t0/20000\tno recovery target\n")
    assert admission.refusal(on_it, log, admission.Waivers()) is None
