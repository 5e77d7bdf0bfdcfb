"""A real primary, a stand-in for a proposer, and the command in this process.

pg_receivewal stands in for a proposer. A psql of its own process makes the commit that hangs.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from tests.support.postgres_server import (
    PostgresServer,
    make_directory,
    program,
    server_environment,
    server_user,
)
from tests.support.waiting import wait_until
from walkeeper_admin.primary import retention_slots
from walkeeper_cli.program import run


class Outcome(NamedTuple):
    """The result of one command."""

    code: int
    out: str
    err: str


Walkeeper = Callable[..., Outcome]


@pytest.fixture
def walkeeper(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Walkeeper:
    monkeypatch.setattr(retention_slots, "MADE_WITHIN_S", 0.0)  # pg_receivewal makes none

    def call(*arguments: str) -> Outcome:
        code = run(list(arguments))
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer.create(initdb_options=["--wal-segsize=1"]) as made:
        made.sql("CREATE TABLE t (i int)")
        yield made


@contextmanager
def proposer(
    server: PostgresServer, name: str = "walkeeper", slot: str = "", user: str = "postgres"
) -> Iterator[subprocess.Popen[bytes]]:
    """Stream, flush and acknowledge, until the block ends. No walsender uses the slot then."""
    directory = make_directory("walkeeper_receivewal_")
    slot = slot or name
    server.sql(
        f"SELECT pg_create_physical_replication_slot('{slot}', true) WHERE NOT EXISTS "
        f"(SELECT FROM pg_replication_slots WHERE slot_name = '{slot}')"
    )
    process = subprocess.Popen(
        [
            program("pg_receivewal"),
            *("-d", server.dsn(application_name=name, dbname="replication", user=user)),
            *("-S", slot, "--synchronous", "-D", str(directory), "--status-interval=1"),
        ],
        user=server_user(),
        cwd="/",
        env=server_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        state = f"SELECT state FROM pg_stat_replication WHERE application_name = '{name}'"
        wait_until(lambda: server.sql(state) == "streaming")
        yield process
    finally:
        process.kill()
        process.wait()
        server.wait_unused(slot)
        shutil.rmtree(directory)


@contextmanager
def hanging_commit(server: PostgresServer) -> Iterator[subprocess.Popen[str]]:
    """Run a commit that waits for synchronous replication; end it with the block at the latest."""
    process = server.psql("-c", "INSERT INTO t VALUES (1)")
    try:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        wait_until(lambda: server.sql(waiting) >= 1)
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def setting(server: PostgresServer) -> str:
    shown: str = server.sql("SHOW synchronous_standby_names")
    return shown


def set_names(server: PostgresServer, value: str) -> None:
    server.sql(f"ALTER SYSTEM SET synchronous_standby_names = $${value}$$")
    server.reload()
    wait_until(lambda: setting(server) == value)


def auto_conf(server: PostgresServer) -> str:
    return (server.data / "postgresql.auto.conf").read_text()
