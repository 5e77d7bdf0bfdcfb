"""Workers of each version copy the tables of a subscription from primaries of other versions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.installations import binaries_or_skip, versions
from tests.support.postgres_server import PostgresServer, installation
from tests.support.waiting import wait_until
from tests.with_postgres.logical_cluster import SETTINGS
from tests.with_postgres.test_logical_copy import CopyingCluster, is_copied

pytestmark = pytest.mark.postgres

DEBIANS = 15
MAJORS = (13, 14, 15, 16, 17, 18)
TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, gone int, v text, f float8)",
    "CREATE TABLE made (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)",
    "CREATE TABLE part (a int PRIMARY KEY, b text) PARTITION BY RANGE (a)",
    "CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (0) TO (100)",
    "ALTER TABLE t DROP COLUMN gone",
)


def server_of(major: int, stack: ExitStack, settings: dict[str, str]) -> PostgresServer:
    if major != DEBIANS:
        stack.enter_context(installation(binaries_or_skip(major)))
    made = PostgresServer.create(settings, initdb_options=["--wal-segsize=1"])
    return stack.enter_context(made)


def soak(*majors: int) -> list[pytest.ParameterSet]:
    return [pytest.param(major, marks=[pytest.mark.soak]) for major in majors]


@pytest.fixture(scope="module", params=[DEBIANS, *soak(13, 14, 16, 17, 18)])
def cluster(request: pytest.FixtureRequest) -> Iterator[CopyingCluster]:
    with ExitStack() as stack:
        primary = server_of(request.param, stack, SETTINGS)
        primary.sql(
            *TABLES,
            "CREATE PUBLICATION p FOR TABLE t, made, part WITH (publish_via_partition_root)",
            "INSERT INTO t SELECT n, E'\\t\\\\' || n, n / 3.0 FROM generate_series(1, 500) n",
            "INSERT INTO made SELECT generate_series(1, 9)",
            "INSERT INTO part VALUES (1, 'ünï')",
        )
        yield stack.enter_context(CopyingCluster.create(primary))


@pytest.mark.parametrize(
    ("major", "form"),
    [
        *(pytest.param(*each.values, "text", marks=each.marks) for each in versions(MAJORS)),
        pytest.param(18, "binary"),
        *(pytest.param(each, "binary", marks=[pytest.mark.soak]) for each in (14, 15, 16, 17)),
    ],
)
def test_a_worker_of_any_version_copies_the_tables(
    cluster: CopyingCluster, major: int, form: str
) -> None:
    """The copy is in binary form from 16 on, on both sides. 13 has no such option."""
    primary = cluster.primary
    with ExitStack() as stack:
        subscriber = server_of(major, stack, {})
        subscriber.sql(*TABLES)
        options = " WITH (binary = true)" if form == "binary" else ""
        feed = f"CREATE SUBSCRIPTION feed CONNECTION '{cluster.where(1)}' PUBLICATION p{options}"
        subscriber.sql(feed)
        wait_until(lambda: is_copied(subscriber))
        primary.sql("UPDATE t SET v = v || 'x', f = f / 7 WHERE id = 1")
        shown = "SELECT * FROM t ORDER BY id"
        wait_until(lambda: subscriber.rows(shown) == primary.rows(shown))
        for table in ("made", "part"):
            query = f"SELECT * FROM {table} ORDER BY 1"
            assert subscriber.rows(query) == primary.rows(query)
        subscriber.sql("DROP SUBSCRIPTION feed")
