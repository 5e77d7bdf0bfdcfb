"""SQL to the primary, through asyncpg. A shell.

The same DSN as libpq's: libpq parses it, with its environment, service files and .pgpass, and
asyncpg gets the parts. Nothing here waits for synchronous replication: no transaction writes.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from psycopg import conninfo, pq
from psycopg import errors as pg_errors

from walkeeper_common.errors import Refused

STATEMENT_TIMEOUT_S = 10.0
# sslmodes that asyncpg understands by the same names as libpq.
SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


def connection_arguments(dsn: str) -> dict[str, Any]:
    """libpq's view of a DSN (environment, service file) as asyncpg's arguments."""
    try:
        given = conninfo.conninfo_to_dict(dsn)
    except pg_errors.ProgrammingError as error:
        raise Refused(f"--dsn is not a connection string: {error}") from error
    defaults = {o.keyword.decode(): o.val for o in pq.Conninfo.get_defaults()}

    def value(name: str) -> str | None:
        default = defaults.get(name)
        return str(given[name]) if name in given else default.decode() if default else None

    arguments: dict[str, Any] = {"timeout": STATEMENT_TIMEOUT_S}
    hosts, ports = value("host"), value("port") or "5432"
    if hosts:
        arguments["host"] = hosts.split(",")
        listed = ports.split(",")
        arguments["port"] = [int(p) for p in (listed * len(arguments["host"]))][
            : len(arguments["host"])
        ]
    else:
        debian = "/var/run/postgresql"
        arguments["host"] = debian if os.path.isdir(debian) else "/tmp"
        arguments["port"] = int(ports)
    for ours, theirs in (("user", "user"), ("password", "password"), ("passfile", "passfile")):
        if value(ours):
            arguments[theirs] = value(ours)
    arguments["database"] = value("dbname") or "postgres"
    mode = value("sslmode")
    if mode in SSL_MODES:
        arguments["ssl"] = _ssl(mode, value("sslrootcert"))
    if value("target_session_attrs") in ("primary", "read-write"):
        arguments["target_session_attrs"] = "primary"
    return arguments


def _ssl(mode: str, root_certificate: str | None) -> object:
    if mode not in ("verify-ca", "verify-full") or root_certificate is None:
        return mode
    context = ssl.create_default_context(cafile=root_certificate)
    context.check_hostname = mode == "verify-full"
    return context


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """One SQL connection. Refused with the server's text if there is none."""
    try:
        connection = await asyncpg.connect(
            **connection_arguments(dsn),
            command_timeout=STATEMENT_TIMEOUT_S,
            server_settings={"application_name": "walkeeper_sql"},
        )
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise Refused(f"no SQL connection to the primary: {error or 'no answer'}") from error
    try:
        yield connection
    finally:
        await connection.close(timeout=1)


async def terminate_slot_user(dsn: str, slot: str) -> None:
    """End the walsender that holds a slot; allowed for one's own role's connections."""
    async with connected(dsn) as sql:
        await sql.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
            "WHERE slot_name = $1 AND active_pid IS NOT NULL",
            slot,
        )
