"""Stock clients log in with a password at a real cluster that speaks TLS alone."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.change_consumer import transactions
from tests.support.cluster import Daemon, lsn_of
from tests.support.postgres_server import (
    PostgresServer,
    make_directory,
    own,
    program,
    run_program,
)
from tests.support.receivers import receiving, wait_for_last_segments
from tests.support.standbys import wait_replayed
from tests.support.tls_cluster import TlsCluster
from tests.support.waiting import wait_until
from tests.tls_files import TlsFiles
from tests.with_postgres.logical_cluster import SETTINGS, LogicalCluster
from tests.with_postgres.test_tls_clients import psql
from walkeeper_cli.certs.authority import CA_CERTIFICATE
from walkeeper_cli.users.writing import add_user, verifier_of
from walkeeper_common.access.identity import Role
from walkeeper_common.access.users import User

pytestmark = pytest.mark.postgres

NAME, PASSWORD = "standby1", "it's a: secret \\ ñ"
REPLICATION = {"replication": "true", "dbname": "replication"}


class ClientFiles(NamedTuple):
    ca: str
    pgpass: str


class PasswordCluster(TlsCluster):
    """Speaks TLS alone, and takes the users of one file."""

    users: str

    def new_safekeeper(self, number: int, port: int, data_dir: Path | None = None) -> Daemon:
        made = super().new_safekeeper(number, port, data_dir)
        made.arguments = (*made.arguments, "--users", self.users)
        return made

    def by_password(self, number: int, ca: str, **parameters: str) -> str:
        """Return a connection string with a CA, without a certificate and without a password."""
        none = {"sslcert": "/none", "sslkey": "/none", "channel_binding": "require"}
        return self.libpq(number, Role.REPLICA, NAME, **none, sslrootcert=ca, **parameters)


class LogicalPasswordCluster(PasswordCluster, LogicalCluster):
    """Keeps the changes of publication `p`."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """Return the TLS files; the clusters' users file has one user."""
    directory = tmp_path_factory.mktemp("tls")
    path = PasswordCluster.users = str(directory / "users")
    user = User(NAME, verifier_of(NAME, PASSWORD), frozenset((Role.REPLICA,)))
    add_user(path, user, replaces=False)
    return TlsFiles(directory)


@pytest.fixture(scope="module")
def client_files(files: TlsFiles) -> Iterator[ClientFiles]:
    """Yield the CA and a .pgpass that the server's user can read."""
    authority = files.path(Role.SAFEKEEPER, "1")
    directory = make_directory("walkeeper_users_")
    ca, pgpass = directory / "ca.pem", directory / "pgpass"
    ca.write_text(Path(authority).parent.joinpath("ca", CA_CERTIFICATE).read_text())
    escaped = PASSWORD.replace("\\", "\\\\").replace(":", "\\:")
    pgpass.touch(mode=0o600)
    pgpass.write_text(f"127.0.0.1:*:*:{NAME}:{escaped}\n")
    own(directory)
    own(ca)
    own(pgpass)
    yield ClientFiles(str(ca), str(pgpass))
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def cluster(files: TlsFiles) -> Iterator[PasswordCluster]:
    """Small segments, so that a short load crosses many of their ends."""
    with (
        PostgresServer.create(initdb_options=["--wal-segsize=1"]) as server,
        PasswordCluster.with_files(server, files) as made,
    ):
        yield made


def test_psql_logs_in_and_a_wrong_password_gets_the_answer_of_postgresql(
    cluster: PasswordCluster, client_files: ClientFiles
) -> None:
    dsn = cluster.by_password(1, client_files.ca, **REPLICATION)
    asked = psql(f"{dsn} passfile={client_files.pgpass}", "IDENTIFY_SYSTEM")
    assert asked.stdout.split("|")[1] == "1", asked
    refused = psql(f"{dsn} password=wrong", "IDENTIFY_SYSTEM")
    text = f'FATAL:  password authentication failed for user "{NAME}"'
    assert refused.returncode == 2 and text in refused.stderr, refused
    in_plain = psql(f"{dsn} password=x sslmode=disable channel_binding=disable", "IDENTIFY_SYSTEM")
    assert "passwords over TLS only" in in_plain.stderr, in_plain
    wait_until(lambda: "how=scram-sha-256" in cluster.safekeepers[0].output())
    assert PASSWORD not in cluster.safekeepers[0].output()


def test_pg_receivewal_takes_the_password_of_pgpass(
    cluster: PasswordCluster, client_files: ClientFiles
) -> None:
    dsn = cluster.by_password(1, client_files.ca, passfile=client_files.pgpass)
    with receiving(dsn, NAME) as directory:
        rows = "SELECT i, repeat('x', 500) FROM generate_series(1, 20000) i"
        cluster.primary.sql(f"CREATE TABLE received AS {rows}")
        wait_for_last_segments(cluster, directory)


@pytest.mark.parametrize("where", ["primary_conninfo", "pgpass"])
def test_a_standby_streams_with_a_password(
    cluster: PasswordCluster, client_files: ClientFiles, where: str
) -> None:
    secret = {"passfile": client_files.pgpass} if where == "pgpass" else {"password": PASSWORD}
    feed = cluster.by_password(2, client_files.ca, **secret)
    standby = cluster.primary.base_backup()
    try:
        escaped = feed.replace("\\", "\\\\")
        standby.configure({"primary_conninfo": escaped, "wal_retrieve_retry_interval": "200ms"})
        (standby.data / "standby.signal").touch()
        standby.start()
        cluster.primary.sql(f"CREATE TABLE seen_{where} AS SELECT 42 AS i")
        wait_replayed(standby, lsn_of(cluster.wait_all_equal()))
        assert standby.sql(f"SELECT i FROM seen_{where}") == 42
    finally:
        standby.delete()


def test_a_new_user_comes_in_without_a_restart(
    cluster: PasswordCluster, client_files: ClientFiles
) -> None:
    safekeeper = cluster.safekeepers[0]
    monitor = User("watcher", verifier_of("watcher", PASSWORD), frozenset((Role.MONITOR,)))
    add_user(cluster.users, monitor, replaces=False)
    safekeeper.signal(signal.SIGHUP)
    wait_until(lambda: "loaded the users file" in safekeeper.output())
    more = {**REPLICATION, "user": "watcher", "password": PASSWORD}
    dsn = cluster.by_password(1, client_files.ca, **more)
    assert psql(dsn, "IDENTIFY_SYSTEM").returncode == 0
    assert "may not run" in psql(dsn, "START_REPLICATION PHYSICAL 0/1000000").stderr


def test_pg_recvlogical_gets_each_change(
    files: TlsFiles, client_files: ClientFiles, tmp_path: Path
) -> None:
    with PostgresServer.create(SETTINGS) as server:
        server.sql("CREATE PUBLICATION p FOR ALL TABLES")
        with LogicalPasswordCluster.with_files(server, files) as made:
            dsn = made.by_password(1, client_files.ca, dbname="changes", password=PASSWORD)
            base = [program("pg_recvlogical"), "-d", dsn, "-S", NAME]
            run_program([*base, "--create-slot", "-P", "pgoutput"])
            server.sql("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (7)")
            options = ("-o", "proto_version=1", "-o", "publication_names=p", "--endpos")
            out = tmp_path / "changes"
            run_program([*base, "--start", "-n", "-f", str(out), *options, made.end_lsn()])
            assert [change for each in transactions(out.read_bytes()) for change in each.changes]
