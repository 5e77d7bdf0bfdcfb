"""A marker goes the way of a commit: the primary, a quorum's disks, the archive, and back. A shell.

    commit_marker(dsn, …)      one transaction with a message in the WAL; it waits for the quorum
    wait_on_quorum(…)          until an ack quorum has flushed it
    wait_archived(…)           until the members report it as archived
    came_back(…)               blocks; `walkeeper restore` fetches the segment with the marker

The message contains 16 random bytes as text, so that no other WAL can be taken for it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import asyncpg

from walkeeper_admin.check.finding import Finding, Grade, ok
from walkeeper_admin.member_sets import commit_with, set_of
from walkeeper_admin.restored_file import WAIT_S, NotRestored, restored
from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn, segment_name
from walkeeper_common.operator_text.counts import counted
from walkeeper_common.operator_text.zones import shown_acks
from walkeeper_common.quorum import member_id
from walkeeper_common.shell.tls.own_credentials import own_options
from walkeeper_proposer.postgres.primary_sql import connected

PREFIX = "walkeeper check"
MESSAGE_BYTES_MAX = 256  # the marker's record is shorter
TRIES_MAX = 8
POLL_S = 0.3
Gather = Callable[[], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Marker:
    """A committed marker. `lsn` is the end of its message, and `end_lsn` that of its commit."""

    text: str
    timeline: int
    lsn: Lsn
    end_lsn: Lsn
    segment_bytes: int
    took_s: float

    @property
    def segment(self) -> str:
        """Return the name of the segment that holds the end of the message."""
        begin_lsn = Lsn(self.lsn - 1).round_down(self.segment_bytes)
        return segment_name(self.timeline, begin_lsn, self.segment_bytes)


async def commit_marker(dsn: str, timeout_s: float) -> tuple[Marker | None, Finding]:
    """Commit a marker as a client does. Return it, or None if that fails, with the finding."""
    text = f"{PREFIX} {os.urandom(16).hex()}"
    try:
        async with connected(dsn) as sql:
            pid = sql.get_server_pid()
            try:
                async with asyncio.timeout(timeout_s):
                    marker = await committed(sql, text)
            except TimeoutError:
                await _end_wait(dsn, pid)
                why = "clients wait as this command did; a commit returns only with the quorum"
                remedy = "walkeeper status names the blocking member; docs/runbooks.md#commits_wait"
                late = f"a commit did not return within {timeout_s:g} s"
                return None, Finding("commit", Grade.FAILED, late, why, remedy)
    except Refused as error:
        why, remedy = "no commit can be tried", "start the primary, or mend --dsn"
        return None, Finding("commit", Grade.FAILED, str(error), why, remedy)
    took = f"a commit took {marker.took_s * 1000:.1f} ms and ends at {marker.end_lsn}"
    return marker, ok("commit", took)


async def _end_wait(dsn: str, pid: int) -> None:
    """Cancel the commit's wait, in which the server does not see that its client has gone."""
    async with connected(dsn) as sql:
        await sql.execute("SELECT pg_cancel_backend($1)", pid)


async def committed(sql: asyncpg.Connection, text: str) -> Marker:
    """Commit a marker whose text is in WAL without a break, and return it.

    A record that crosses pages has a page header inside, so its message is written again.
    """
    row = await sql.fetchrow(
        "SELECT pg_size_bytes(current_setting('wal_segment_size')) AS segment_bytes, "
        "left(pg_walfile_name(pg_current_wal_lsn()), 8) AS timeline"
    )
    assert row is not None
    started_s = time.monotonic()
    async with sql.transaction():
        # statement_timeout would end the wait, and report a commit that only this server has.
        await sql.execute("SET LOCAL synchronous_commit = on; SET LOCAL statement_timeout = 0")
        lsn = await _emitted(sql, text)
    took_s = time.monotonic() - started_s
    end_lsn = await sql.fetchval("SELECT pg_current_wal_flush_lsn()::text")
    facts = int(row["timeline"], 16), lsn, Lsn.parse(end_lsn), row["segment_bytes"]
    return Marker(text, *facts, took_s)


