"""The last record of the log is torn: no walk over the WAL takes it, also one without checksums."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres_server import PostgresServer
from walkeeper_cli.program import run
from walkeeper_common.lsn import Lsn, segment_name

pytestmark = pytest.mark.postgres
Output = pytest.CaptureFixture[str]
SEGMENT_BYTES = 1 << 20


@pytest.fixture
def torn(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Return WAL whose last record has an image of a page with another value, and an LSN after."""
    settings = {"fsync": "off", "wal_compression": "off"}
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as server:
        server.sql("SELECT pg_switch_wal()")
        first = server.sql("SELECT pg_walfile_name(pg_current_wal_insert_lsn())")
        server.sql("CREATE TABLE t (id int, v text)", "INSERT INTO t VALUES (1, 'as written')")
        server.sql("CHECKPOINT")
        begin = Lsn.parse(server.sql("SELECT pg_current_wal_insert_lsn()"))
        with server.connect() as session:
            session.execute("BEGIN")
            session.execute("INSERT INTO t VALUES (2, 'later')")
            row = session.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            assert row is not None
            end = Lsn.parse(row[0])
            session.execute("COMMIT")
        for path in (server.data / "pg_wal").glob("0*"):
            if path.name >= first:
                shutil.copy(path, tmp_path)
    assert begin // SEGMENT_BYTES == end // SEGMENT_BYTES
    path = tmp_path / segment_name(1, end, SEGMENT_BYTES)
    data = bytearray(path.read_bytes())
    at = data.index(b"as written", begin % SEGMENT_BYTES)
    data[at : at + 10] = b"AS WRITTEN"
    data[end % SEGMENT_BYTES :] = bytes(SEGMENT_BYTES - end % SEGMENT_BYTES)
    path.write_bytes(data)
    yield tmp_path, str(end)


def test_a_torn_image_changes_no_row(torn: tuple[Path, str], capsys: Output) -> None:
    wal, lsn = torn
    words = ["history", "table-at", "t", "--path", str(wal), "--lsn", lsn]
    assert run([*words, "--allow-missing"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == ["id,v", "1,as written"]
    assert "before what was asked for" in said.err
