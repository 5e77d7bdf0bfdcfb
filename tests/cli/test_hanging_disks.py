"""`status` names the disks that commits wait for, and a safekeeper that hangs. Pure."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tests.cli.status_documents import DOWN, document, line
from walkeeper_admin.status import NO_QUORUM, gather, with_verdict

STREAMING = {
    "connected": True, "streaming": True, "sync_state": "sync", "since": "2026-01-01T00:00:00Z",
    "waiting": 0, "waiting_since": None, "lowered": [], "error": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("written", "clause", "look"),
    [
        (("0/5", "0/9", "0/9"), "; safekeeper 2, safekeeper 3 have WAL to sync to disk", "disks"),
        (("0/5", "0/5", "0/9"), "; safekeeper 3 has WAL to sync to disk", "disks"),
        (("0/5", "0/5", None), "", "standbys synchronous_standby_names wants"),
    ],
    ids=("two", "one", "none"),
)
def test_commits_that_wait_name_the_members_whose_disks_still_sync(
    written: tuple[str | None, ...], clause: str, look: str
) -> None:
    found = document(*(line(n, write_lsn=lsn) for n, lsn in enumerate(written, 1)))
    since = "2026-01-02T00:00:00Z"
    waits = {**STREAMING, "waiting": 3, "waiting_since": since}
    found["cluster"] |= {"quorum": True, "proposer": {"name": "walkeeper"}, "primary": waits}
    found = with_verdict(found)
    assert found["verdict"]["exit_code"] == NO_QUORUM
    assert found["verdict"]["text"] == f"3 commits wait since {since}{clause}"
    reason = found["reasons"][0]
    assert (reason["code"], reason["since"]) == ("commits_wait", since)
    assert look in reason["remedy"] and "walkeeper detach" in reason["remedy"]


def test_a_process_that_accepts_connections_and_does_not_answer_is_told_from_a_dead_one() -> None:
    """A disk that hangs in one fdatasync looks like that, and so does a stopped process."""
    with (
        socket.create_server(("127.0.0.1", 0)) as hung,
        socket.create_server(("127.0.0.1", 0)) as dead,
    ):
        addresses = hung.getsockname(), dead.getsockname()
        dead.close()
        found = asyncio.run(gather(addresses, "main", 0.5))
    assert [each["hangs"] for each in found["safekeepers"]] == [True, False]
    texts = {each["text"]: each["remedy"] for each in found["reasons"][1:]}
    hangs, gone = (f"127.0.0.1:{port}" for _, port in addresses)
    assert "its log and its disk" in texts[f"{hangs} (accepts connections and does not answer)"]
    assert texts[f"{gone} (does not answer)"] == "start it, or repair its host or network"


def test_a_line_of_a_document_without_that_fact_is_of_a_dead_member() -> None:
    found = with_verdict(document(line(1), line(2), DOWN))
    assert "hNone:1 (does not answer)" in found["reasons"][-1]["text"]
