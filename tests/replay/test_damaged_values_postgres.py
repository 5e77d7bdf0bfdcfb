"""A damaged value is named with its file, LSN and table, in rows and in changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres_server import PostgresServer
from walkeeper_cli.program import run

pytestmark = pytest.mark.postgres
Output = pytest.CaptureFixture[str]
HEAD_BYTES = 12
"""A jsonb of one key has so many before the key: a count, and a word for each part."""


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    settings = {"wal_keep_size": "8GB", "fsync": "off", "full_page_writes": "off"}
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as made:
        yield made


def test_a_damaged_value_is_named_and_leaves_the_others(
    server: PostgresServer, capsys: Output
) -> None:
    server.sql(
        "CREATE TABLE kept (id int, j jsonb, n numeric)",
        "INSERT INTO kept VALUES (1, '{\"damaged here\": 1}', 1.5), (2, '{\"b\": 2}', 2.5)",
    )
    path = Path(str(server.sql("SELECT pg_relation_filepath('kept')")))
    backup = server.base_backup()
    try:
        file = backup.data / path
        data = bytearray(file.read_bytes())
        place = data.index(b"damaged here") - HEAD_BYTES
        data[place : place + 4] = b"\xff\xff\xff\x2f"  # as many pairs as there can be
        with file.open("r+b") as opened:
            opened.write(data)
            os.fsync(opened.fileno())
        server.sql("UPDATE kept SET n = 3.5")
        where = ("--path", str(server.data / "pg_wal"), "--base", str(backup.data))
        assert run(["history", "table-at", "kept", *where]) == 1
        said = capsys.readouterr()
        assert said.out == 'id,j,n\n1,,3.5\n2,"{""b"": 2}",3.5\n'
        assert "public.kept at 0/" in said.err and "column j in block 0 of file 1663/" in said.err
        assert "changed by 0/" in said.err and "read another copy" in said.err
        assert run(["history", "changes", "--table", "kept", *where]) == 1
        said = capsys.readouterr()
        assert "missing: table public.kept" in said.err and "of the record at 0/" in said.err
        assert '""n"": ""2.5""' in said.out and "2 changes" in said.err
        assert run(["history", "undo", "--table", "kept", *where]) == 1
        said = capsys.readouterr()
        assert "-- not undone: update of public.kept" in said.out
        assert "1 change can be undone, 1 cannot" in said.err
    finally:
        backup.delete()
