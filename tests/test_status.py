"""What `walkeeper status` says of what it was told, and of what it could not know. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from walkeeper_cli.status import DEGRADED, NO_QUORUM, table, verdict

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
        "segment_bytes": 1 << 24,
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


def test_a_log_that_nobody_tells_of_has_no_facts() -> None:
    stranger = line(2, error="safekeeper 2 has no log of cluster 'main'", term=None)
    said = table(document(DOWN, stranger, members=[]))
    assert "nobody who was asked tells of this log: hNone:1, safekeeper 2" in said
    assert "None, " not in said and "commits hang" not in said
    assert verdict(document(DOWN, members=[]))[1] == "no quorum: none answers of hNone:1"
    assert [row.split()[2] for row in said.splitlines()[1:3]] == ["DOWN", "ERROR"]
