"""The data directory of a running server, read over SQL as pg_rewind reads its source. A shell.

    with SqlFiles(dsn) as files: files.replayed_lsn(); files.read("global/pg_control", 0, 8192)

Contract: it raises Refused without a connection or the rights. It changes nothing on the server.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Self

import asyncpg

from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn
from walkeeper_proposer.postgres.primary_sql import LOST, connected

GRANTS = (
    "connect as a superuser, or GRANT EXECUTE ON FUNCTION pg_ls_dir(text, boolean, boolean), "
    "pg_stat_file(text, boolean), pg_read_binary_file(text, bigint, bigint, boolean) TO the role"
)


class NotAllowed(Refused):
    """The role may not read files."""


class SqlFiles:
    """data_directory's Files over one connection, on an event loop of its own."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._sql: asyncpg.Connection | None = None

    def __enter__(self) -> Self:
        try:
            self._sql = self._runner.run(self._stack.enter_async_context(connected(self._dsn)))
        except BaseException:
            self._runner.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._runner.run(self._stack.aclose())
        finally:
            self._runner.close()

    def replayed_lsn(self) -> Lsn | None:
        """Return the LSN that a standby has replayed, or None for a server that is no standby."""
        in_recovery, text = self._row("SELECT pg_is_in_recovery(), pg_last_wal_replay_lsn()::text")
        return Lsn.parse(text or "0/0") if in_recovery else None

    def names_of_wal(self) -> list[str]:
        listed = "SELECT array_agg(name) FROM pg_ls_dir('pg_wal', true, false) AS name"
        return list(self._value(listed) or ())

    def size(self, name: str) -> int:
        found = self._value("SELECT (pg_stat_file($1, true)).size", name)
        if found is None:
            raise FileNotFoundError(name)
        return int(found)

    def read(self, name: str, offset: int, size: int) -> bytes:
        found = self._value("SELECT pg_read_binary_file($1, $2, $3, true)", name, offset, size)
        if found is None:
            raise FileNotFoundError(name)
        return bytes(found)

    def _value(self, query: str, *arguments: Any) -> Any:
        return self._row(query, *arguments)[0]

    def _row(self, query: str, *arguments: Any) -> Any:
        """Return the one row that each of these queries has."""
        assert self._sql is not None, "not entered"
        try:
            return self._runner.run(self._sql.fetchrow(query, *arguments))
        except asyncpg.InsufficientPrivilegeError as error:
            raise NotAllowed(f"{error}; {GRANTS}") from error
        except (asyncpg.PostgresError, *LOST) as error:
            raise Refused(f"PostgreSQL: {error}") from error
