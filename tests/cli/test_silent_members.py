"""A member that does not answer: `status` names it by its id, and says since when. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.status_documents import DEAF, LEADER, asked
from walkeeper_admin.log_verdict import judge
from walkeeper_admin.status import table

SINCE = "2026-01-02T03:04:05Z"
OTHERS = {1: LEADER, 2: LEADER}


def away(number: int | None, address: str) -> dict[str, Any]:
    return {"id": number, "address": address, "since": SINCE}


def found(
    monkeypatch: pytest.MonkeyPatch, reported: list[dict[str, Any]] | None, *ports: int
) -> list[tuple[str, int | None, str | None]]:
    """Return the reasons of those that do not answer: text, member and since."""
    document = asked(OTHERS, monkeypatch, ports=ports or (1, 2, 3), extra={"away": reported})
    reasons = [each for each in judge(document).reasons if each.code == "unreachable"]
    assert all(each.whose in table(document) for each in reasons)
    return [(each.text, each.member, each.since) for each in reasons]


NAMED = "safekeeper 3 at h3:1 (does not answer)"


def test_the_proposers_report_names_a_silent_member_and_says_since_when(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert found(monkeypatch, [away(3, "h3:1")]) == [(NAMED, 3, SINCE)]
    document = asked(OTHERS, monkeypatch, extra={"away": [away(3, "h3:1")]})
    assert f"WARNING unreachable of safekeeper 3 at h3:1 since {SINCE}: " in table(document)
    assert document["cluster"]["away"] == [away(3, "h3:1")]
    (reason,) = document["reasons"]
    assert (reason["member"], reason["since"]) == (3, SINCE)


def test_an_operator_may_write_the_address_in_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, [away(3, "10.0.0.3:1")]) == [(NAMED, 3, SINCE)]


def test_the_only_member_that_is_left_has_the_only_address_that_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert found(monkeypatch, None) == [(NAMED, 3, None)], "no proposer reports"
    assert found(monkeypatch, [away(None, "h3:1")]) == [(NAMED, 3, SINCE)], "it never greeted"
    two = [text for text, _, _ in found(monkeypatch, None, 1, 2, 3, 9)]
    assert two == ["h3:1 (does not answer)", "h9:1 (does not answer)"]


def test_an_address_that_no_member_has_gets_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proposer has all members, so a wrong address is none of them."""
    assert found(monkeypatch, [], 1, 2, 9) == [("h9:1 (does not answer)", None, None)]
    both = found(monkeypatch, [away(3, "h3:1")], 1, 2, 3, 9)
    assert both == [(NAMED, 3, SINCE), ("h9:1 (does not answer)", None, None)]


def test_a_member_that_answers_and_is_not_attached_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A disk with 5 s for each fdatasync: `status --check` said that every safekeeper has all."""
    heard = {**OTHERS, 3: LEADER}
    document = asked(heard, monkeypatch, extra={"away": [away(3, "h3:1")]})
    (reason,) = judge(document).reasons
    assert (reason.code, reason.member, reason.since) == ("not_heard", 3, SINCE)
    text = "safekeeper 3 answers, and is not attached to the proposer, commits go on"
    assert judge(document).text == f"degraded: {text}" and f"since {SINCE}" in table(document)
    assert not judge(asked(heard, monkeypatch, extra={"away": []})).reasons
    assert not judge(asked(heard, monkeypatch, extra={"away": None})).reasons, "an older proposer"


def test_a_member_that_does_not_hear_the_proposer_is_named_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    document = asked({**OTHERS, 3: DEAF}, monkeypatch, extra={"away": [away(3, "h3:1")]})
    assert [reason.text for reason in judge(document).reasons] == [
        "the proposer is not heard by safekeeper 3"
    ]
