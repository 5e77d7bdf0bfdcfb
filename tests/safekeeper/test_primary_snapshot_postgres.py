"""A transaction on the primary that copies tables for a worker, and answers its questions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.postgres_server import PostgresServer
from walkeeper_common.postgres.client_encoding import client_encoding
from walkeeper_safekeeper.replication.primary_snapshot import PrimarySnapshot

pytestmark = pytest.mark.postgres


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    options = ["--encoding=UTF8", "--locale=C"]
    with PostgresServer.create({"wal_level": "logical"}, initdb_options=options) as made:
        yield made


def test_a_copy_in_another_encoding_leaves_later_answers_as_they_were(
    server: PostgresServer,
) -> None:
    """The answer to a question behind a copy was of the copy's encoding, and broke the session."""
    table = 'public."tübe"'
    server.sql(f"CREATE TABLE {table} (v text)", f"INSERT INTO {table} VALUES ('größer')")

    async def copied() -> tuple[list[bytes], object]:
        snapshot = await PrimarySnapshot.connect(server.dsn(), "postgres", "copying")
        try:
            await snapshot.take()
            encoding = client_encoding("LATIN1")
            rows = [row async for row in snapshot.copy(f"COPY {table} TO STDOUT", encoding)]
            return rows, (await snapshot.rows(f"SELECT v FROM {table} WHERE v = 'größer'")).rows
        finally:
            await snapshot.close()

    assert asyncio.run(copied()) == (["größer\n".encode("latin-1")], [["größer"]])
