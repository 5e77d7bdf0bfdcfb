"""A server recovered to a place in archived WAL and promoted there: the judge of what was so.

    with recovered(backup, archive, {"recovery_target_lsn": "0/3000000"}) as judge:
        judge.stopped_at; judge.tables() -> {"public.t": Described}; judge.rows("public.t")

A promotion ends each transaction in progress, so that no lock keeps a reader out. Prepared
transactions are rolled back for the same reason.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.replay.restored import copied
from tests.support.postgres_server import (
    PostgresServer,
    make_directory,
    own,
    program,
    run_as_server_user,
    server_environment,
)
from tests.support.waiting import LIMIT_S, wait_until
from walkeeper_common.lsn import Lsn

Row = tuple[str | None, ...]
_TABLES = """
SELECT format('%I.%I', n.nspname, c.relname), c.oid::int8, c.relkind::text,
  (SELECT array_agg(array[a.attname::text, format_type(a.atttypid, a.atttypmod), attnum::text]
                    ORDER BY attnum)
   FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'm') AND c.relpersistence = 'p' AND c.oid >= 16384
  AND n.nspname <> 'pg_toast' ORDER BY 1
"""


@dataclass(frozen=True)
class Described:
    """A table of a recovered server. Rows of two places compare if all of it is equal."""

    oid: int
    kind: str
    columns: tuple[tuple[str, str], ...]
    numbers: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple(name for name, _ in self.columns)


class Recovered:
    """One server, at one place."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        history = (server.data / "pg_wal" / "00000002.history").read_text()
        self.stopped_at = int(Lsn.parse(history.split()[1]))
        for (gid,) in server.rows("SELECT gid FROM pg_prepared_xacts"):
            server.sql(f"ROLLBACK PREPARED '{gid}'")

    def tables(self) -> dict[str, Described]:
        """Return users' tables by name, as they are written in SQL."""
        return {
            name: Described(
                oid,
                kind,
                tuple((a, b) for a, b, _ in columns or ()),
                tuple(int(number) for _, _, number in columns or ()),
            )
            for name, oid, kind, columns in self.server.rows(_TABLES)
        }

    def rows(self, table: str) -> list[Row]:
        """Return what COPY prints, in the table's physical order."""
        return copied(self.server, f"ONLY {table}")

    def run(self, script: Path) -> str | None:
        """Run SQL with psql. Return its error, or None."""
        done = subprocess.run(
            [program("psql"), "-Xq", "-v", "ON_ERROR_STOP=1", "-d", self.server.dsn(),
             "-f", str(script)],
            capture_output=True, text=True, timeout=LIMIT_S, env=server_environment(),
        )  # fmt: skip
        return done.stderr if done.returncode else None


def _is_promoted(server: PostgresServer) -> bool:
    """Return whether it takes connections; pg_ctl may return while it still recovers."""
    assert server.is_running, server.log_text()[-3000:]
    try:
        return server.sql("SELECT NOT pg_is_in_recovery()") is True
    except psycopg.OperationalError:
        return False


@contextlib.contextmanager
def recovered(backup: Path, archive: Path, target: Mapping[str, str]) -> Iterator[Recovered]:
    """Recover a copy of `backup` to `target`, without the record that reaches it."""
    directory = make_directory("walkeeper_recovered_")
    try:
        run_as_server_user(["cp", "-a", str(backup), str(directory / "data")])
        server = PostgresServer(directory)
        server.configure(
            {
                "restore_command": f"cp {archive}/%f %p",
                "recovery_target_inclusive": "off",
                "recovery_target_action": "promote",
                "recovery_target_timeline": "1",
                "hot_standby": "off",
                "fsync": "off",
                **target,
            }
        )
        (server.data / "recovery.signal").touch()
        own(server.data)
        try:
            server.start()
            wait_until(lambda: _is_promoted(server))
            yield Recovered(server)
        finally:
            server.kill()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
