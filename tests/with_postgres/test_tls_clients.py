"""Stock clients of PostgreSQL and our readers, at safekeepers that take nobody without TLS."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.change_consumer import transactions
from tests.support.cluster import Daemon, lsn_of, walkeeper
from tests.support.postgres_server import (
    PostgresServer,
    make_directory,
    own,
    program,
    run_program,
    server_environment,
)
from tests.support.receivers import receiving, wait_for_last_segments
from tests.support.standbys import wait_replayed
from tests.support.tls_cluster import TlsCluster, speaking_as
from tests.support.waiting import LIMIT_S
from tests.tls_files import TlsFiles
from tests.with_postgres.logical_cluster import SETTINGS, LogicalCluster
from walkeeper_common.access.identity import Role
from walkeeper_common.addresses import parse_address
from walkeeper_common.lsn import Lsn, parse_segment_name
from walkeeper_common.shell.safekeeper_links.committed_wal import Safekeeper
from walkeeper_pager.page_requests import fetch_page
from walkeeper_restore.safekeeper_files import fetch

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def cluster(files: TlsFiles) -> Iterator[TlsCluster]:
    """Small segments, so that a short load crosses many of their ends."""
    with (
        PostgresServer.create(initdb_options=["--wal-segsize=1"]) as server,
        TlsCluster.with_files(server, files) as made,
    ):
        yield made


def of_the_server(file: str) -> str:
    """Return a copy of a TLS file that the server's user may read, and no other one."""
    directory = make_directory("walkeeper_tls_")
    copy = Path(shutil.copy(file, directory))
    own(directory)
    return str(copy)


def psql(dsn: str, command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program("psql"), "-X", "-A", "-t", "-d", dsn, "-c", command],
        env=server_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def test_psql_comes_in_with_a_certificate_and_not_without(
    cluster: TlsCluster, files: TlsFiles, tmp_path: Path
) -> None:
    asked = "IDENTIFY_SYSTEM"
    replication = {"replication": "true", "dbname": "replication"}
    replica = cluster.libpq(1, Role.REPLICA, "standby1", **replication)
    assert psql(replica, asked).stdout.split("|")[1] == "1"
    for wrong, said in (
        ({"sslmode": "disable"}, "with a certificate only"),
        ({"sslcert": "/none", "sslkey": "/none"}, "with a certificate only"),
        ({"host": "localhost"}, 'does not match host name "localhost"'),
    ):
        dsn = cluster.libpq(1, Role.REPLICA, "standby1", **replication, **wrong)
        refused = psql(dsn, asked)
        assert refused.returncode == 2 and said in refused.stderr, refused
    other = TlsFiles(tmp_path).path(Role.REPLICA, "standby1")
    stranger = cluster.libpq(
        1, Role.REPLICA, "standby1", **replication, sslcert=other, sslkey=other
    )
    refused = psql(stranger, asked)
    assert refused.returncode == 2 and "ca" in refused.stderr, refused


def test_a_replica_has_its_own_slots_and_a_monitor_has_none(cluster: TlsCluster) -> None:
    replication = {"replication": "true", "dbname": "replication"}
    replica = cluster.libpq(1, Role.REPLICA, "standby1", **replication)
    create = "CREATE_REPLICATION_SLOT {} PHYSICAL"
    assert psql(replica, create.format("standby1_a")).returncode == 0
    assert "may not run" in psql(replica, create.format("another")).stderr
    assert psql(replica, "DROP_REPLICATION_SLOT standby1_a").returncode == 0
    monitor = cluster.libpq(1, Role.MONITOR, "prometheus", **replication)
    assert "may not run" in psql(monitor, create.format("prometheus")).stderr
    assert "may not run" in psql(monitor, "START_REPLICATION PHYSICAL 0/1000000").stderr


def test_a_library_without_libpqs_direct_start_and_one_with_it(cluster: TlsCluster) -> None:
    """psycopg brings a libpq of its own; from 17 on it can start TLS without an SSLRequest."""
    replication = {"replication": "true", "dbname": "replication"}
    ways = ["postgres", "direct"] if psycopg.pq.version() >= 170000 else ["postgres"]
    for way in ways:
        more = {"sslnegotiation": way} if len(ways) > 1 else {}
        dsn = cluster.libpq(2, Role.REPLICA, "standby1", **replication, **more)
        with psycopg.connect(dsn, autocommit=True) as connection:
            assert connection.execute(b"IDENTIFY_SYSTEM").fetchone()
            assert connection.pgconn.ssl_in_use


def test_pg_receivewal_gets_every_segment(cluster: TlsCluster, files: TlsFiles) -> None:
    file = of_the_server(files.path(Role.REPLICA, "archiver"))
    mine = dict.fromkeys(("sslcert", "sslkey", "sslrootcert"), file)
    with receiving(cluster.libpq(1, Role.REPLICA, "archiver", **mine), "archiver") as directory:
        rows = "SELECT i, repeat('x', 500) FROM generate_series(1, 20000) i"
        cluster.primary.sql(f"CREATE TABLE received AS {rows}")
        wait_for_last_segments(cluster, directory)
    shutil.rmtree(Path(file).parent)


