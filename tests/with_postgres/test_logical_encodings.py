"""A subscriber in any encoding gets from the log what it gets from the primary itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest

from tests.support.postgres_server import PostgresServer
from tests.support.waiting import wait_until
from tests.with_postgres.logical_cluster import SETTINGS, LogicalCluster

pytestmark = pytest.mark.postgres

CODECS = {"UTF8": "utf_8", "LATIN1": "latin_1", "WIN1252": "cp1252", "EUC_JP": "euc_jp"}
TABLES = (
    "CREATE TYPE \"mödchen\" AS ENUM ('grün', 'blau')",
    'CREATE TABLE "tübe" (id int PRIMARY KEY, "wört" text, raw bytea, kind "mödchen")',
    'ALTER TABLE "tübe" REPLICA IDENTITY FULL',
)
CHANGES = (
    "INSERT INTO \"tübe\" VALUES (1, 'Motörhead', '\\xe9c3a9ff00', 'grün')",
    "INSERT INTO \"tübe\" VALUES (2, NULL, '\\xff', NULL)",
    "INSERT INTO \"tübe\" VALUES (3, 'größer' || repeat('ä', 3000), '\\xc3', 'blau')",
    'UPDATE "tübe" SET "wört" = \'ßüö\' WHERE id = 2',
    'UPDATE "tübe" SET id = 30 WHERE id = 3',
    "INSERT INTO \"tübe\" VALUES (4, 'wég', NULL, NULL)",
    'DELETE FROM "tübe" WHERE id = 4',
    'INSERT INTO "tübe" VALUES (5, NULL, NULL, NULL)',
)
CONTENT = """
SELECT id, encode(convert_to("wört", getdatabaseencoding()), 'hex'), encode(raw, 'hex'),
    encode(convert_to(kind::text, getdatabaseencoding()), 'hex')
  FROM "tübe" ORDER BY id"""


class Subscriber:
    """One database of the subscribing server; its statements are texts of the primary's."""

    def __init__(self, server: PostgresServer, encoding: str, name: str, primary: str) -> None:
        self.name, self._server = name, server
        self._codec = CODECS.get(encoding) or CODECS[primary]  # SQL_ASCII has the primary's bytes
        locale = "LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        server.sql(f"CREATE DATABASE {name} ENCODING '{encoding}' {locale}")
        self.rows(*TABLES)

    def rows(self, *statements: str) -> list[tuple[object, ...]]:
        found = list[tuple[object, ...]]()
        with self._server.connect(dbname=self.name) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode(self._codec))
                found = cursor.fetchall() if cursor.description else []
        return found

    def content(self) -> list[tuple[object, ...]]:
        """Return the table's rows when the last of the changes is there."""
        wait_until(lambda: [row[0] for row in self.rows(CONTENT)] == [1, 2, 5, 30])
        return self.rows(CONTENT)

    def subscribe(self, port: int) -> None:
        where = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
        self.rows(
            f"CREATE SUBSCRIPTION {self.name} CONNECTION '{where}' "
            'PUBLICATION "pübl" WITH (copy_data = false)'
        )


class EncodedCluster(LogicalCluster):
    def __init__(self, primary: PostgresServer) -> None:
        super().__init__(primary)
        self.proposer = self.new_proposer("encoded", "--logical", "--publication", "pübl")


@pytest.fixture(params=[pytest.param("UTF8", marks=pytest.mark.soak), "LATIN1"])
def encoding(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def primary(encoding: str) -> Iterator[PostgresServer]:
    options = ["--wal-segsize=1", f"--encoding={encoding}", "--locale=C"]
    with PostgresServer.create(SETTINGS, initdb_options=options) as server:
        create = 'CREATE PUBLICATION "pübl" FOR TABLE "tübe"'
        server.sql(*TABLES, create, client_encoding="UTF8")
        yield server


@pytest.fixture
def cluster(primary: PostgresServer) -> Iterator[EncodedCluster]:
    with EncodedCluster.create(primary) as made:
        yield made


@pytest.fixture
def subscribing() -> Iterator[PostgresServer]:
    settings = {"max_logical_replication_workers": "20", "max_worker_processes": "30"}
    options = ["--encoding=UTF8", "--locale=C"]
    with PostgresServer.create(settings, initdb_options=options) as server:
        yield server


def test_a_subscriber_has_what_one_of_the_primary_itself_has(
    cluster: EncodedCluster, primary: PostgresServer, subscribing: PostgresServer, encoding: str
) -> None:
    """PostgreSQL converts LATIN1 to few encodings, UTF8 to all."""
    pairs = list[tuple[Subscriber, Subscriber]]()
    for each in (*CODECS, "SQL_ASCII") if encoding == "UTF8" else ("UTF8", "LATIN1", "SQL_ASCII"):
        kept, direct = (
            Subscriber(subscribing, each, f"{each.lower()}_{way}", encoding)
            for way in ("log", "direct")
        )
        kept.subscribe(cluster.ports[0])
        direct.subscribe(primary.port)
        pairs.append((kept, direct))
    primary.sql(*CHANGES, client_encoding="UTF8")
    for kept, direct in pairs:
        assert kept.content() == direct.content(), kept.name


@pytest.mark.parametrize("encoding", ["UTF8"], indirect=True)
def test_a_character_that_the_subscriber_cannot_have_stops_it_as_the_primary_does(
    cluster: EncodedCluster, primary: PostgresServer, subscribing: PostgresServer, encoding: str
) -> None:
    """And everything before it is there."""
    kept, direct = (
        Subscriber(subscribing, "LATIN1", name, encoding) for name in ("latin_log", "latin_direct")
    )
    kept.subscribe(cluster.ports[0])
    direct.subscribe(primary.port)
    primary.sql(
        "INSERT INTO \"tübe\" VALUES (1, 'é')",
        "INSERT INTO \"tübe\" VALUES (2, '10 €')",
        client_encoding="UTF8",
    )
    wait_until(lambda: stopped(subscribing) == {kept.name, direct.name})
    assert [row[0] for row in kept.rows(CONTENT)] == [row[0] for row in direct.rows(CONTENT)] == [1]


def stopped(server: PostgresServer) -> set[str]:
    """Return the subscriptions that a character has stopped, from the subscriber's log."""
    said = 'character with byte sequence 0xe2 0x82 0xac in encoding "UTF8" has no equivalent'
    lines = server.log_text().splitlines()
    stopped = {found[1] for at in lines if said in at and (found := re.search(r"\[(\d+)\]", at))}
    started = r'\[(\d+)\].*apply worker for subscription "(\w+)" has started'
    return {found[2] for at in lines if (found := re.search(started, at)) and found[1] in stopped}


@pytest.mark.parametrize("encoding", ["UTF8"], indirect=True)
def test_an_encoding_that_cannot_be_served_is_refused_when_the_subscription_is_made(
    cluster: EncodedCluster, subscribing: PostgresServer, encoding: str
) -> None:
    locale = "LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    subscribing.sql(f"CREATE DATABASE tw ENCODING 'EUC_TW' {locale}")
    where = f"host=127.0.0.1 port={cluster.ports[0]} user=postgres dbname=postgres"
    subscribe = f"CREATE SUBSCRIPTION tw CONNECTION '{where}' PUBLICATION p"
    with pytest.raises(psycopg.OperationalError, match="not available from a safekeeper"):
        subscribing.sql(
            f"{subscribe} WITH (copy_data = false)", dbname="tw", client_encoding="UTF8"
        )
