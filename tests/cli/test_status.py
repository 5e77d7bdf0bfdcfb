"""What `walkeeper status` says of what it was told, and of what it could not know. Pure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from walkeeper_cli.cluster import status
from walkeeper_cli.cluster.safekeeper_client import Unreachable
from walkeeper_cli.cluster.status import DEGRADED, NO_QUORUM, OK, gather, table, verdict
from walkeeper_common.addresses import Address
from walkeeper_common.wire.requests import StatusResponse

MEMBERS = ["1#a", "2#b", "3#c"]


def line(number: int | None, **facts: Any) -> dict[str, Any]:
    answered = number is not None
    return {
        "id": number, "address": f"h{number}:1", "reachable": answered, "error": None,
        "term": 4 if answered else None, "timeline": 1, "standbys": [], "archived_lsn": None,
        "flush_lsn": "0/5", "commit_lsn": "0/5", "restart_lsn": "0/1", "end_lsn": None,
        "archive": None, **facts,
    }  # fmt: skip


def document(*lines: dict[str, Any], members: list[str] = MEMBERS) -> dict[str, Any]:
    cluster = {
        "name": "main", "generation": 1, "term": 4, "commit_lsn": "0/5", "timeline": 1,
        "quorum": False, "proposer": None, "members": members, "replacing": None,
        "segment_bytes": 1 << 24, "heard_by_quorum": True, "not_hearing": [],
    }  # fmt: skip
    return {"cluster": cluster, "safekeepers": list(lines)}


DOWN = line(None, error="unreachable")


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (
            [line(1)],
            "no quorum among those asked; 2 of its 3 safekeepers were not asked: name all with "
            "--safekeepers",
        ),
        ([line(1), DOWN, DOWN], "no quorum: commits hang; blocked by hNone:1, hNone:1"),
        (
            [line(1), line(2, error="its disk failed"), DOWN],
            "no quorum: commits hang; blocked by safekeeper 2, hNone:1",
        ),
    ],
)
def test_without_a_quorum_commits_hang_if_all_were_asked(
    lines: list[dict[str, Any]], sentence: str
) -> None:
    assert verdict(document(*lines)) == (NO_QUORUM, sentence)


def test_a_replacement_is_told_of_whether_a_proposer_leads_or_not() -> None:
    found = document(line(1), line(2), DOWN)
    change = {"leaving": 3, "joining": 4, "bytes_to_go": 7_000}
    found["cluster"] |= {"quorum": True, "replacing": change}
    under_way = "safekeeper 3 is being replaced by 4, 7,000 bytes to go"
    assert verdict(found) == (
        NO_QUORUM,
        f"no proposer leads: commits of an attached primary hang; {under_way}",
    )
    found["cluster"]["proposer"] = {"name": "walkeeper"}
    assert verdict(found) == (DEGRADED, f"degraded: {under_way}, commits go on")


LEADER = {"id": "aa", "address": "p", "application_name": "walkeeper"}
OTHER = {**LEADER, "id": "bb"}
DEAF = None  # it answers, and hears no proposer


@pytest.mark.parametrize(
    ("heard", "code", "sentence"),
    [
        ({1: LEADER, 2: LEADER, 3: LEADER}, OK, "ok: every safekeeper has what is committed"),
        (
            {1: LEADER, 2: LEADER, 3: DEAF},
            DEGRADED,
            "degraded: the proposer is not heard by safekeeper 3, commits go on",
        ),
        (
            {1: OTHER, 2: LEADER, 3: LEADER},  # one that was deposed, in an older term
            DEGRADED,
            "degraded: the proposer is not heard by safekeeper 1, commits go on",
        ),
        (
            {1: DEAF, 3: LEADER},
            NO_QUORUM,
            "no quorum: commits hang; blocked by h2:1, safekeeper 1 (does not hear the proposer)",
        ),
        ({1: LEADER, 3: LEADER}, DEGRADED, "degraded: h2:1 down, commits go on"),
        (
            {1: DEAF, 2: DEAF, 3: DEAF},  # created, settled, or between two proposers
            NO_QUORUM,
            "no proposer leads: commits of an attached primary hang",
        ),
    ],
)
def test_who_does_not_hear_the_proposer_does_not_acknowledge(
    heard: dict[int, Any], code: int, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verdict(asked(heard, monkeypatch)) == (code, sentence)


def test_during_a_replacement_both_sets_of_members_must_hear_the_proposer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change = {"leaving": "3#c", "joining": "4#d"}
    found = asked({1: LEADER, 2: LEADER, 3: DEAF, 4: DEAF}, monkeypatch, change)
    assert verdict(found)[0] == DEGRADED and "being replaced" in verdict(found)[1]
    found = asked({1: LEADER, 2: DEAF, 3: LEADER, 4: DEAF}, monkeypatch, change)
    assert verdict(found)[0] == NO_QUORUM and "safekeeper 2 (does not hear" in verdict(found)[1]


def test_a_replaced_member_that_nobody_has_told_is_no_healthy_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It came back with its old disk, and nobody has its address but the operator who asks."""
    newest = {"generation": 3, "members": ["1#a", "2#b", "4#d"]}
    heard = {1: LEADER, 2: LEADER, 3: DEAF, 4: LEADER}
    found = asked(heard, monkeypatch, newer=dict.fromkeys((1, 2, 4), newest))
    assert verdict(found) == (DEGRADED, "degraded: safekeeper 3 down, commits go on")
    said = "it has the configuration of generation 1, and those of generation 3 are 1, 2, 4"
    assert f"safekeeper 3#c was replaced: {said}" in table(found)
    assert [each["error"] is None for each in found["safekeepers"]] == [True, True, False, True]
    found = asked(heard, monkeypatch, newer={1: newest})  # who has not heard of it is a member
    assert [each["error"] is None for each in found["safekeepers"]] == [True, True, False, True]