def test_a_standby_streams_over_tls(cluster: TlsCluster, files: TlsFiles) -> None:
    file = of_the_server(files.path(Role.REPLICA, "standby1"))
    mine = dict.fromkeys(("sslcert", "sslkey", "sslrootcert"), file)
    standby = cluster.primary.base_backup()
    try:
        feed = cluster.libpq(2, Role.REPLICA, "standby1", **mine)
        quoted = feed.replace("'", "''")
        standby.configure({"primary_conninfo": quoted, "wal_retrieve_retry_interval": "200ms"})
        (standby.data / "standby.signal").touch()
        standby.start()
        cluster.primary.sql("CREATE TABLE seen AS SELECT 42 AS i")
        wait_replayed(standby, lsn_of(cluster.wait_all_equal()))
        assert standby.sql("SELECT i FROM seen") == 42
    finally:
        standby.delete()
        shutil.rmtree(Path(file).parent)


# Our own commands


def test_restore_fetches_segments_and_histories(
    cluster: TlsCluster, files: TlsFiles, tmp_path: Path
) -> None:
    cluster.wait_all_equal()
    kept = sorted(path.name for path in cluster.wal_dir(1).iterdir() if len(path.name) == 24)
    tls = ("--tls", files.path(Role.RESTORE, "standby1"))
    where = ("--safekeepers", cluster.addresses, "--wait", "0s")
    fetched = tmp_path / "fetched"
    done = walkeeper("restore", *where, *tls, kept[0], str(fetched))
    assert done.returncode == 0, done
    assert fetched.read_bytes() == (cluster.wal_dir(1) / kept[0]).read_bytes()
    absent = walkeeper("restore", *where, *tls, "00000002.history", str(tmp_path / "history"))
    assert absent.returncode == 1 and not (tmp_path / "history").exists(), absent
    refused = walkeeper("restore", *where, kept[0], str(tmp_path / "no"))
    assert refused.returncode > 1 and "with a certificate only" in refused.stderr, refused


def test_a_prefetcher_goes_on_with_the_connection_of_its_parent(
    cluster: TlsCluster, files: TlsFiles, tmp_path: Path
) -> None:
    """`restore` forks: the parent leaves, and its child reads on over the same TLS session."""
    rows = "SELECT i, repeat('x', 500) FROM generate_series(1, 5000) i"
    cluster.primary.sql(f"CREATE TABLE fetched AS {rows}")
    cluster.wait_all_equal()
    name = min(path.name for path in cluster.wal_dir(1).iterdir() if len(path.name) == 24)
    size, path = 1 << 20, str(tmp_path / "segment")
    begin = Lsn(parse_segment_name(name, size)[1])
    with speaking_as(files.path(Role.RESTORE, "standby1")):
        source = Safekeeper(("127.0.0.1", cluster.ports[0]), LIMIT_S)
        source.greet("main")
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                fetch(source, begin, Lsn(begin + size), path, size)
                os._exit(0)
            os._exit(1)
        source.close()
        assert os.waitpid(child, 0)[1] == 0
    assert Path(path).read_bytes() == (cluster.wal_dir(1) / name).read_bytes()


def test_history_reads_a_live_log(cluster: TlsCluster, files: TlsFiles) -> None:
    url = f"walkeeper://{cluster.addresses}/main"
    tls = ("--tls", files.path(Role.PAGER, "history"))
    done = walkeeper("history", "stats", "--path", url, *tls)
    assert done.returncode == 0 and "Transaction" in done.stdout, done
    refused = walkeeper("history", "stats", "--path", url)
    assert refused.returncode == 1 and "with a certificate only" in refused.stderr, refused


def test_a_pager_follows_the_log(cluster: TlsCluster, files: TlsFiles) -> None:
    backup = cluster.primary.base_backup()
    data_dir = str(cluster.directory / "pager")
    where = ("--base", str(backup.data), "--data-dir", data_dir, "--http", "127.0.0.1:0")
    tls = ("--tls", files.path(Role.PAGER, "pager"))
    log = cluster.directory / "pager.log"
    pager = Daemon("pager", ("pager", "--safekeepers", cluster.addresses, *where, *tls), log)
    try:
        pager.start()
        cluster.primary.sql("CREATE TABLE paged AS SELECT 1 AS i")
        lsn = Lsn.parse(cluster.wait_all_equal())
        file = cluster.primary.sql("SELECT pg_relation_filepath('paged')")
        address = parse_address(pager.output().split("ready: pager on ")[1].split()[0])
        fetch_page(address, file, 0, lsn=lsn, timeout_s=LIMIT_S)
    finally:
        pager.kill()
        backup.delete()


class LogicalTlsCluster(TlsCluster, LogicalCluster):
    """Keeps the changes of publication `p`, over TLS alone."""


def test_pg_recvlogical_gets_each_change(files: TlsFiles, tmp_path: Path) -> None:
    with PostgresServer.create(SETTINGS) as server:
        server.sql("CREATE PUBLICATION p FOR ALL TABLES")
        with LogicalTlsCluster.with_files(server, files) as made:
            dsn = made.libpq(1, Role.REPLICA, "shop", dbname="changes")
            base = [program("pg_recvlogical"), "-d", dsn, "-S", "shop"]
            run_program([*base, "--create-slot", "-P", "pgoutput"])
            server.sql("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (7)")
            options = ("-o", "proto_version=1", "-o", "publication_names=p", "--endpos")
            out = tmp_path / "changes"
            run_program([*base, "--start", "-n", "-f", str(out), *options, made.end_lsn()])
            assert [change for each in transactions(out.read_bytes()) for change in each.changes]
            run_program([*base, "--drop-slot"])


def test_settle_and_a_new_proposer_go_on(cluster: TlsCluster) -> None:
    settled = cluster.settle("--yes")
    assert lsn_of(settled["consensus_lsn"])
    assert cluster.proposer.ended() == 1, "it is fenced"
    cluster.proposer.start()
    cluster.primary.sql("CREATE TABLE after AS SELECT 1 AS i")
