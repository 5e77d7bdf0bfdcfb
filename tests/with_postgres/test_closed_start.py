"""`walkeeper gate`: no reader sees a row that a later failover may lose."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from tests.support.cluster import WALKEEPER, Cluster, walkeeper
from tests.support.postgres_server import (
    PostgresServer,
    program,
    server_environment,
    server_user,
)
from tests.support.standbys import fail_over, standby_of
from tests.support.waiting import LIMIT_S, wait_until
from walkeeper_admin.closed_start import OPEN_SUFFIX
from walkeeper_admin.primary.hba_rules import narrowed
from walkeeper_common.errors import Refused

RULES = """
# TYPE  DATABASE  USER  ADDRESS  METHOD
local all all peer map=x # "here"
hostssl "all" app,"wal keeper" , postgres 10.0.0.0 255.0.0.0 scram-sha-256
host replication +group samehost trust
host sales "Reader" ::1/128 \\
  reject
"""


def test_the_rules_of_some_roles_stay_as_they_are() -> None:
    said = narrowed(RULES, ["postgres", "wal keeper"], kept="x").splitlines()
    assert said[2:] == [
        'local all "postgres","wal keeper" peer map=x',
        'hostssl "all" "postgres","wal keeper" 10.0.0.0 255.0.0.0 scram-sha-256',
    ]
    assert narrowed(RULES, ["Reader"], kept="x").splitlines()[3:] == [
        'host sales "Reader" ::1/128   reject'
    ]


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ("include other.conf\n", "includes another file"),
        ("local all @admins trust\n", "includes another file"),
        ("local all\n", "has a line that is no rule"),
        ("loco all all trust\n", "has a line that is no rule"),
        ("local all app trust\n", "has no rule for postgres"),
    ],
)
def test_rules_that_cannot_be_narrowed_are_refused(rules: str, text: str) -> None:
    with pytest.raises(Refused, match=text):
        narrowed(rules, ["postgres"], kept="x")


def start_of(server: PostgresServer) -> list[str]:
    user = server_user()
    words = [*(("runuser", "-u", user, "--") if user else ()), program("pg_ctl")]
    return [*words, "-D", str(server.data), "-l", str(server.log), "-w", "start"]


def arguments_of(server: PostgresServer) -> list[str]:
    return ["gate", "-D", str(server.data), "--dsn", server.dsn(), "--", *start_of(server)]


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


@contextmanager
def gate(server: PostgresServer) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*WALKEEPER, *arguments_of(server)],
        env=server_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


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


@pytest.mark.postgres
def test_no_reader_sees_a_row_that_the_failover_loses(
    cluster: Cluster, primary: PostgresServer
) -> None:
    with standby_of(primary, cluster.ports[1]) as standby:
        crashed_with_a_waiting_commit(cluster, primary)
        standby.stop("fast")
        with Reader(primary) as reader, gate(primary):
            wait_until(lambda: reader.refused > 20)
            assert primary.sql("SELECT count(*) FROM t") == 2, "the server itself shows it"
        primary.kill()
        cluster.proposer.kill()
        cluster.safekeepers[0].kill()
        shutil.rmtree(cluster.data_dir(1))
        for safekeeper in cluster.safekeepers[1:]:
            safekeeper.start()
        standby.start()
        fail_over(cluster, standby)
        assert standby.sql("SELECT count(*) FROM t") == 1, "row 2 is lost: nobody was told of it"
        assert reader.seen <= {1}


@pytest.mark.postgres
def test_the_server_opens_when_the_quorum_is_back(
    cluster: Cluster, primary: PostgresServer
) -> None:
    rules = (primary.data / "pg_hba.conf").read_text()
    crashed_with_a_waiting_commit(cluster, primary)
    with Reader(primary) as reader, gate(primary) as process:
        wait_until(lambda: reader.refused > 5)
        process.kill()  # the server stays closed, and the same command goes on
        assert process.wait(LIMIT_S) == -signal.SIGKILL
        with gate(primary) as again:
            assert again.stdout is not None
            assert "runs, and is closed" in again.stdout.readline()
            again.kill()
        assert not reader.seen
        primary.kill()
    assert (primary.data / f"pg_hba.conf{OPEN_SUFFIX}").read_text() == rules
    with Reader(primary) as reader, gate(primary) as process:
        wait_until(lambda: reader.refused > 5)
        assert not reader.seen
        for safekeeper in cluster.safekeepers[1:]:
            safekeeper.start()
        said, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0 and "open: a quorum has all WAL to" in said, said
        wait_until(lambda: reader.seen == {1, 2})
    assert (primary.data / "pg_hba.conf").read_text() == rules
    assert not (primary.data / f"pg_hba.conf{OPEN_SUFFIX}").exists()
    done = walkeeper(*arguments_of(primary))
    assert done.returncode == 1 and "stop it first" in done.stderr


@pytest.mark.postgres
def test_a_server_without_a_quorum_is_opened_by_hand_alone(
    primary: PostgresServer, tmp_path: Path
) -> None:
    primary.stop()
    done = walkeeper(*arguments_of(primary))
    assert done.returncode == 1 and "synchronous_standby_names is empty" in done.stderr, done
    primary.sql("CREATE ROLE reader LOGIN")
    with pytest.raises(psycopg.OperationalError, match=r"no pg_hba\.conf entry"):
        primary.sql("SELECT 1", user="reader")
    done = walkeeper(*arguments_of(primary))  # the server runs, and is closed
    assert done.returncode == 1 and "synchronous_standby_names is empty" in done.stderr, done
    opening = ("gate", "--open", "-D", str(primary.data), "--dsn", primary.dsn())
    assert walkeeper(*opening).stdout == "opened\n"
    wait_until(lambda: _gets_in(primary))
    assert walkeeper(*opening).stdout == "the server was open already\n"
    primary.stop()
    broken = [*arguments_of(primary)[:6], shlex.quote(str(tmp_path / "none"))]
    done = walkeeper(*broken)
    assert done.returncode == 1 and "pg_hba.conf stays closed" in done.stderr, done


def _gets_in(server: PostgresServer) -> bool:
    with suppress(psycopg.Error):
        return bool(server.sql("SELECT true", user="reader"))
    return False
