"""Rows with more bytes than one Arrow column holds come in several batches, and whole."""

from __future__ import annotations

import pytest

from tests.replay.restored import copied
from tests.support.postgres_server import PostgresServer
from walkeeper_replay.columns import columns_of_rows
from walkeeper_replay.columns.arrow_text import rows_of_text
from walkeeper_replay.columns.columns_of_rows import LargeColumn
from walkeeper_replay.table_at import TableAt, coverage_of
from walkeeper_replay.text.coverage import COMPLETE
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan

pytestmark = pytest.mark.postgres
BYTES_MAX = 50_000


def test_rows_beyond_a_columns_bytes_come_in_parts_and_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"wal_keep_size": "1GB", "fsync": "off", "autovacuum": "off"}
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as server:
        server.sql("CREATE TABLE files (id int, body bytea, t text, j jsonb, n numeric)")
        server.sql(
            "INSERT INTO files SELECT i, decode(repeat(md5(i::text), 300), 'hex'), "
            "repeat(i::text, 3000), to_jsonb(repeat('x', i)), i FROM generate_series(1, 60) i"
        )
        server.sql("ALTER TABLE files ADD COLUMN later int DEFAULT 7")
        server.sql("SELECT txid_current()")
        path = str(server.data / "pg_wal")
        plan = make_plan(open_files(path))
        past = TableAt.open(path, plan, "files", database="postgres")
        assert len(list(past.read())) == 1
        monkeypatch.setattr(columns_of_rows, "COLUMN_MAX_BYTES", BYTES_MAX)
        batches = list(past.read())
        assert len(batches) > 1
        assert max(batch.column("body").nbytes for batch in batches) <= BYTES_MAX + 4 * 61
        table = past.whole(threads=2)
        assert coverage_of(table) == COMPLETE
        rows = rows_of_text(table.drop_columns([past.coverage_column]))
        assert rows == copied(server, "files")
        monkeypatch.setattr(columns_of_rows, "COLUMN_MAX_BYTES", 2000)
        with pytest.raises(LargeColumn, match="column body has more than 2 GiB"):
            past.whole()
