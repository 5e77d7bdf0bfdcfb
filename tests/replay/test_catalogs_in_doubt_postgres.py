"""Rows of catalogs by transactions that ended before the WAL, which has no hint how they ended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.postgres_server import PostgresServer
from walkeeper_common.lsn import Lsn
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    settings = {"wal_keep_size": "1GB", "fsync": "off", "autovacuum": "off"}
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as made:
        yield made


def files_of(server: PostgresServer, table: int, start_lsn: int) -> set[int]:
    """Return the files that the table had by WAL from there on alone."""
    files = open_files(str(server.data / "pg_wal"))
    history = CatalogHistory.read(files, make_plan(files, start_lsn=start_lsn))
    return {
        relation.relfilenode
        for relation, owned in history.names().items()
        for named in owned
        if named.oid == table
    }


def begin_segment(server: PostgresServer) -> int:
    """Return where WAL begins whose first change of each page is its image."""
    server.sql("SELECT pg_switch_wal()")
    server.sql("CHECKPOINT")
    return int(Lsn.parse(server.sql("SELECT pg_current_wal_insert_lsn()"))) & ~0xFFFFF


def oid_and_file(server: PostgresServer, name: str) -> tuple[int, int]:
    row = server.sql(f"SELECT '{name}'::regclass::oid || ' ' || pg_relation_filenode('{name}')")
    oid, file = row.split()
    return int(oid), int(file)


@pytest.mark.parametrize("how", ["ROLLBACK", "COMMIT"])
def test_a_file_of_a_transaction_whose_end_nobody_tells_is_not_believed(
    server: PostgresServer, how: str
) -> None:
    """Found by comparison with recoveries: changes showed a TRUNCATE that was rolled back."""
    name = f"emptied_by_{how.lower()}"
    server.sql(f"CREATE TABLE {name} (id int)", f"INSERT INTO {name} VALUES (1)")
    oid, before = oid_and_file(server, name)
    server.sql(f"BEGIN; TRUNCATE {name}; {how}")
    start_lsn = begin_segment(server)
    server.sql(f"CREATE TABLE beside_{name} (id int)")
    assert not files_of(server, oid, start_lsn)  # neither file, while nothing tells which
    server.sql(f"ALTER TABLE {name} RENAME id TO number", f"COMMENT ON TABLE {name} IS 'seen'")
    server.sql(f"ALTER TABLE {name} SET (fillfactor = 50)")
    _, after = oid_and_file(server, name)
    assert (after == before) is (how == "ROLLBACK")
    assert files_of(server, oid, start_lsn) == {after}, "the ALTER TABLE proves it"
