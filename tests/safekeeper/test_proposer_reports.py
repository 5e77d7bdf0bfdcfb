"""The proposer's reports on its primary and the members: bounded in number, size and age. Pure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.operator_text.times import UNIX_S_MAX, shown_time
from walkeeper_common.wire.fields import Reader, Writer
from walkeeper_common.wire.members_report import (
    ADDRESS_BYTES_MAX,
    AWAY_MAX,
    AwayMember,
    MembersReport,
)
from walkeeper_common.wire.primary_report import (
    LOWERED_MAX,
    TEXT_BYTES_MAX,
    PrimaryReport,
    clipped,
)
from walkeeper_safekeeper.proposer_reports import REPORTS_MAX, TICKS_MAX, ProposerReports

REPORT = PrimaryReport("main", b"p" * 16, True, True, "sync", 5, 0, 0, (), "")


def test_a_report_is_forgotten_when_its_proposer_repeats_it_no_more() -> None:
    facts = ProposerReports[PrimaryReport]()
    facts.learn(REPORT)
    for _ in range(TICKS_MAX):
        facts.tick()
    assert facts.of(REPORT.proposer_id) == REPORT and facts.of(bytes(16)) is None
    facts.tick()
    assert facts.of(REPORT.proposer_id) is None


def test_strangers_do_not_fill_the_memory_nor_hide_a_proposer_that_repeats_itself() -> None:
    facts = ProposerReports[PrimaryReport]()
    for number in range(3 * REPORTS_MAX):
        facts.learn(REPORT)
        facts.learn(replace(REPORT, proposer_id=bytes([number]) * 16))
    assert facts.of(REPORT.proposer_id) == REPORT
    assert sum(facts.of(bytes([n]) * 16) is not None for n in range(100)) == REPORTS_MAX - 1


@pytest.mark.parametrize(
    "report",
    [
        replace(REPORT, lowered=("x",) * (LOWERED_MAX + 1)),
        replace(REPORT, error="é" * TEXT_BYTES_MAX),
        replace(REPORT, sync_state="s" * (TEXT_BYTES_MAX + 1)),
    ],
)
def test_a_report_that_is_too_large_is_refused(report: PrimaryReport) -> None:
    writer = Writer()
    report.pack(writer)
    with pytest.raises(RemoteProtocolError, match="a report"):
        PrimaryReport.unpack(Reader(memoryview(writer.finish())))
    assert len(clipped(report.error).encode()) <= TEXT_BYTES_MAX


@pytest.mark.parametrize(
    "away",
    [
        (AwayMember(3, "h", 1),) * (AWAY_MAX + 1),
        (AwayMember(3, "h" * (ADDRESS_BYTES_MAX + 1), 1),),
    ],
)
def test_a_report_of_too_many_members_is_refused(away: tuple[AwayMember, ...]) -> None:
    writer = Writer()
    MembersReport("main", b"p" * 16, away).pack(writer)
    with pytest.raises(RemoteProtocolError, match="a report"):
        MembersReport.unpack(Reader(memoryview(writer.finish())))


def test_a_time_that_no_calendar_has_is_not_shown() -> None:
    assert shown_time(1_700_000_000) == "2023-11-14T22:13:20Z"
    assert [shown_time(n) for n in (0, UNIX_S_MAX, (1 << 64) - 1)] == [None] * 3
    assert shown_time(UNIX_S_MAX - 1) is not None
