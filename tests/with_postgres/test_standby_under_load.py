"""A standby behind a safekeeper writes under bulk load what one behind the primary would write.

The standby's walreceiver wakes replay after each message, and replay reads whole pages. A message
that ends inside a record's part of a page therefore makes replay read bytes that are not there yet
(R21). The server's log is the only place where this shows: replay starts again and goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, lsn_of
from tests.support.postgres_server import PostgresServer, program, run_as_server_user
from tests.support.standbys import standby_of, unhealthy_lines, wait_replayed

pytestmark = pytest.mark.postgres

LOAD_S = 8
BULK = "INSERT INTO bulk SELECT i, repeat(md5(i::text), 200) FROM generate_series(1, 12000) i"


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    """It keeps all WAL of the load, and its segments are longer than many messages."""
    with PostgresServer.create({"shared_buffers": "64MB", "wal_keep_size": "1GB"}) as server:
        yield server


def write_bulk(primary: PostgresServer, done: threading.Event) -> None:
    with primary.connect() as session:
        while not done.is_set():
            session.execute(BULK)
            session.execute("UPDATE bulk SET i = i + 1 WHERE i % 3 = 0")


def test_a_busy_standby_writes_only_what_a_healthy_one_writes(
    cluster: Cluster, primary: PostgresServer
) -> None:
    primary.sql("CREATE TABLE bulk (i int, v text)")
    run_as_server_user([program("pgbench"), "-iq", "-s", "1", primary.dsn()])
    with standby_of(primary, cluster.ports[0]) as standby:
        done = threading.Event()
        writer = threading.Thread(target=write_bulk, args=(primary, done))
        writer.start()
        try:
            load = ("-n", "-c", "4", "-T", str(LOAD_S), primary.dsn())
            run_as_server_user([program("pgbench"), *load])
        finally:
            done.set()
            writer.join()
        wait_replayed(standby, lsn_of(primary.sql("SELECT pg_current_wal_flush_lsn()::text")))
        log = standby.log_text()
    assert log.count("started streaming WAL from primary") == 1, unhealthy_lines(log)
    assert not unhealthy_lines(log)
