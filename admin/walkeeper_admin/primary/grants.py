"""The least privileges of a role that runs walkeeper, as SQL for a superuser. Shell.

    printed_grants(dsn, role) -> the script for that server's version

Each line names the command that needs it (docs/attach.md#a-role).
"""

from __future__ import annotations

from walkeeper_admin.primary.primary_settings import GRANTABLE_SINCE
from walkeeper_admin.primary.retention_slots import retention_functions
from walkeeper_admin.primary.standby_names import PARAMETER, REPLACED
from walkeeper_proposer.postgres.primary_sql import connected

FACTS = """
SELECT current_setting('server_version_num')::int, quote_ident($1),
    EXISTS (SELECT FROM pg_roles WHERE rolname = $1), quote_ident(current_database())
"""
COMPARISON = (
    "pg_ls_dir(text, boolean, boolean)",
    "pg_stat_file(text, boolean)",
    "pg_read_binary_file(text, bigint, bigint, boolean)",
)


async def printed_grants(dsn: str, role: str) -> str:
    """Return the SQL that gives `role` what walkeeper needs on this server.

    Raise Refused if the server does not answer.
    """
    async with connected(dsn) as sql:
        found = await sql.fetchrow(FACTS, role)
    assert found is not None, FACTS
    version, quoted, exists, database = found
    return "\n".join(script(version, quoted, database, exists=exists))


def script(version: int, role: str, database: str, *, exists: bool) -> list[str]:
    """Return the script's lines. `role` and `database` are quoted as SQL needs it."""
    made = f"ALTER ROLE {role} REPLICATION;" if exists else f"CREATE ROLE {role} LOGIN REPLICATION;"
    lines = [
        "-- create, proposer, detach --drop-slot",
        made,
        f"GRANT CONNECT ON DATABASE {database} TO {role};",
        "-- proposer: the slot that keeps the WAL that a comparison needs",
        *(f"GRANT EXECUTE ON FUNCTION {name} TO {role};" for name in retention_functions(version)),
        "-- attach: whether the proposer has caught up",
        f"GRANT pg_monitor TO {role};",
    ]
    if version < GRANTABLE_SINCE:
        lines.append(
            "-- attach, detach: before PostgreSQL 15 only a superuser may change "
            f"{PARAMETER}; use attach --print"
        )
    else:
        lines += [
            "-- attach, detach",
            f"GRANT ALTER SYSTEM ON PARAMETER {PARAMETER} TO {role};",
            f"GRANT EXECUTE ON FUNCTION pg_reload_conf() TO {role};",
            "-- attach --replace",
            f"GRANT ALTER SYSTEM ON PARAMETER {REPLACED} TO {role};",
        ]
    return [
        *lines,
        "-- on a standby, settle --replayed-by and switchover: to compare its WAL with the log",
        *(f"GRANT EXECUTE ON FUNCTION {name} TO {role};" for name in COMPARISON),
    ]
