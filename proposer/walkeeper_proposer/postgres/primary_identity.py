"""The identity of a primary: which server it is, and the settings that a log relies on.

    identify(connection) -> PrimaryIdentity     by IDENTIFY_SYSTEM, SHOW and TIMELINE_HISTORY

The module asks over a replication connection and decides nothing. The core compares the answers
with the log (docs/steps.md#check-of-the-primary).
"""

from __future__ import annotations

from walkeeper_common.errors import Refused
from walkeeper_common.history import TIMELINE_FILE_BYTES_MAX
from walkeeper_common.lsn import Lsn
from walkeeper_proposer.consensus.proposer_events import PrimaryIdentity
from walkeeper_proposer.postgres.replication_connection import ReplicationConnection, understood

SIZE_UNITS = {"B": 1, "kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


async def identify(connection: ReplicationConnection) -> PrimaryIdentity:
    """Ask with IDENTIFY_SYSTEM and SHOW, no SQL, for docs/steps.md#check-of-the-primary."""
    with understood("identifying the primary"):
        return await _identify(connection)


async def _identify(connection: ReplicationConnection) -> PrimaryIdentity:
    system_id, timeline, flush_lsn, *_ = (await connection.query("IDENTIFY_SYSTEM"))[0]
    if not (system_id and timeline and flush_lsn):
        raise ValueError(f"{system_id=} {timeline=} {flush_lsn=}")
    version, number = connection.server_version
    shown = {
        name: (await connection.query(f"SHOW {name}"))[0][0] or ""
        for name in ("wal_segment_size", "fsync", "full_page_writes")
    }
    return PrimaryIdentity(
        system_id=int(system_id),
        timeline=int(timeline),
        flush_lsn=Lsn.parse(flush_lsn),
        segment_bytes=parse_size(shown["wal_segment_size"]),
        server_version=version,
        server_version_num=number,
        in_recovery=await is_in_recovery(connection),
        fsync=shown["fsync"] == "on",
        full_page_writes=shown["full_page_writes"] == "on",
        timeline_file=await _timeline_file(connection, int(timeline)),
    )


async def is_in_recovery(connection: ReplicationConnection) -> bool:
    """Return True if the server is a standby. PostgreSQL 13 has no in_hot_standby, but all
    transactions of a standby are read-only."""
    _, number = connection.server_version
    name = "in_hot_standby" if number >= 140000 else "transaction_read_only"
    with understood(f"SHOW {name}"):
        return (await connection.query(f"SHOW {name}"))[0][0] == "on"


async def _timeline_file(connection: ReplicationConnection, timeline: int) -> bytes:
    """Return the server's `0000000N.history`; it is empty for timeline 1."""
    if timeline == 1:
        return b""
    _, content, *_ = (await connection.query(f"TIMELINE_HISTORY {timeline}"))[0]
    if content is None:
        raise ValueError(f"no content of the history file of {timeline=}")
    data = content.encode(errors="surrogateescape")  # its reasons are of any encoding
    if len(data) > TIMELINE_FILE_BYTES_MAX:
        raise Refused(f"the history file of timeline {timeline} has {len(data)} bytes")
    return data


def parse_size(text: str) -> int:
    """Return PostgreSQL's `16MB` in bytes."""
    digits = text.rstrip("BkMG")
    return int(digits) * SIZE_UNITS[text[len(digits) :] or "B"]
