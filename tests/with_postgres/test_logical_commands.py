"""Commands for WAL that are pointed at a logical log: each says so, and what to name instead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import walkeeper
from tests.support.postgres_server import PostgresServer, program, run_program
from tests.with_postgres.logical_cluster import LogicalCluster, primary  # noqa: F401

pytestmark = pytest.mark.postgres

IS_LOGICAL = "is logical"


@pytest.fixture
def cluster(primary: PostgresServer) -> Iterator[LogicalCluster]:  # noqa: F811
    with LogicalCluster.create(primary, attach=False) as made:
        yield made


@pytest.fixture
def base(primary: PostgresServer) -> Iterator[PostgresServer]:  # noqa: F811
    backup = primary.base_backup()
    try:
        yield backup
    finally:
        backup.delete()


def test_a_command_that_needs_wal_refuses_a_logical_log_and_names_the_remedy(
    cluster: LogicalCluster,
    primary: PostgresServer,  # noqa: F811
    base: PostgresServer,
    tmp_path: Path,
) -> None:
    for name in ("000000010000000000000001", "0000000100000000000000FF", "00000002.history"):
        done = cluster.try_command("restore", "--wait", "30s", name, str(tmp_path / "x"))
        assert done.returncode == 126, "1 would end the recovery, and open the server"
        assert IS_LOGICAL in done.stderr and "physical log in --cluster" in done.stderr
        assert not (tmp_path / "x").exists()
    done = cluster.try_command("settle", "--replayed-by", primary.dsn())
    assert done.returncode == 1 and IS_LOGICAL in done.stderr
    assert "leave out --replayed-by" in done.stderr
    assert cluster.proposer.is_running, "nobody was fenced for it"
    for path in (f"walkeeper://{cluster.addresses}/changes", str(cluster.wal_dir(1))):
        for options in (("stats",), ("report", "--output", str(tmp_path / "report.html"))):
            done = walkeeper("history", *options, "--path", path)
            assert done.returncode == 1 and "this is a logical log" in done.stderr, done
            assert "walkeeper history changes" in done.stderr
    done = cluster.try_command(
        "pager", "--base", str(base.data), "--data-dir", str(tmp_path / "pager"),
        "--http", "127.0.0.1:0",
    )  # fmt: skip
    assert done.returncode == 1 and "this is a logical log" in done.stderr, done
    primary.sql(
        "CREATE DATABASE ascii ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0",
    )
    done = walkeeper(
        "create", "--safekeepers", cluster.addresses, "--cluster", "other", "--logical",
        "--dsn", primary.dsn(dbname="ascii"),
    )  # fmt: skip
    assert done.returncode == 1 and "database ascii is SQL_ASCII" in done.stderr, done
    physical = cluster.new_proposer("physical")
    physical.start(wait=False)
    assert physical.ended() == 1
    assert "start its proposer with --logical --publication P" in physical.output()
    where = (
        f"host=127.0.0.1 port={cluster.ports[0]} user=postgres "
        "options='-c walkeeper.cluster=changes'"
    )
    command = [program("pg_receivewal"), "-n", "-d", where, "-D", str(tmp_path)]
    received = run_program(command, check=False)
    assert received.returncode == 1 and "pg_receivewal need a physical log" in received.stdout
