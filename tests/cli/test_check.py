"""The findings of `walkeeper check` that a document of `status` decides."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from walkeeper_admin.check import finding
from walkeeper_admin.check.finding import (
    WITH_WARNINGS,
    Finding,
    Grade,
    counts,
    document,
    ok,
    shown,
    worst,
)
from walkeeper_admin.check.status_checks import _scrub, _slots, from_status
from walkeeper_cli.program import run

GB = 1 << 30
SLOT = {"slot_name": "backup", "active_pid": None, "restart_lsn": "0/1", "temporary": False}
STANDBY = {"application_name": "s1", "flush_lsn": "0/5"}


def line(number: int, **facts: Any) -> dict[str, Any]:
    own = {
        "id": number, "address": f"h{number}:1", "reachable": True, "error": None, "term": 4,
        "timeline": 1, "standbys": [], "slots": [], "archive": None, "flush_lsn": "0/5",
        "commit_lsn": "0/5", "version": "1", "free_bytes": 50 * GB, "size_bytes": 100 * GB,
        "fsync_s": 0.001, "clock_skew_s": 0.0, "kept_bytes": 0, "kept_for": None, "trouble": None,
    }  # fmt: skip
    return {**own, **facts}


def found(**facts: Any) -> dict[str, Finding]:
    """Return the findings if safekeeper 2 is as `facts` say, by check."""
    cluster = {
        "name": "main", "generation": 1, "term": 4, "commit_lsn": "0/5", "timeline": 1,
        "quorum": True, "proposer": {"application_name": "walkeeper"}, "replacing": None,
        "members": ["1#a", "2#b", "3#c"], "segment_bytes": 1 << 24, "heard_by_quorum": True,
        "not_hearing": [], "ack_quorum": 2, "primary": None, "kind": "physical",
    }  # fmt: skip
    lines = [line(1), line(2, **facts), line(3)]
    findings = from_status({"cluster": cluster, "safekeepers": lines})
    assert len(findings) == len({finding.check for finding in findings})
    return {finding.check: finding for finding in findings}


def slots_of(*lines: dict[str, Any]) -> Finding:
    (finding,) = _slots(lines)
    return finding


def test_a_healthy_cluster_has_a_list_without_a_fault() -> None:
    findings = found()
    assert list(findings) == [
        "members", "disk space", "fdatasync", "clocks", "versions", "scrub", "slots", "readers"
    ]  # fmt: skip
    assert worst(list(findings.values())) is Grade.OK


@pytest.mark.parametrize(
    ("facts", "check", "text"),
    [
        ({"free_bytes": 9 * GB}, "disk space", "safekeeper 2 has 9.0 GB of 100.0 GB free"),
        ({"fsync_s": 0.06}, "fdatasync", "safekeeper 2 takes 60.00 ms"),
        ({"clock_skew_s": -7.2}, "clocks", "safekeeper 2 is -7 s off"),
        (
            {"repairs": 3},
            "scrub",
            "damaged segments that safekeeper 2 has rewritten since its start: 3",
        ),
        ({"version": "2"}, "versions", "safekeeper 2 runs 2"),
        (
            {"slots": [SLOT], "kept_bytes": 2 * GB, "kept_for": "slot backup"},
            "slots",
            "slot backup has no client, and the disk of safekeeper 2 keeps 2.0 GB",
        ),
        (
            {"differences": 2},
            "members",
            "segments of safekeeper 2 that differ from another copy: 2",
        ),
        (
            {"standbys": [STANDBY], "commit_lsn": "1/5", "flush_lsn": "1/5"},
            "readers",
            "s1 at safekeeper 2 lags by 4.0 GB",
        ),
        (
            {"error": "no space", "trouble": "refusing"},
            "members",
            "safekeeper 2 (it refuses WAL for now: no space)",
        ),
    ],
)
def test_a_fault_is_a_warning_with_a_reason_and_a_remedy(
    facts: dict[str, Any], check: str, text: str
) -> None:
    findings = found(**facts)
    wrong = [each for each in findings.values() if each.grade is not Grade.OK]
    assert [each.check for each in wrong] == [check]
    assert text in wrong[0].text and wrong[0].why and wrong[0].remedy
    assert wrong[0].grade is Grade.WARNING


def test_facts_that_an_older_safekeeper_does_not_send_are_no_fault_of_the_others() -> None:
    findings = found(free_bytes=None, size_bytes=None, fsync_s=None, clock_skew_s=None)
    assert worst(list(findings.values())) is Grade.OK


def test_the_worst_finding_gives_the_exit_code() -> None:
    findings = [ok("a", "fine"), Finding("b", Grade.FAILED, "broken", "it matters", "mend it")]
    assert document(findings)["exit_code"] == 2 and document(findings)["state"] == "FAILED"
    assert shown(findings[1]).splitlines() == [
        "FAILED   b              broken",
        "                        why: it matters",
        "                        do:  mend it",
    ]
    warned = Finding("c", Grade.WARNING, "odd", "it matters", "look at it")
    assert worst([*findings, warned]) is Grade.FAILED
    assert worst([]) is Grade.OK


def test_an_ignored_warning_does_not_count_and_a_failure_always_does() -> None:
    warned = Finding("disk space", Grade.WARNING, "9 GB free", "it fills", "add some")
    failed = Finding("archive", Grade.FAILED, "refused", "it matters", "mend it")
    assert worst([warned]) is Grade.WARNING and worst([warned], ["archive"]) is Grade.WARNING
    assert worst([warned], ["disk-space"]) is Grade.OK
    assert document([warned], ["disk-space"])["exit_code"] == 0
    assert worst([warned, failed], ["disk-space", "archive"]) is Grade.FAILED
    assert not counts(warned, ["disk-space"]) and counts(failed, ["archive"])


def test_each_check_that_warns_can_be_ignored() -> None:
    """A name is the first argument of a Finding; a variable one stands in its own module."""
    text = "".join(file.read_text() for file in sorted(Path(finding.__file__).parent.glob("*.py")))
    found = set(re.findall(r'Finding\(\s*"([a-z ]+)",\s*(?:Grade\.WARNING|GRADES)', text))
    assert found and {name.replace(" ", "-") for name in found} <= set(WITH_WARNINGS)


def test_an_unknown_check_is_no_check_to_ignore(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--safekeepers", "127.0.0.1:1", "--ignore", "disks"]) == 2
    assert "no check with warnings is named disks; the names are archive" in capsys.readouterr().err


def test_a_client_at_one_member_uses_the_slots_copies_too() -> None:
    kept = {"slots": [SLOT], "kept_bytes": 2 * GB, "kept_for": "slot backup"}
    used = {"slots": [SLOT | {"active_pid": 7}]}
    assert slots_of(line(1, **kept), line(2, **used), line(3, **kept)).grade is Grade.OK
    twice = slots_of(line(1, **used), line(2, **used), line(3, **kept))
    assert twice.grade is Grade.WARNING
    assert "backup has clients at safekeeper 1 and safekeeper 2" in twice.text


def test_no_damage_is_said_with_the_passes_that_looked_for_it() -> None:
    assert found()["scrub"].text == "no damage so far; no pass of all has ended"
    assert _scrub([line(1, scrubs=3), line(2, scrubs=2)]) == [
        ok("scrub", "no damage in 2 or more passes of each")
    ]
