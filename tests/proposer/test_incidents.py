"""The log tells an incident: members by id and address, commits that hang, and their end. Pure."""

from __future__ import annotations

from dataclasses import replace

from walkeeper_common.history import NO_BALLOT
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.severity import Severity
from walkeeper_common.wire.messages import Reject, RejectCode
from walkeeper_proposer.away_members import MemberView
from walkeeper_proposer.consensus.progress import Member
from walkeeper_proposer.consensus.rejections import note_of
from walkeeper_proposer.incidents import HANG_S, STILL_S, Incidents, LeaderView


def view(*attached: int, commit: int = 100, received: int = 100) -> LeaderView:
    members = [
        MemberView(f"h{n}:1", n if n in attached else None, n in attached) for n in (1, 2, 3)
    ]
    return LeaderView(members, 2, Lsn(commit), Lsn(received))


def told(incidents: Incidents, seen: LeaderView | None, now_s: float) -> list[tuple[str, str]]:
    return [(line.severity.value, line.text) for line in incidents.observe(seen, now_s)]


def test_commits_that_hang_are_an_error_and_their_end_is_logged_with_the_time() -> None:
    incidents = Incidents()
    assert told(incidents, view(1, 2, 3), 0.0) == []
    ((severity, text),) = told(incidents, view(1, 2), 1.0)
    assert severity == "WARNING" and text == (
        "safekeeper 3 at h3:1 is not attached any more: 2 of 3 are, and a commit needs 2"
    )
    assert len(told(incidents, view(1), 2.0)) == 1, "a restart may pass within HANG_S"
    ((severity, text),) = told(incidents, view(1), 2.0 + HANG_S)
    assert severity == "ERROR" and text.startswith("commits hang: 1 of the 2 safekeepers")
    assert "missing: safekeeper 2 at h2:1, safekeeper 3 at h3:1" in text and "#no_quorum" in text
    assert told(incidents, view(1), 30.0) == [], "once"
    again, on = told(incidents, view(1, 3), 42.0)
    assert again[0] == "LOG" and "safekeeper 3 at h3:1 is attached again: 2 of 3" in again[1]
    assert on == ("LOG", "commits go on after 40 s")


def test_attached_members_that_acknowledge_nothing_hang_commits_as_well() -> None:
    incidents = Incidents()
    assert told(incidents, view(1, 2, 3, received=200), 0.0) == []
    assert told(incidents, view(1, 2, 3, commit=150, received=200), STILL_S) == [], "it moves"
    ((severity, text),) = told(incidents, view(1, 2, 3, commit=150, received=300), 2 * STILL_S)
    assert severity == "ERROR" and "after 0/96" in text and "3 safekeepers are attached" in text
    assert told(incidents, view(1, 2, 3, commit=150, received=300), 3 * STILL_S) == []
    assert told(incidents, view(1, 2, 3, commit=300, received=300), 4 * STILL_S) == [
        ("LOG", "commits go on after 15 s")
    ]


def test_a_proposer_that_does_not_lead_says_nothing_of_commits() -> None:
    incidents = Incidents()
    assert told(incidents, view(1), 0.0) == []
    assert told(incidents, None, 10.0) == []
    assert told(incidents, view(1), 20.0) == [], "the time without a leader does not count"
    assert incidents.observe(view(1), 20.0 + HANG_S)[0].severity is Severity.ERROR


def test_a_lost_quorum_is_no_error_while_no_commit_waits() -> None:
    incidents = Incidents()
    alone = replace(view(1), is_waited_for=False)
    assert told(incidents, alone, 0.0) == []
    ((severity, text),) = told(incidents, alone, HANG_S)
    assert severity == "WARNING" and "no commit waits for it: 1 of the 2 safekeepers" in text


def test_commits_that_lose_their_guarantee_are_a_warning() -> None:
    """An attached primary is edited by hand, and nobody asks `status`."""
    incidents = Incidents()
    sound = view(1, 2, 3)
    free = replace(sound, is_waited_for=False)
    assert told(incidents, free, 0.0) == [], "it is not attached yet"
    assert told(incidents, sound, 1.0) == [("LOG", "commits wait for the quorum")]
    ((severity, text),) = told(incidents, free, 2.0)
    assert severity == "WARNING" and "`walkeeper attach`" in text and "#unprotected" in text
    assert told(incidents, free, 3.0) == [], "once"


def test_a_lowered_setting_is_a_warning_once_and_its_end_is_logged() -> None:
    incidents = Incidents()
    lowered = replace(view(1, 2, 3), lowered=("synchronous_commit=off for role app",))
    assert told(incidents, view(1, 2, 3), 0.0) == []
    ((severity, text),) = told(incidents, lowered, 1.0)
    assert severity == "WARNING" and "for role app" in text and "#lowered" in text
    assert told(incidents, lowered, 2.0) == []
    assert told(incidents, view(1, 2, 3), 3.0)[0][0] == "LOG"


def test_a_reject_names_the_member_and_has_the_weight_of_its_code() -> None:
    member = Member(2, name="3#aa")

    def severity(code: RejectCode) -> Severity:
        note = note_of(member, Reject(code, "why", NO_BALLOT))
        assert note.text == "safekeeper 3: why" and ("link", 2) in note.facts
        return note.severity

    assert severity(RejectCode.NO_SPACE) is Severity.WARNING
    assert severity(RejectCode.STORAGE_FAILED) is Severity.ERROR
    assert severity(RejectCode.STALE_GENERATION) is Severity.LOG
