"""SQL of undo keeps each value as it was, whatever the database's settings and later types."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.replay.test_undo_postgres import changed, undone
from tests.support.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    settings = {"fsync": "off", "wal_keep_size": "8GB"}
    options = ["--wal-segsize=1", "--encoding=UTF8", "--locale=C"]
    with PostgresServer.create(settings, initdb_options=options) as made:
        yield made


@contextmanager
def setting(server: PostgresServer, name: str, value: str) -> Iterator[None]:
    """Give the database a setting."""
    server.sql(f"ALTER DATABASE postgres SET {name} = {value}")
    try:
        yield
    finally:
        server.sql(f"ALTER DATABASE postgres RESET {name}")


@pytest.mark.parametrize("type_", ["float8", "float8[]", "point"])
def test_a_float_of_other_last_digits_is_not_as_it_was_left(
    server: PostgresServer, tmp_path: Path, type_: str
) -> None:
    text = {"float8": "{}", "float8[]": "{{{}}}", "point": "({},0)"}[type_]
    left, later = text.format("0.3"), text.format("0.30000000000000004")
    server.sql("DROP TABLE IF EXISTS f", f"CREATE TABLE f (id int PRIMARY KEY, v {type_})")
    inserted = changed(server, f"INSERT INTO f VALUES (1, '{left}')")
    server.sql(f"UPDATE f SET v = '{later}'")
    with setting(server, "extra_float_digits", "0"):
        assert "is not as it was left" in undone(server, tmp_path, inserted).stderr
    assert server.sql("SELECT v::text FROM f") == later


@pytest.mark.parametrize(
    ("name", "value", "type_", "text"),
    [("array_nulls", "off", "text[]", "{NULL,a}"), ("xmloption", "document", "xml", "a<b/>")],
)
def test_a_value_comes_back_whatever_the_database_takes_text_for(
    server: PostgresServer, tmp_path: Path, name: str, value: str, type_: str, text: str
) -> None:
    server.sql("DROP TABLE IF EXISTS s", f"CREATE TABLE s (v {type_})")
    server.sql(f"INSERT INTO s VALUES ('{text}')")
    deleted = changed(server, "DELETE FROM s")
    with setting(server, name, value):
        done = undone(server, tmp_path, deleted)
    assert done.returncode == 0, done.stderr
    assert server.rows("SELECT v::text FROM s") == [(text,)]
