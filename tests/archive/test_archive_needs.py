"""`archive prune --safekeepers` and `status` read the reports of the safekeepers."""

from __future__ import annotations

from typing import Any

import pytest

from walkeeper_admin.archive_status import (
    archive_line,
    archive_troubles,
    needed_for_the_archive,
)
from walkeeper_admin.status import DEGRADED, OK, table, verdict
from walkeeper_cli.archive.wal_needs import needs
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn

MB = 1 << 20
SYSTEM_ID = 7000000000000000001
END = "0/A00000"


def archive(**other: Any) -> dict[str, Any]:
    well = {"url": "s3://wal/main/7", "offloading": False, "segments_due": 0, "failure": None}
    return {**well, "still_s": 0.0, "tail_lsn": None, **other}


def line(number: int, **other: Any) -> dict[str, Any]:
    """Return the line of a healthy safekeeper."""
    own = dict.fromkeys(("flush_lsn", "commit_lsn", "restart_lsn", "archived_lsn"), END)
    facts = {
        "id": number,
        "address": f"h{number}:5454",
        "reachable": True,
        "error": None,
        "kind": "physical",
    }
    more = {"archive": archive(), "slots": [], "standbys": [], "timeline": 1, "term": 3}
    return {**facts, **own, **more, "end_lsn": None, **other}


def document(*lines: dict[str, Any]) -> dict[str, Any]:
    cluster = {
        "name": "main", "system_id": str(SYSTEM_ID), "members": ["1#a", "2#b", "3#c"], "term": 3,
        "quorum": True, "proposer": {"application_name": "walkeeper", "address": "p"},
        "commit_lsn": END, "timeline": 1, "segment_bytes": MB, "replacing": None,
        "generation": 1, "heard_by_quorum": True, "not_hearing": [],
    }  # fmt: skip
    return {"cluster": cluster, "safekeepers": list(lines)}


def kept(*lines: dict[str, Any]) -> tuple[Lsn, str]:
    oldest = min(needs(document(*lines), SYSTEM_ID), key=lambda need: need.lsn or 0)
    assert oldest.lsn is not None
    return oldest.lsn, oldest.given


SLOT = {"slot_name": "backup", "restart_lsn": "0/300000", "active_pid": None}
READER = {"application_name": "s1", "sent_lsn": "0/500000", "flush_lsn": "0/400000"}


@pytest.mark.parametrize(
    ("wanting", "lsn", "by"),
    [
        ({}, Lsn(9 * MB), "has WAL up to 0/A00000"),
        ({"slots": [SLOT]}, Lsn(3 * MB), "slot 'backup' of safekeeper 2"),
        ({"slots": [{**SLOT, "restart_lsn": None}]}, Lsn(9 * MB), "has WAL up to"),
        ({"standbys": [READER]}, Lsn(4 * MB), "'s1', connected to safekeeper 2"),
        ({"standbys": [{**READER, "flush_lsn": "0/0"}]}, Lsn(5 * MB), "'s1', connected to"),
        ({"flush_lsn": "0/700000"}, Lsn(6 * MB), "safekeeper 2, which has WAL up to 0/700000"),
        ({"restart_lsn": "0/600000"}, Lsn(5 * MB), "which has WAL up to 0/600000"),
        ({"archived_lsn": "0/200000"}, Lsn(2 * MB), "safekeeper 2, which compares"),
        ({"archived_lsn": None}, Lsn(9 * MB), "has WAL up to"),
    ],
)
def test_wal_that_slots_readers_and_members_need_is_kept(
    wanting: dict[str, Any], lsn: Lsn, by: str
) -> None:
    found, given = kept(line(1), line(2, **wanting), line(3))
    assert found == lsn and by in given


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ([line(1), line(2)], "safekeeper 3 of 'main' is not among --safekeepers"),
        (
            [line(1), line(2), line(3, id=None, flush_lsn=None, error="unreachable: refused")],
            "cannot know the WAL that safekeeper h3:5454 needs: unreachable: refused; start it, or",
        ),
    ],
)
def test_a_member_without_an_answer_is_an_error_and_no_guess(
    lines: list[dict[str, Any]], text: str
) -> None:
    with pytest.raises(Refused, match=text.replace("(", r"\(")):
        needs(document(*lines), SYSTEM_ID)


def test_the_archive_of_another_system_is_not_pruned_by_these_safekeepers() -> None:
    with pytest.raises(Refused, match="hold the log of system 7000000000000000001"):
        needs(document(line(1), line(2), line(3)), 5)


