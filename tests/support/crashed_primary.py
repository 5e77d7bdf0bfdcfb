"""A primary that crashed with a commit that no quorum has, and a client that looks for its row."""

from __future__ import annotations

import threading
from contextlib import suppress

import psycopg

from tests.support.cluster import Cluster
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import wait_until


class Reader:
    """A client that tries to see the table's rows all the time."""

    def __init__(self, server: PostgresServer) -> None:
        self.seen: set[int] = set()
        self.refused = 0
        self._server, self._stopping = server, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stopping.wait(0.02):
            try:
                with self._server.connect(user="reader") as connection:
                    rows = connection.execute("SELECT i FROM t").fetchall()
                    self.seen |= {row[0] for row in rows}
            except psycopg.Error as error:
                self.refused += "no pg_hba.conf entry" in str(error)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()


def crashed_with_a_waiting_commit(cluster: Cluster, primary: PostgresServer) -> None:
    """Leave row 2 on safekeeper 1 and on the primary alone, and kill the primary."""
    primary.sql(
        "CREATE ROLE reader LOGIN",
        "CREATE TABLE t AS SELECT 1 AS i",
        "GRANT SELECT ON t TO reader",
    )
    cluster.wait_all_equal()
    for safekeeper in cluster.safekeepers[1:]:
        safekeeper.kill()
    with primary.connect() as connection:
        waiting = threading.Thread(target=lambda: _insert(primary), daemon=True)
        waiting.start()
        wait_until(lambda: connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        ).fetchone() == (1,))  # fmt: skip
    primary.kill()
    waiting.join()


def _insert(server: PostgresServer) -> None:
    with suppress(psycopg.Error), server.connect() as connection:
        connection.execute("INSERT INTO t VALUES (2)")


def gets_in(server: PostgresServer) -> bool:
    with suppress(psycopg.Error):
        return bool(server.sql("SELECT true", user="reader"))
    return False
