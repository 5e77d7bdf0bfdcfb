"""A role's password is in .pgpass alone, and a service file says where the server is: what an
administrator has already serves every command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, Daemon, walkeeper
from tests.support.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres

PASSWORD = r"s3:cr\et"
HBA = """\
local all         all                   trust
local replication all                   trust
host  all         postgres 127.0.0.1/32 trust
host  all         keeper   127.0.0.1/32 scram-sha-256
host  replication keeper   127.0.0.1/32 scram-sha-256
"""


class KeptByService(Cluster):
    """Its DSN names a service and nothing else."""

    DSN = "service=primary"

    def new_proposer(
        self, name: str, *options: str, dsn: str | None = None, cluster: str | None = None
    ) -> Daemon:
        return super().new_proposer(name, *options, dsn=dsn or self.DSN, cluster=cluster)

    def make_log(self) -> None:
        self.command("create", "--dsn", self.DSN)

    def attach(self) -> None:
        done = walkeeper("attach", "--dsn", self.DSN)
        assert done.returncode == 0, f"{done}\n{self.proposer.output()}"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer.create() as made:
        made.sql(f"CREATE ROLE keeper SUPERUSER REPLICATION LOGIN PASSWORD '{PASSWORD}'")
        (made.data / "pg_hba.conf").write_text(HBA)
        made.reload()
        yield made


@pytest.fixture
def passwords(server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """.pgpass of the user who runs the commands."""
    service = f"[primary]\nhost=127.0.0.1\nport={server.port}\nuser=keeper\n"
    (tmp_path / ".pg_service.conf").write_text(service)
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / ".pgpass"
    file.touch(0o600)
    return file


def entry(server: PostgresServer, database: str) -> str:
    """Return a line of the password file, in which the password is escaped."""
    escaped = PASSWORD.replace("\\", "\\\\").replace(":", "\\:")
    return f"127.0.0.1:{server.port}:{database}:keeper:{escaped}\n"


def test_the_stream_takes_the_entry_of_replication_and_sql_that_of_its_database(
    server: PostgresServer, passwords: Path
) -> None:
    passwords.write_text(entry(server, "replication") + entry(server, "postgres"))
    with KeptByService.create(server) as cluster:
        server.sql("CREATE TABLE t ()")
        assert server.sql("SELECT usename FROM pg_stat_replication") == "keeper"
        cluster.proposer.terminate()
        done = walkeeper("detach", "--dsn", cluster.DSN)
        assert done.returncode == 0, done


def test_a_file_of_passwords_that_others_may_read_is_named_as_ignored(
    server: PostgresServer, passwords: Path
) -> None:
    passwords.write_text(entry(server, "postgres"))
    passwords.chmod(0o644)
    done = walkeeper("attach", "--dsn", KeptByService.DSN)
    said = f"; {passwords} is ignored, as others may read it: chmod 600 {passwords}"
    assert done.returncode == 1 and done.stderr.splitlines()[-1].endswith(said), done
    assert "Warning:" not in done.stderr and "connect_utils" not in done.stderr, done


def test_a_password_that_is_not_there_is_missed_in_one_line(
    server: PostgresServer, passwords: Path
) -> None:
    nobody = ("--safekeepers", "127.0.0.1:1,127.0.0.1:2")
    for there, command, said in (
        ("postgres", ("proposer", *nobody), "no password supplied"),
        ("replication", ("attach",), "has a password for database postgres"),
    ):
        passwords.write_text(entry(server, there))
        done = walkeeper(*command, "--dsn", KeptByService.DSN)
        assert done.returncode == 1 and said in done.stderr, done