async def _emitted(sql: asyncpg.Connection, text: str) -> Lsn:
    """Write the message until it lies in one page, at most TRIES_MAX times. Return its end."""
    for _ in range(TRIES_MAX):
        statement = "SELECT pg_logical_emit_message(true, $1, $2)::text"
        lsn = Lsn.parse(await sql.fetchval(statement, PREFIX, text))
        if lsn % WAL_PAGE_BYTES >= MESSAGE_BYTES_MAX:
            break
    return lsn


async def wait_on_quorum(marker: Marker, gather: Gather, timeout_s: float) -> Finding:
    """Return OK once an ack quorum has flushed the marker."""
    have: list[int] = []
    needed = "all"
    deadline_s = time.monotonic() + timeout_s
    while True:
        document = await gather()
        members = set(map(member_id, document["cluster"]["members"]))
        have = sorted(
            line["id"]
            for line in document["safekeepers"]
            if line["id"] in members and _reaches(line["flush_lsn"], marker.lsn)
        )
        needed = shown_acks(set_of(document["cluster"])) if members else "all"
        if commit_with(document["cluster"], have):
            shown = ", ".join(map(str, have))
            return ok("quorum", f"safekeepers {shown} have the marker on disk; {needed} suffice")
        if time.monotonic() >= deadline_s:
            break
        await asyncio.sleep(POLL_S)
    holders = counted(len(have), "safekeeper has", "safekeepers have")
    text = f"{holders} {marker.lsn}, and a commit needs {needed}"
    why = "the primary let a commit return that a failover may lose"
    remedy = "walkeeper attach; walkeeper status names the members that lack it"
    return Finding("quorum", Grade.FAILED, text, why, remedy)


async def wait_archived(marker: Marker, gather: Gather, timeout_s: float) -> Finding:
    """Return OK once the archive has the marker, whole or in a tail, by the members' report."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        document = await gather()
        archives = [line for line in document["safekeepers"] if line["archive"]]
        if not archives:
            why = "a lost majority of disks can lose all WAL that no archive has"
            remedy = "start every safekeeper with --archive; docs/archive.md"
            text = "the safekeepers archive no WAL"
            return Finding("archive", Grade.WARNING, text, why, remedy)
        for line in archives:
            for end in (line["archived_lsn"], line["archive"]["tail_lsn"]):
                if _reaches(end, marker.lsn):
                    return ok("archive", f"the marker is archived: {line['archive']['url']}")
        if time.monotonic() >= deadline_s:
            break
        await asyncio.sleep(POLL_S)
    reasons = {line["archive"]["failure"] for line in archives} - {None}
    text = f"the marker was not archived within {timeout_s:g} s: {'; '.join(reasons) or 'waiting'}"
    why = "no commit waits for the archive, and recoveries from it lack what it lacks"
    remedy = "wait longer than --archive-tail-interval; docs/runbooks.md#archive"
    return Finding("archive", Grade.FAILED, text, why, remedy)


def _reaches(lsn: str | None, wanted_lsn: Lsn) -> bool:
    return lsn is not None and Lsn.parse(lsn) >= wanted_lsn


def came_back(marker: Marker, check: str, options: Sequence[str]) -> Finding:
    """Fetch the marker's segment by `walkeeper restore` with these options, and look for it."""
    segment = partial(restored, timeline=marker.timeline, segment_bytes=marker.segment_bytes)
    try:
        wal = segment(marker.segment, options, limit_s=2 * WAIT_S)
    except NotRestored as error:
        return _lost(check, str(error))
    if marker.text.encode() in wal:
        return ok(check, f"restore fetched {marker.segment}, and the marker is in it")
    return _lost(check, f"restore fetched {marker.segment} without the marker")


def _lost(check: str, text: str) -> Finding:
    why = "a standby or a recovery would not get the last commits"
    return Finding(check, Grade.FAILED, text, why, "docs/restore.md; docs/archive.md")


def restore_options(
    safekeepers: Sequence[Address], cluster: str, archive: str | None
) -> dict[str, list[str]]:
    """Return the options of each way back: from the safekeepers, and from the archive alone."""
    log = ["--cluster", cluster]
    joined = ",".join(map(shown_address, safekeepers))
    ways = {"restore": ["--safekeepers", joined, *own_options(), *log]}
    if archive is not None:
        ways["restore, archive"] = ["--archive", archive, *log]
    return ways
