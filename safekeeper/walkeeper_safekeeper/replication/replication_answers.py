"""Answers of a safekeeper to a PostgreSQL client's commands, but for streaming.

Result sets, column types, tags and SQLSTATEs are a walsender's, measured on PostgreSQL 15, 17 and
18. Patroni compares the timeline as an integer, pg_receivewal counts columns, Barman acts on
SQLSTATEs. Settings are those of the primary where a client uses them to understand the WAL, and
fixed where they are about the connection. SQL is refused, with a hint to ask the primary, but for
one probe that connection pools and Patroni send.
"""

from __future__ import annotations

import re

from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgwire import (
    BOOL_OID,
    INT4_OID,
    INT8_OID,
    Column,
    SqlRefused,
    result,
)
from walkeeper_common.postgres.replication_commands import CreateSlot
from walkeeper_common.timelines import parse_timeline_file, timeline_file_name
from walkeeper_safekeeper.replication.login import Login
from walkeeper_safekeeper.replication.physical_slots import Slot
from walkeeper_safekeeper.replication.served_log import ServedLog

PROBE = re.compile(r"select\s+(pg_catalog\s*\.\s*)?pg_is_in_recovery\s*\(\s*\)\s*;?", re.IGNORECASE)
FIXED_SETTINGS = {
    "datestyle": "ISO, MDY",
    "default_transaction_read_only": "off",
    "in_hot_standby": "off",
    "integer_datetimes": "on",
    "intervalstyle": "postgres",
    "is_superuser": "off",
    "server_encoding": "UTF8",
    "standard_conforming_strings": "on",
    "timezone": "UTC",
    "scram_iterations": "4096",
    "search_path": "",
    "data_directory_mode": "0700",
    "transaction_read_only": "off",
    "wal_block_size": "8192",
    "wal_level": "replica",
}
REPORTED_SETTINGS = (  # with the major that began to report it, and in PostgreSQL's spelling
    (0, "application_name"),
    (0, "client_encoding"),
    (0, "DateStyle"),
    (0, "default_transaction_read_only"),
    (0, "in_hot_standby"),
    (0, "integer_datetimes"),
    (0, "IntervalStyle"),
    (0, "is_superuser"),
    (16, "scram_iterations"),
    (18, "search_path"),
    (0, "server_encoding"),
    (0, "server_version"),
    (0, "session_authorization"),
    (0, "standard_conforming_strings"),
    (0, "TimeZone"),
)


def major_version(server_version: str) -> int:
    """Return 15 for `15.18 (Debian …)`, 18 for `18beta1`."""
    digits = re.match(r"\d+", server_version)
    assert digits is not None, f"{server_version=}"
    return int(digits[0])


def setting(log: ServedLog, name: str, *, login: Login) -> str:
    """Return a setting's value as SHOW prints it. Raise SqlRefused 42704 for an unknown setting."""
    known = name.lower()
    match known:
        case "server_version":
            return log.server_version
        case "server_version_num":
            return _version_number(log.server_version)
        case "wal_segment_size":
            return _memory_size(log.segment_bytes)
        case "client_encoding":
            return login.encoding
        case "application_name":
            return login.application_name
        case "session_authorization":
            return login.user
        case "walkeeper.cluster":
            return log.cluster
        case "walkeeper.first_lsn":  # the name that readers of older versions know
            return str(log.oldest_lsn)
        case "walkeeper.kind":
            return log.kind.name.lower()
    if known not in FIXED_SETTINGS:
        raise SqlRefused(
            "42704",
            f'unrecognized configuration parameter "{name}"',
            hint=f'Ask the primary of cluster "{log.cluster}": a safekeeper keeps its WAL only.',
        )
    return FIXED_SETTINGS[known]


def _version_number(version: str) -> str:
    numbers = re.match(r"(\d+)(?:\.(\d+))?", version)
    assert numbers is not None, f"{version=}"
    return f"{int(numbers[1]) * 10000 + int(numbers[2] or 0)}"


def _memory_size(size: int) -> str:
    """Format a size as PostgreSQL prints it, in its largest exact unit. Clients parse it."""
    gigabyte, megabyte = 1 << 30, 1 << 20
    return f"{size // gigabyte}GB" if size % gigabyte == 0 else f"{size // megabyte}MB"


