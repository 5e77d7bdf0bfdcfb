"""The logs that PostgreSQL's own tests of subscriptions go through are made and ended on demand."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.proof.subscription_tests.__main__ import Outcome, main
from tests.proof.subscription_tests.attached_logs import LogServer
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import wait_until


def asked(path: Path, **question: Any) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))
        peer.sendall(json.dumps(question).encode() + b"\n")
        answer: dict[str, Any] = json.loads(peer.makefile().readline())
    assert "error" not in answer, answer
    return answer


@pytest.mark.postgres
def test_a_publisher_gets_a_log_of_its_publications_until_it_is_ended(tmp_path: Path) -> None:
    settings = {"wal_level": "logical"}
    with (
        PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as publisher,
        LogServer(tmp_path) as server,
    ):
        publisher.sql("CREATE PUBLICATION p FOR ALL TABLES")
        place = {"host": "127.0.0.1", "port": publisher.port}
        wish = {**place, "dbname": "postgres", "publications": ["p"]}
        log = asked(server.path, do="log", **wish)
        assert asked(server.path, do="log", **wish) == log, "it is made once"
        unknown = {**wish, "publications": ["p", "unknown"]}
        assert asked(server.path, do="log", **unknown) == log
        where = f"host=127.0.0.1 port={log['port']} user=postgres dbname={log['name']}"
        with psycopg.connect(where, autocommit=True, replication="database") as session:
            session.execute('CREATE_REPLICATION_SLOT "feed" LOGICAL pgoutput')

        def slots() -> list[tuple[Any, ...]]:
            views = asked(server.path, do="views", port=publisher.port)
            assert publisher.rows(f"SELECT * FROM ({views['pg_stat_replication']}) r") == []
            return publisher.rows(f"SELECT * FROM ({views['pg_replication_slots']}) s")

        wait_until(lambda: slots() == [("feed", False, None)])
        asked(server.path, do="drop", port=publisher.port, slot="feed")
        wait_until(lambda: slots() == [])
        asked(server.path, do="end", port=publisher.port, name=log["name"])
        assert publisher.rows("SELECT slot_name FROM pg_replication_slots") == []


def test_a_check_that_is_not_ok_is_no_success(tmp_path: Path) -> None:
    assert Outcome("001", 0, 37, (), "").has_passed
    assert not Outcome("001", 0, 36, ("not ok 25",), "").has_passed
    assert not Outcome("001", 29, 24, (), "ERROR").has_passed
    assert main(["--source", str(tmp_path)]) == 2, "no tests are there"
