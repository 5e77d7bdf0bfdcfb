"""`walkeeper status` reports what it has learned, and what it could not know. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.cli.status_documents import (
    AWAY,
    DEAF,
    DOWN,
    LEADER,
    MEMBERS,
    OTHER,
    asked,
    document,
    line,
)
from tests.house.monitoring.alerts import ALERTS
from tests.support.folders import ROOT
from tests.support.scenario_words import CREATION_LSN, configuration_of
from walkeeper_admin import log_verdict as judging
from walkeeper_admin.member_troubles import TROUBLES
from walkeeper_admin.status import (
    DEGRADED,
    NO_QUORUM,
    OK,
    UNKNOWN,
    primary_line,
    table,
    verdict,
    with_verdict,
)
from walkeeper_cli.commands.status import command
from walkeeper_common.history import NO_BALLOT, Fragment
from walkeeper_common.wire.member_change import replaced_text


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (
            [line(1)],
            "no quorum among those asked; 2 of its 3 safekeepers were not asked: name all with "
            "--safekeepers",
        ),
        (
            [line(1), DOWN, DOWN],
            f"no quorum: commits hang; blocked by {AWAY}, {AWAY}",
        ),
        (
            [line(1), line(2, error="EIO", trouble="failed"), DOWN],
            "no quorum: commits hang; blocked by safekeeper 2 (its disk failed: EIO), " + AWAY,
        ),
    ],
)
def test_without_a_quorum_commits_hang_if_all_were_asked(
    lines: list[dict[str, Any]], sentence: str
) -> None:
    code = UNKNOWN if "were not asked" in sentence else NO_QUORUM
    assert verdict(document(*lines)) == (code, sentence)


def test_a_replacement_is_told_of_whether_a_proposer_leads_or_not() -> None:
    found = document(line(1), line(2), DOWN)
    change: dict[str, int | None] = {"leaving": 3, "joining": 4, "bytes_to_go": 7_000}
    found["cluster"] |= {"quorum": True, "replacing": change}
    under_way = "safekeeper 3 is being replaced by 4, 7,000 bytes to go"
    assert verdict(found) == (
        NO_QUORUM,
        f"no proposer leads: commits of an attached primary hang; {under_way}",
    )
    found["cluster"]["proposer"] = {"name": "walkeeper"}
    assert verdict(found) == (DEGRADED, f"degraded: {under_way}, commits go on")
    change |= {"bytes_to_go": None}
    unheard = "which does not answer (--safekeepers has to name it)"
    said = f"degraded: safekeeper 3 is being replaced by 4, {unheard}, commits go on"
    assert verdict(found) == (DEGRADED, said)
    found["safekeepers"].append(line(4))
    said = said.replace(unheard, "which has not joined yet")
    assert verdict(found) == (DEGRADED, said)


def test_a_newcomer_that_blocks_commits_is_named() -> None:
    """With 2 of 2 it blocked them alone, and the line named nobody."""
    found = document(line(1), line(2), members=MEMBERS[:2])
    found["cluster"]["replacing"] = {"leaving": 2, "joining": 9, "bytes_to_go": None}
    assert verdict(found) == (
        NO_QUORUM,
        "no quorum: commits hang; blocked by safekeeper 9; safekeeper 2 is being replaced by 9, "
        "which does not answer (--safekeepers has to name it); `walkeeper replace --cancel` "
        "takes that back",
    )


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
            {1: OTHER, 2: LEADER, 3: LEADER},  # the first was deposed, in an older term
            DEGRADED,
            "degraded: the proposer is not heard by safekeeper 1, commits go on",
        ),
        (
            {1: DEAF, 3: LEADER},
            NO_QUORUM,
            "no quorum: commits hang; blocked by safekeeper 2 at h2:1 (does not answer), "
            "safekeeper 1 (does not hear the proposer)",
        ),
        (
            {1: LEADER, 3: LEADER},
            DEGRADED,
            "degraded: safekeeper 2 at h2:1 (does not answer); commits go on",
        ),
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
    assert verdict(found) == (DEGRADED, "degraded: safekeeper 3 (it was replaced); commits go on")
    said = "it has the configuration of generation 1, and those of generation 3 are 1, 2, 4"
    assert f"safekeeper 3#c was replaced: {said}" in table(found)
    assert [each["error"] is None for each in found["safekeepers"]] == [True, True, False, True]
    # a safekeeper that has not learned of it is a member
    found = asked(heard, monkeypatch, newer={1: newest})
    assert [each["error"] is None for each in found["safekeepers"]] == [True, True, False, True]


def test_no_text_removes_a_replaced_member_before_the_members_are_well() -> None:
    """The configuration may be forged, and name all of them (R25): these are the last copies."""
    configuration = replace(configuration_of(3), generation=3)
    fragment = Fragment(NO_BALLOT, CREATION_LSN, 1, False, ("9#ee",), 2)
    runbook = (ROOT / "docs" / "runbooks.md").read_text().partition("\n## replaced\n")[2]
    texts = [
        replaced_text("9#ee", configuration, (fragment,)),
        TROUBLES["replaced"][1],
        runbook.partition("\n## ")[0],
    ]
    for text in texts:
        assert text is not None
        before, removes, _ = text.partition("remove this log's directory")
        assert removes and re.search(r"[Oo]nce .*members\s+(are )?well", before, re.DOTALL), text


def test_nothing_is_said_of_members_that_were_not_asked_whether_they_hear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = asked({1: DEAF, 2: LEADER}, monkeypatch, ports=(1, 2))
    assert verdict(found)[1].startswith("no quorum among those asked; 1 of its 3 safekeepers")


def test_a_log_that_nobody_tells_of_has_no_facts() -> None:
    stranger = line(2, error="safekeeper 2 has no log of cluster 'main'", term=None)
    said = table(document(DOWN, stranger, members=[]))
    assert (
        "no safekeeper that was asked has this log: hNone:1 (does not answer), safekeeper 2" in said
    )
    assert "None, " not in said and "commits hang;" not in said
    assert verdict(document(DOWN, members=[]))[1] == f"no quorum: none of {AWAY} answers"
    assert [row.split()[2] for row in said.splitlines()[1:3]] == ["DOWN", "ERROR"]


def test_each_remedy_names_its_safekeeper_and_no_error_names_it_twice() -> None:
    lost = line(2, error="safekeeper 2 has no log of cluster 'main'", trouble="no_log")
    away = line(None, error="safekeeper at hNone:1 is unreachable: refused")
    said = table(document(line(1), lost, away)).splitlines()
    assert "  safekeeper 2 has no log of cluster 'main'" in said
    assert "  safekeeper at hNone:1 is unreachable: refused" in said
    for start in ("  WARNING no_log of safekeeper 2: ", "  WARNING unreachable of hNone:1: "):
        assert any(row.startswith(start) for row in said), said


STREAMING = {
    "connected": True, "streaming": True, "sync_state": "sync", "since": "2026-01-01T00:00:00Z",
    "waiting": 0, "waiting_since": None, "lowered": [], "error": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("primary", "code", "reason", "text"),
    [
        ({}, OK, None, "ok: "),
        ({"connected": False, "error": "refused"}, NO_QUORUM, "primary_down", "primary: refused"),
        ({"streaming": False}, NO_QUORUM, "not_streaming", "does not stream"),
        (
            {"waiting": 3, "waiting_since": "2026-01-02T00:00:00Z"},
            NO_QUORUM,
            "commits_wait",
            "3 commits wait since 2026-01-02T00:00:00Z",
        ),
        (
            {"waiting": 1, "waiting_since": "2026-01-02T00:00:00Z"},
            NO_QUORUM,
            "commits_wait",
            "1 commit waits since 2026-01-02T00:00:00Z",
        ),
        ({"sync_state": "async"}, DEGRADED, "unprotected", "the proposer is async"),
        ({"sync_state": None}, OK, None, "ok: "),
        (
            {"lowered": ["synchronous_commit=off for role r"]},
            DEGRADED,
            "lowered",
            "synchronous_commit=off for role r",
        ),
    ],
)
def test_a_primary_that_is_down_or_waits_for_nobody_is_not_ok(
    primary: dict[str, Any],
    code: int,
    reason: str | None,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = {**STREAMING, **primary}
    heard = dict.fromkeys((1, 2, 3), LEADER)
    found = asked(heard, monkeypatch, extra={"primary": said})
    assert found["cluster"]["primary"] == said
    assert found["verdict"]["exit_code"] == verdict(found)[0] == code
    assert text in found["verdict"]["text"] and text in table(found)
    assert [each["code"] for each in found["reasons"]] == ([reason] if reason else [])
    assert all(each["remedy"] for each in found["reasons"])


def test_a_primary_that_refuses_the_proposers_sql_is_shown_with_the_reason() -> None:
    said = {**STREAMING, "sync_state": None, "error": "too many clients"}
    shown = primary_line(said)
    assert "sync_state that is not known (too many clients)" in shown and "None" not in shown


def test_a_lost_quorum_says_since_when_a_commit_waits_and_how_to_release_it() -> None:
    since = "2026-01-02T00:00:00Z"
    for waiting_since in (since, None):
        primary = {**STREAMING, "waiting": 3, "waiting_since": waiting_since}
        found = document(line(1), DOWN, DOWN)
        found["cluster"]["primary"] = primary
        found = with_verdict(found)
        first = found["reasons"][0]
        assert (first["code"], first["since"]) == ("no_quorum", waiting_since)
        assert "`walkeeper detach` releases commits" in first["remedy"]
        assert (f"CRITICAL no_quorum since {since}: " in table(found)) is (waiting_since == since)


def test_a_logical_log_holds_up_no_commit_and_need_not(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"primary": {**STREAMING, "sync_state": "async"}, "kind": "logical"}
    found = asked(dict.fromkeys((1, 2, 3), LEADER), monkeypatch, extra=said)
    assert found["verdict"]["state"] == "OK"


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("failed", "its disk failed: why"),
        ("refusing", "it refuses WAL for now: why"),
        ("no_log", "it does not have the log"),
        ("prepared", "its log was prepared and never began"),
        (None, "it refuses: why"),  # a safekeeper without the code
    ],
)
def test_the_reason_of_a_member_is_in_the_one_line(
    trouble: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = dict.fromkeys((1, 2, 3), LEADER)
    found = asked(heard, monkeypatch)
    found["safekeepers"][2] |= {"error": "why", "trouble": trouble}
    assert verdict(found) == (DEGRADED, f"degraded: safekeeper 3 ({words}); commits go on")


def test_two_lost_disks_of_three_lead_to_a_new_log_and_not_in_a_circle() -> None:
    lost = [line(n, error="has no log", trouble="no_log", flush_lsn=None) for n in (2, 3)]
    found = document(line(1), *lost)
    found["cluster"]["ack_quorum"] = 2
    code, text = verdict(found)
    assert code == NO_QUORUM and "safekeepers 2, 3 have lost the log" in text
    assert "walkeeper create --cluster NEW" in table(found)
    found["safekeepers"][1]["trouble"] = "failed"  # its disk may still have the log
    assert "have lost the log" not in verdict(found)[1]


def test_every_code_of_a_reason_has_a_section_in_the_runbooks() -> None:
    source = Path(judging.__file__).read_text()
    codes = {*TROUBLES, *re.findall(r'(?:Reason|_warning)\("(\w+)"', source)}
    page = (Path(__file__).parents[2] / "docs" / "runbooks.md").read_text()
    headings = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert {*TROUBLES, *re.findall(r'_warning\("(\w+)"', source)} <= {*judging.WARNINGS}
    codes |= {alert.runbook for alert in ALERTS}
    assert codes == {code for heading in headings for code in heading.split(", ")}


def test_a_critical_reason_is_never_ignored() -> None:
    found = document(line(1), DOWN, DOWN)
    assert verdict(found, judging.WARNINGS) == verdict(found)
    assert verdict(found)[0] == NO_QUORUM


def test_a_code_that_no_warning_has_is_a_usage_error() -> None:
    options = ["--safekeepers", "127.0.0.1:1", "--timeout", "10ms", "--ignore", "archives"]
    found = CliRunner().invoke(command, [*options, "--check"])
    assert found.exit_code == 2 and "the codes are unreachable, failed" in found.output
    found = CliRunner().invoke(command, options)
    assert found.exit_code == 2 and "--ignore needs --check" in found.output


def test_the_names_of_peers_do_not_control_a_terminal() -> None:
    """A greeting with escapes as its application's name erased the table that `status` printed."""
    hostile = "\x1b]0;title\x07\x1b[2J \nok"
    shown = document(line(1, standbys=[{"application_name": hostile}]), line(2), line(3))
    shown["cluster"]["proposer"] = {"application_name": hostile, "address": "\x9b2J"}
    text = table(shown)
    assert not set(text) & set("\x1b\x07\x9b") and "\nok" not in text and r"\x1b[2J \nok" in text


def test_a_sealed_log_without_a_proposer_names_the_failover_and_the_way_back() -> None:
    """A proposer of the old primary would be refused: the plain remedy does not help."""
    found = document(line(1), line(2), line(3))
    found["cluster"] |= {"quorum": True, "sealed": True}
    (reason,) = judging.judge(found).reasons
    assert reason.code == "no_proposer" and "--resume" in reason.remedy, reason
    found["cluster"]["sealed"] = False
    (reason,) = judging.judge(found).reasons
    assert reason.remedy == "start `walkeeper proposer`"


def test_another_log_at_a_members_address_is_named_and_its_facts_are_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may even have the greater generation."""
    mine, other = {"log_uuid": "aa"}, {"log_uuid": "bb", "generation": 9, "system_id": "8"}
    heard = dict.fromkeys((1, 2, 3), LEADER)
    found = asked(heard, monkeypatch, change=mine, newer={3: other})
    assert found["cluster"]["system_id"] == "7" and found["cluster"]["quorum"]
    assert found["safekeepers"][2]["trouble"] == "wrong_log"
    (reason,) = found["reasons"]
    assert reason["code"] == "wrong_log" and "of system 8" in reason["text"], reason
    assert found["verdict"]["exit_code"] == 1
