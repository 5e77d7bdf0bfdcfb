"""`status` of a log that was closed: no proposer is missing, and a half close is named."""

from __future__ import annotations

from typing import Any

from walkeeper_admin.check.finding import Grade
from walkeeper_admin.check.status_checks import _members
from walkeeper_admin.closed_logs import closed_facts
from walkeeper_admin.log_verdict import State, judge
from walkeeper_admin.status import table

FACTS: dict[str, Any] = {"members": ["1#a", "2#b", "3#c"], "ack_quorum": 2}


def answer(closed_lsn: str | None, last_log_term: int = 7) -> dict[str, Any]:
    return {"closed_lsn": closed_lsn, "last_log_term": last_log_term}


def facts(*answers: dict[str, Any]) -> dict[str, Any]:
    best = max(answers, key=lambda each: each["last_log_term"])
    return closed_facts(FACTS, best, answers, FACTS["members"][: len(answers)])


def line(number: int, closed_lsn: str | None) -> dict[str, Any]:
    return {
        "id": number, "address": f"h{number}:1", "reachable": True, "error": None, "term": 7,
        "timeline": 1, "standbys": [], "archived_lsn": None, "flush_lsn": "0/5",
        "commit_lsn": "0/5", "restart_lsn": "0/1", "end_lsn": None, "archive": None,
        "closed_lsn": closed_lsn,
    }  # fmt: skip


def document(known: dict[str, Any], *lines: dict[str, Any]) -> dict[str, Any]:
    cluster = {
        "name": "main", "generation": 1, "term": 7, "commit_lsn": "0/5", "timeline": 1,
        "quorum": True, "proposer": None, "members": FACTS["members"], "ack_quorum": 2,
        "replacing": None, "segment_bytes": 1 << 24, "heard_by_quorum": False,
        "not_hearing": [1, 2, 3], "spares": [], **known,
    }  # fmt: skip
    return {"cluster": cluster, "safekeepers": list(lines)}


def test_a_close_counts_when_an_ack_quorum_has_it() -> None:
    closed = answer("0/5")
    assert facts(closed, closed) == {"closed_lsn": "0/5", "is_closing": False}
    assert facts(closed, answer(None, 6)) == {"closed_lsn": None, "is_closing": True}
    assert facts(closed, answer("0/5", 6)) == {"closed_lsn": None, "is_closing": True}
    assert facts(answer(None), answer("0/5", 6)) == {"closed_lsn": None, "is_closing": False}
    earlier_version = {"last_log_term": 7}
    assert facts(earlier_version) == {"closed_lsn": None, "is_closing": False}


def test_a_closed_log_needs_no_proposer() -> None:
    known = facts(answer("0/5"), answer("0/5"), answer("0/5"))
    found = document(known, *(line(n, "0/5") for n in (1, 2, 3)))
    verdict = judge(found)
    assert verdict.state is State.OK and "closed at 0/5" in verdict.text
    assert "; closed at 0/5" in table(found | {"spares": []})


def test_a_member_that_was_away_is_named_with_the_command() -> None:
    known = facts(answer("0/5"), answer("0/5"), answer(None, 6))
    verdict = judge(document(known, line(1, "0/5"), line(2, "0/5"), line(3, None)))
    (reason,) = verdict.reasons
    assert verdict.state is State.WARNING and reason.code == "closing"
    assert "safekeeper 3 does not know" in reason.text
    assert "walkeeper logs close main" in reason.remedy


def test_an_interrupted_close_is_named_with_the_command() -> None:
    known = facts(answer("0/5"), answer(None, 6), answer(None, 6))
    verdict = judge(document(known, line(1, "0/5"), line(2, None), line(3, None)))
    (reason,) = verdict.reasons
    assert verdict.state is State.CRITICAL and reason.code == "closing"
    assert "interrupted" in reason.text and "walkeeper logs close main" in reason.remedy


def asked(**primary: Any) -> dict[str, Any]:
    """Return the document of a closed log whose `--dsn` answered so."""
    report = {
        "connected": False, "streaming": False, "sync_state": "absent", "since": None, "waiting": 0,
        "waiting_since": None, "lowered": [], "error": "no proposer walkeeper is connected to it",
    }  # fmt: skip
    known = facts(answer("0/5"), answer("0/5"), answer("0/5"))
    known["primary"] = {**report, **primary}
    return document(known, *(line(n, "0/5") for n in (1, 2, 3)))


def test_a_closed_log_wants_no_primary() -> None:
    detached = asked()
    of_another_log = asked(connected=True, streaming=True, sync_state="async", waiting=2)
    for found in (detached, of_another_log):
        assert judge(found).state is State.OK
        (members,) = _members(found)
        assert members.grade is Grade.OK and "closed at 0/5" in members.text


def test_commits_that_wait_for_a_closed_log_are_critical() -> None:
    (reason,) = judge(asked(waiting=1, waiting_since="2026-11-27T00:00:00Z")).reasons
    assert reason.text.startswith("1 commit waits since 2026-11-27T00:00:00Z for the proposer")
    assert reason.code == "commits_wait" and reason.state is State.CRITICAL
    assert "closed" in reason.text and "walkeeper detach" in reason.remedy
