"""`settle --replayed-by`: make the standby take the number that is reserved for it (R23). A shell.

PostgreSQL takes the number after the newest history file that it finds, one after the other from
its own timeline on. So each number before the reserved one gets a history file in the standby's
pg_wal, a placeholder. It names no ancestor: the standby takes it for another server's, and stays on
its timeline. Only a number that another server has reserved needs one.

A server that starts anew with a placeholder would look for that timeline. `walkeeper restore`
removes it then; a promotion after that needs another `settle`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence

import asyncpg

from walkeeper_admin.reserving import reserve
from walkeeper_common.addresses import Address
from walkeeper_common.errors import Refused
from walkeeper_common.timelines import timeline_file_name
from walkeeper_proposer.postgres.primary_sql import connected
from walkeeper_restore.standby_check.placeholders import PLACEHOLDER

LOOPBACK = ("127.", "::1")
# The time of the last change of PG_VERSION's inode: no copy of a data directory has the same one.
IDENTITY = """
SELECT coalesce(host(inet_server_addr()), ''), current_setting('port'),
    CASE WHEN pg_has_role('pg_read_all_settings', 'USAGE')
        THEN current_setting('data_directory') ELSE '' END,
    extract(epoch FROM (pg_stat_file('PG_VERSION')).change)::bigint
"""
EXISTS = "SELECT (pg_stat_file($1, true)).size IS NOT NULL"
RIGHTS = (
    "connect as a superuser, or GRANT pg_write_server_files, pg_read_all_settings TO the role, "
    "then run this again"
)


async def prepare_number(
    dsn: str,
    safekeepers: Sequence[Address],
    cluster: str,
    *,
    after: int,
    say: Callable[[str], None],
) -> int | None:
    """Return the number that the standby at `dsn` takes when it is promoted now.

    Return None, with a warning, if too many safekeepers are too old to reserve one. Raise Refused
    if the promotion might take the number of another one."""
    owner, directory = await _identity(dsn)
    number = after
    while True:
        reserved = await reserve(safekeepers, cluster, owner, after=number)
        if reserved is None:
            say(
                "no timeline number is reserved for the promotion: safekeepers of an older version "
                "cannot do that. Promote no other server; upgrade the safekeepers"
            )
            return None
        number = reserved
        if await _placed(dsn, directory, after=after, number=number):
            return number


async def _identity(dsn: str) -> tuple[str, str]:
    """Return a name that no other server has, and the data directory, or "" without the right."""
    async with connected(dsn) as sql:
        host, port, directory, made_s = await sql.fetchrow(IDENTITY) or ("", "", "", 0)
    if not host or host.startswith(LOOPBACK):
        host = socket.gethostname()
    return f"{host}:{port} {directory} ({made_s})", directory


async def _placed(dsn: str, directory: str, *, after: int, number: int) -> bool:
    """Return True if PostgreSQL takes `number`, or False if an old placeholder uses it up."""
    async with connected(dsn) as sql:
        for skipped in range(after + 1, number):
            if not await sql.fetchval(EXISTS, f"pg_wal/{timeline_file_name(skipped)}"):
                await _place(sql, directory, skipped, number)
        return not await sql.fetchval(EXISTS, f"pg_wal/{timeline_file_name(number)}")


async def _place(sql: asyncpg.Connection, directory: str, skipped: int, number: int) -> None:
    reason = f"timeline {skipped} is reserved for another server, and this one has to take {number}"
    if not directory:
        raise Refused(f"{reason}: the role may not see data_directory; {RIGHTS}")
    path = os.path.join(directory, "pg_wal", timeline_file_name(skipped))
    quoted = path.replace("'", "''")
    try:
        await sql.execute(f"COPY (SELECT '{PLACEHOLDER}') TO '{quoted}'")
    except asyncpg.PostgresError as error:
        raise Refused(f"{reason}: {error}; {RIGHTS}") from error
