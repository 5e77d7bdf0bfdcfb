"""VACUUM FULL of a TOAST table alone: values that were stored out of line later are known, too."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.replay.test_catalogs_postgres import SETTINGS, Past, run
from tests.replay.test_change_stream_postgres import rows_of
from tests.support.postgres_server import PostgresServer
from walkeeper_replay.streams.change_windows import ChangeStream, Scope
from walkeeper_replay.text.coverage import COMPLETE

pytestmark = pytest.mark.postgres


def test_values_are_found_in_each_file_of_their_toast_table(tmp_path: Path) -> None:
    value = "repeat(md5('{0}'), 200)"
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        run(
            server, "CREATE TABLE t (id int, v text)", "ALTER TABLE t ALTER v SET STORAGE EXTERNAL",
            f"INSERT INTO t VALUES (1, {value.format(1)}), (2, {value.format(2)})",
        )  # fmt: skip
        toast = server.sql("SELECT reltoastrelid::regclass FROM pg_class WHERE relname = 't'")
        run(
            server, "DELETE FROM t WHERE id = 1", "SELECT pg_switch_wal()", f"VACUUM FULL {toast}",
            f"INSERT INTO t VALUES (3, {value.format(3)})", "SELECT pg_switch_wal()",
            "DELETE FROM t WHERE id = 3", "SELECT txid_current()",
        )  # fmt: skip
        past = Past(server)
        changes = past.changes("postgres", "t")
        assert [change.coverage for change in changes] == [COMPLETE] * 5
        values = [(change.new or change.old or {}) for change in changes]
        assert [len(each["v"] or "") for each in values] == [6400] * 5
        assert [each["id"] for each in values] == ["1", "2", "1", "3", "3"]
        state, scope = tmp_path / "state", Scope(("t",), "postgres")
        found = []
        with closing(ChangeStream.open(state, scope)) as stream:
            stream.segments_max = 1
            while stream.position < past.history.end_lsn:
                found += rows_of(stream.advance(past.files, past.plan).changes(), "postgres")
        assert found == rows_of(changes, "postgres")