def test_consumers_of_a_logical_log_need_a_position() -> None:
    """Its slots' own LSNs are of another kind."""
    logical = {"kind": "logical", "slots": [{**SLOT, "restart_lsn": "0/100"}], "standbys": [READER]}
    lines = [line(n, **logical, needed_lsn=f"0/{n + 3}00000") for n in (1, 2, 3)]
    found, given = kept(*lines)
    assert (found, given) == (Lsn(4 * MB), "a consumer of safekeeper 1")
    lines[1]["needed_lsn"] = None
    with pytest.raises(Refused, match=r"safekeeper 2 does not know yet .* try again"):
        needs(document(*lines), SYSTEM_ID)


def test_an_archive_that_is_well_is_one_line_of_status() -> None:
    lines = [line(1, archive=archive(offloading=True, tail_lsn="0/A80000")), line(2), line(3)]
    assert archive_troubles(lines) == []
    assert verdict(document(*lines))[0] == OK
    assert table(document(*lines)).splitlines()[-1] == (
        "archive s3://wal/main/7: whole segments to 0/A00000, its tail to 0/A80000; 0 due; "
        "by safekeeper 1"
    )
    assert archive_line([line(1, archive=None)]) is None


@pytest.mark.parametrize(
    ("wanting", "text"),
    [
        (
            {"archive": archive(failure="writing s3://x: 403", segments_due=7)},
            "safekeeper 2 cannot archive, commits go on: writing s3://x: 403 "
            "(7 segments are due behind 0/A00000)",
        ),
        (
            {"archive": archive(segments_due=3, still_s=80.0)},
            "safekeeper 2: the archive has not moved for 80 s, 3 segments are due behind 0/A00000",
        ),
        (
            {"archive": archive(segments_due=40)},
            "safekeeper 2: the archive does not keep up, 40 segments are due behind 0/A00000",
        ),
        (
            {"archive": archive(gap=["0/500000", "0/700000"])},
            "safekeeper 2: the archive lacks the WAL from 0/500000 to 0/700000, which nobody had",
        ),
        ({"archive": None}, "safekeeper 2 runs without --archive, unlike 1"),
        ({"archive": archive(url="s3://elsewhere")}, "safekeepers archive to different places"),
    ],
)
def test_status_says_that_the_archive_lags_and_why(wanting: dict[str, Any], text: str) -> None:
    lines = [line(1), line(2, **wanting), line(3)]
    code, sentence = verdict(document(*lines))
    assert code == DEGRADED and text in sentence
    assert table(document(*lines)).count(text) == 1
    newcomer = line(4, archive=None, flush_lsn=None, error="it has no log of cluster main")
    assert "safekeeper 4 runs" not in table(document(*lines, newcomer))
    lines[2]["error"] = "its disk failed"
    assert verdict(document(*lines))[1].startswith("degraded: safekeeper 3 (it refuses: ")
    assert text in table(document(*lines)).splitlines()[-1], "below what matters more"


def test_a_few_segments_under_way_are_no_lag() -> None:
    busy = archive(segments_due=6, still_s=3.0)
    assert archive_troubles([line(1, archive=busy), line(2, archive=busy), line(3)]) == []


def test_a_member_that_has_just_joined_does_not_vouch_for_what_is_below_its_wal() -> None:
    newcomer = line(4, archive=archive(first_lsn="0/900000"))
    behind = {"archived_lsn": "0/500000", "archive": archive(segments_due=5, first_lsn="0/100000")}
    others = [line(1, **behind), line(2, **behind)]
    shown = archive_line([newcomer, *others])
    assert shown is not None and "whole segments to 0/500000; 5 due" in shown
    needed = needed_for_the_archive([newcomer, *others], 4)
    assert needed is not None and needed.startswith("the WAL from 0/500000 to 0/900000 is not")
    kept_up = line(3, archive=archive(first_lsn="0/300000"))
    shown = archive_line([newcomer, *others, kept_up])
    assert shown is not None and "whole segments to 0/A00000; 0 due" in shown
    assert needed_for_the_archive([newcomer, *others, kept_up], 4) is None
    assert needed_for_the_archive([line(4, archive=None), *others], 4) is None
    assert needed_for_the_archive([line(4), *others], 4) is None, "an older version does not say"


def test_a_warning_that_is_ignored_does_not_count_and_is_named() -> None:
    """While --archive is given to one safekeeper after another, --check was never 0."""
    found = document(line(1), line(2, archive=None), line(3))
    code, text = verdict(found)
    assert code == DEGRADED and "safekeeper 2 runs without --archive" in text
    code, text = verdict(found, ["archive"])
    assert code == OK
    assert text.startswith("ok, but for what is ignored: safekeeper 2 runs without --archive")
    found["safekeepers"][2] |= {"error": "why", "trouble": "failed"}
    assert verdict(found, ["archive"]) == (
        DEGRADED,
        "degraded: safekeeper 3 (its disk failed: why); commits go on",
    )