def test_nothing_is_said_of_members_that_were_not_asked_whether_they_hear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = asked({1: DEAF, 2: LEADER}, monkeypatch, ports=(1, 2))
    assert verdict(found)[1].startswith("no quorum among those asked; 1 of its 3 safekeepers")


def asked(
    heard: dict[int, Any],
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, str] | None = None,
    ports: tuple[int, ...] = (1, 2, 3),
    newer: Mapping[int, dict[str, Any]] = MappingProxyType({}),
) -> dict[str, Any]:
    """The document of status; whoever is not in `heard` is down. `newer`: who knows what of a newer
    configuration."""
    facts = {
        "system_id": "7", "generation": 1, "ack_quorum": 2, "members": MEMBERS,
        "segment_bytes": 1 << 24, **(change or {}),
    }  # fmt: skip

    async def answer(address: Address, *_: object) -> StatusResponse:
        number = int(address[0].removeprefix("h"))
        if number not in heard:
            raise Unreachable("connection refused")
        told = {
            **line(number), "incarnation": "abcd"[number - 1], "proposer": heard[number],
            "term": 3 if heard[number] is OTHER else 4, "last_log_term": 4, "sealed": False,
            "cluster": {**facts, **newer.get(number, {})},
        }  # fmt: skip
        return StatusResponse(json.dumps(told).encode())

    monkeypatch.setattr(status, "ask", answer)
    numbers = sorted({*ports, *heard})
    return asyncio.run(gather([(f"h{number}", 1) for number in numbers], "main", 1.0))


def test_a_log_that_nobody_tells_of_has_no_facts() -> None:
    stranger = line(2, error="safekeeper 2 has no log of cluster 'main'", term=None)
    said = table(document(DOWN, stranger, members=[]))
    assert "nobody who was asked tells of this log: hNone:1, safekeeper 2" in said
    assert "None, " not in said and "commits hang" not in said
    assert verdict(document(DOWN, members=[]))[1] == "no quorum: none answers of hNone:1"
    assert [row.split()[2] for row in said.splitlines()[1:3]] == ["DOWN", "ERROR"]


def test_the_names_of_peers_do_not_control_a_terminal() -> None:
    """A greeting with escapes as its application's name erased the table that `status` printed."""
    hostile = "\x1b]0;title\x07\x1b[2J \nok"
    shown = document(line(1, standbys=[{"application_name": hostile}]), line(2), line(3))
    shown["cluster"]["proposer"] = {"application_name": hostile, "address": "\x9b2J"}
    text = table(shown)
    assert not set(text) & set("\x1b\x07\x9b") and "\nok" not in text and r"\x1b[2J \nok" in text
