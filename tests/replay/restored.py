"""A real point-in-time restore: a backup's copy, recovered to one LSN after another, queried."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.support.postgres_server import PostgresServer, own
from tests.support.waiting import wait_until
from walkeeper_common.lsn import Lsn


class Restored:
    """`to(lsn)` in ascending order: each goes on from where the one before paused."""

    def __init__(self, server: PostgresServer, archive: Path) -> None:
        self.server = server
        server.configure(
            {
                "restore_command": f"cp {archive}/%f %p",
                "recovery_target_inclusive": "off",
                "recovery_target_action": "pause",
                "wal_consistency_checking": "",
            }
        )
        (server.data / "recovery.signal").touch()
        own(server.data)

    def to(self, lsn: int) -> None:
        if self.server.is_running:
            self.server.stop()
        self.server.configure({"recovery_target_lsn": str(Lsn(lsn))})
        self.server.start()
        wait_until(
            lambda: (
                self.server.sql("SELECT pg_get_wal_replay_pause_state() = 'paused'")
                if self._has_state
                else self.server.sql("SELECT pg_is_wal_replay_paused()")
            )
        )

    @property
    def _has_state(self) -> bool:
        return int((self.server.data / "PG_VERSION").read_text()) >= 14

    def tables(self) -> list[str]:
        rows = self.server.rows(
            "SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace "
            "AND relkind = 'r' ORDER BY 1"
        )
        return [row[0] for row in rows]

    def rows(self, table: str) -> list[tuple[str | None, ...]]:
        return copied(self.server, table)


def copied(server: PostgresServer, table: str) -> list[tuple[str | None, ...]]:
    """Return the rows as COPY prints them, in the table's physical order."""
    statement = f"COPY (SELECT * FROM {table} ORDER BY ctid) TO STDOUT".encode()
    options = "-c timezone=UTC -c datestyle=ISO -c intervalstyle=postgres"
    with (
        server.connect(options=options) as connection,
        connection.cursor() as cursor,
        cursor.copy(statement) as copy,
    ):
        return list(copy.rows())


@contextlib.contextmanager
def restored(server: PostgresServer, archive: Path) -> Iterator[Restored]:
    try:
        yield Restored(server, archive)
    finally:
        server.kill()
