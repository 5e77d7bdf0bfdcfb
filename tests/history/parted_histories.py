"""Two histories of one cluster and timeline that part within a segment, and switch to the next one.

parted = Parted.make(folder, statements, statements); parted.first, parted.second    WAL of each
parted.mixed(folder)         the first one's segment, in which they part, among the second one's
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.support.postgres_server import PostgresServer, own

SETTINGS = {"wal_keep_size": "1GB", "fsync": "off", "autovacuum": "off"}


@dataclass(frozen=True, slots=True)
class Parted:
    """See the module. Both have a table t of 3000 rows, and the empty table quiet, before that."""

    first: Path
    second: Path
    base: Path
    """A copy of the server's data from before they part."""
    segment: str
    """The name of the segment in which they part."""

    @classmethod
    def make(cls, folder: Path, first: str, second: str) -> Parted:
        """Run a statement in each of the histories."""
        base = folder / "copy"
        with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
            server.sql("CREATE TABLE t (id int)", "CREATE TABLE quiet (id int)")
            server.sql("SELECT pg_switch_wal()")
            server.sql("INSERT INTO t SELECT generate_series(1, 3000)")
            segment = str(server.sql("SELECT pg_walfile_name(pg_current_wal_insert_lsn())"))
            server.stop()
            shutil.copytree(server.data, base)
            for name, statement in (("a", first), ("b", second)):
                shutil.rmtree(server.data)
                shutil.copytree(base, server.data)
                own(server.data)
                server.start()
                server.sql(statement, "SELECT pg_switch_wal()")
                # Segments that end without a switch: an index may stand for them.
                server.sql("INSERT INTO t SELECT 0 FROM generate_series(1, 40000)")
                server.sql("SELECT pg_switch_wal()")
                server.stop()
                shutil.copytree(server.data / "pg_wal", folder / name)
        return cls(folder / "a", folder / "b", base, segment)

    def mixed(self, folder: Path) -> Path:
        """Return a folder as an archive in which one history's segment replaced the other's."""
        shutil.copytree(self.second, folder)
        shutil.copy(self.first / self.segment, folder)
        return folder
