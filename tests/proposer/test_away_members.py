"""The members that are away: their ids, and since when. Pure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.wire.framing import FrameReader, encode
from walkeeper_common.wire.members_report import AWAY_MAX, AwayMember, MembersReport
from walkeeper_common.wire.primary_report import PrimaryReport
from walkeeper_proposer.away_members import AwayMembers, MemberView
from walkeeper_proposer.postgres.sync_state import ABSENT, Commits
from walkeeper_proposer.reporting import PrimaryReporter


def views(*attached: int) -> list[MemberView]:
    return [MemberView(f"h{n}:1", n if n in attached else None, n in attached) for n in (1, 2, 3)]


def test_a_member_is_away_since_it_was_lost_and_keeps_its_id() -> None:
    """The core forgets the greeting of a member that it loses."""
    away = AwayMembers()
    assert away.observe(views(1, 2, 3), 100) == ()
    assert away.observe(views(1, 2), 110) == (AwayMember(3, "h3:1", 110),)
    assert away.observe(views(1, 2), 150) == (AwayMember(3, "h3:1", 110),)
    assert away.observe(views(1), 160) == (
        AwayMember(2, "h2:1", 160),
        AwayMember(3, "h3:1", 110),
    )
    assert away.observe(views(1, 2, 3), 170) == ()
    assert away.observe(views(1, 2), 180) == (AwayMember(3, "h3:1", 180),)


def test_a_member_that_never_greeted_is_away_since_the_first_look() -> None:
    away = AwayMembers()
    for now in (100, 101):
        assert away.observe(views(1, 2), now) == (AwayMember(0, "h3:1", 100),)


def test_a_report_is_bounded() -> None:
    many = [MemberView(f"h{n}:1", n, attached=False) for n in range(1, AWAY_MAX + 9)]
    assert len(AwayMembers().observe(many, 1)) == AWAY_MAX


def leading() -> Any:
    member = SimpleNamespace(link=0, name="3#00", attached=False)
    leader = SimpleNamespace(is_streaming=True)
    ballot = SimpleNamespace(proposer_id=b"p" * 16)
    return SimpleNamespace(leader=leader, primary=object(), ballot=ballot, members=[member])


def test_a_safekeeper_of_an_older_version_learns_the_report_on_the_primary() -> None:
    """It closes the connection on the other report, whose tag it does not know."""
    sync_state: Any = SimpleNamespace(commits=Commits())
    reporter = PrimaryReporter("main", leading, lambda: (("h3", 1),), sync_state)
    first, second = reporter.reports()
    assert isinstance(first, PrimaryReport) and isinstance(second, MembersReport)
    assert [(one.acceptor_id, one.address) for one in second.away] == [(3, "h3:1")]
    data = b"".join(bytes(part) for part in encode(first)) + b"\0\0\0\1\xff"
    reader = FrameReader()
    reader.buffer()[: len(data)] = data
    received = reader.received(len(data))
    assert next(received) == first
    with pytest.raises(RemoteProtocolError, match="tag"):
        next(received)


def test_an_answer_from_before_the_connection_is_no_sync_state() -> None:
    """`status` said that the proposer was absent at the primary to which it streamed."""
    sync_state: Any = SimpleNamespace(commits=Commits(ABSENT))
    reporter = PrimaryReporter("main", leading, lambda: (("h3", 1),), sync_state)
    report = reporter.report()
    assert report is not None and (report.connected, report.sync_state) == (True, "")
    sync_state.commits = Commits("sync")
    report = reporter.report()
    assert report is not None and report.sync_state == "sync"


def test_a_primary_that_streams_and_answers_no_sql_is_reported_with_the_reason() -> None:
    """`status --dsn` has no answer of its own then, and asks whether the proposer has one."""
    sync_state: Any = SimpleNamespace(commits=Commits(error="sorry, too many clients already"))
    report = PrimaryReporter("main", leading, lambda: (("h3", 1),), sync_state).report()
    assert report is not None and (report.connected, report.sync_state) == (True, "")
    assert report.error == "sorry, too many clients already"