def identify_system(log: ServedLog, end_lsn: Lsn, database: str | None = None) -> bytes:
    """Answer IDENTIFY_SYSTEM; the timeline is int4 up to PostgreSQL 15 and int8 later, as clients
    check.

    `end_lsn` is where what can be streamed ends now; `database` is that of a logical log.
    """
    oid = INT4_OID if major_version(log.server_version) <= 15 else INT8_OID
    columns = (Column("systemid"), Column("timeline", oid), Column("xlogpos"), Column("dbname"))
    row = (str(log.system_id), str(log.timeline), str(end_lsn), database)
    return result(columns, [row], "IDENTIFY_SYSTEM")


def show(log: ServedLog, name: str, *, login: Login) -> bytes:
    """Return one row of one text column, named as the setting."""
    value = setting(log, name, login=login)
    return result((Column(name.lower()),), [(value,)], "SHOW")


def read_slot(log: ServedLog, slot: Slot | None) -> bytes:
    """Answer READ_REPLICATION_SLOT: all NULL, and no error, if there is no such slot."""
    columns = (Column("slot_type"), Column("restart_lsn"), Column("restart_tli", INT8_OID))
    row: tuple[str | None, ...] = (None, None, None)
    if slot is not None and slot.restart_lsn is not None:
        timeline = timeline_of(log, slot.restart_lsn)
        row = ("physical", str(slot.restart_lsn), str(timeline))
    elif slot is not None:
        row = ("physical", None, None)
    return result(columns, [row], "READ_REPLICATION_SLOT")


def timeline_of(log: ServedLog, lsn: Lsn) -> int:
    """Return the timeline on which the WAL at `lsn` was written."""
    for timeline, end_lsn in parse_timeline_file(log.timeline_history(log.timeline) or b""):
        if lsn < end_lsn:
            return timeline
    return log.timeline


async def create_slot(log: ServedLog, asked: CreateSlot, pid: int) -> bytes:
    """Create a slot; return once it is durable. RESERVE_WAL keeps WAL from the current segment."""
    restart_lsn = None
    if asked.reserve_wal:
        restart_lsn = max((await log.whole_end()).round_down(log.segment_bytes), log.oldest_lsn)
    await log.slots.create(asked.slot, temporary=asked.temporary, restart_lsn=restart_lsn, pid=pid)
    names = ("slot_name", "consistent_point", "snapshot_name", "output_plugin")
    row = (asked.slot, "0/0", None, None)
    return result([Column(name) for name in names], [row], "CREATE_REPLICATION_SLOT")


def timeline_history(log: ServedLog, timeline: int) -> bytes:
    """Return the file as PostgreSQL wrote it. Raise 58P01 if it is not here, as for timeline 1."""
    name = timeline_file_name(timeline)
    content = log.timeline_history(timeline)
    if content is None:
        raise SqlRefused("58P01", f'could not open file "pg_wal/{name}": No such file or directory')
    columns = (Column("filename"), Column("content"))
    return result(columns, [(name, content)], "TIMELINE_HISTORY")


def primary_only(log: ServedLog, what: str) -> SqlRefused:
    """Return the refusal of a request that needs a data directory or catalogs."""
    return SqlRefused(
        "0A000",
        f"a safekeeper cannot serve {what}",
        hint=f'It keeps the WAL of cluster "{log.cluster}" and nothing else. Connect to the '
        "primary itself for this.",
    )


def sql(log: ServedLog, text: str, *, replication: bool) -> bytes:
    """Answer one SQL string: the probe with its row, any other with 0A000."""
    if PROBE.fullmatch(text) and not replication:
        return result((Column("pg_is_in_recovery", BOOL_OID),), [("f",)], "SELECT 1")
    if replication:
        raise SqlRefused(
            "0A000",
            "cannot execute SQL commands in WAL sender for physical replication",
            hint=f'Connect to the primary of cluster "{log.cluster}" for SQL.',
        )
    raise SqlRefused(
        "0A000",
        "a safekeeper does not execute SQL",
        hint=f'It keeps the WAL of cluster "{log.cluster}": connect to the primary for SQL, or '
        "here with replication=true for WAL.",
    )
