"""PostgreSQL 13, 14, 16, 17 and 18: the kill matrix of version 15, short.

Every part is killed under load, and a standby is fed by a safekeeper alone. When the primary is
gone, that standby has every acknowledged row and takes over. So does one that only restores. And
the role that docker/ makes for all of this may do what it has to.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

import psycopg
import pytest

from tests.support.cluster import Cluster, lsn_of
from tests.support.installations import NPM_PACKAGES, WHEELS, binaries_or_skip, versions
from tests.support.journal import Journal
from tests.support.postgres_server import (
    PostgresServer,
    installation,
    make_directory,
    own,
    run_as_server_user,
)
from tests.support.restore_installation import installed
from tests.support.waiting import LIMIT_S, wait_until
from tests.with_postgres.compose_services import DOCKER

pytestmark = pytest.mark.postgres
REPLAYED = "SELECT pg_last_wal_replay_lsn()::text"
ALL_SENT = "SELECT sent_lsn >= pg_current_wal_flush_lsn() FROM pg_stat_replication"
LOCALLY = "SET synchronous_commit = local"
PASSWORD = "it's one"


@pytest.fixture(params=versions([*WHEELS, *NPM_PACKAGES]), ids=lambda major: f"PostgreSQL {major}")
def major(request: pytest.FixtureRequest) -> Iterator[int]:
    programs = binaries_or_skip(request.param)
    with installation(programs):
        yield request.param


@contextlib.contextmanager
def standby_behind(primary: PostgresServer) -> Iterator[PostgresServer]:
    """Yield a copy of a stopped server, because packages of 13 and 14 have no pg_basebackup."""
    directory = make_directory("walkeeper_standby_")
    run_as_server_user(["cp", "-a", str(primary.data), str(directory / "data")])
    standby = PostgresServer(directory)
    (standby.data / "standby.signal").touch()
    own(standby.data)
    try:
        yield standby
    finally:
        standby.delete()


def test_no_acknowledged_row_is_lost_on_this_version(major: int) -> None:
    with PostgresServer.create(initdb_options=["--wal-segsize=1"]) as primary:
        assert primary.sql("SHOW server_version_num").startswith(str(major))
        primary.stop()
        with standby_behind(primary) as standby, standby_behind(primary) as restored:
            primary.start()
            with Cluster.create(primary) as cluster:
                _feed_from(standby, cluster, 2)
                standby.start()
                with Journal(primary) as journal:
                    _kill_each_part(cluster, journal)
                    cluster.proposer.kill()
                    primary.kill()
                end = lsn_of(cluster.settle()["consensus_lsn"])
                _feed_from_one_of_the_quorum(standby, cluster, end)
                wait_until(lambda: lsn_of(standby.sql(REPLAYED)) >= end)
                standby.promote()
                assert len(journal.acknowledged) > 400
                assert not journal.lost_in(standby)
                standby.kill()
                _restore_alone(restored, cluster)
                assert not journal.lost_in(restored)


@pytest.mark.parametrize("major", [18], indirect=True)
def test_a_slot_that_is_lost_while_there_is_no_quorum_is_made_again(major: int) -> None:
    """Versions before 18 stream with a lost slot; its WAL is in the proposer's memory.

    A commit in the segments that the primary keeps shows that it wrote this log. The checkpoint
    ends the proposer's connection, perhaps before it has sent its own record."""
    limits = {"max_slot_wal_keep_size": "1MB", "wal_keep_size": "3MB"}
    with (
        PostgresServer.create(limits, initdb_options=["--wal-segsize=1"]) as primary,
        Cluster.create(primary) as cluster,
    ):
        for safekeeper in cluster.safekeepers[:2]:
            safekeeper.kill()
        for _ in range(8):
            primary.sql(LOCALLY, "SELECT pg_logical_emit_message(true, '', repeat('x', 900000))")
            primary.sql("SELECT pg_switch_wal()")
        end = primary.sql("SELECT pg_current_wal_flush_lsn()::text")
        wait_until(lambda: primary.sql(ALL_SENT))

        def is_dropped() -> bool:
            primary.sql("CHECKPOINT")
            return "dropped the replication slot" in cluster.proposer.output()

        wait_until(is_dropped)
        for safekeeper in cluster.safekeepers[:2]:
            safekeeper.start()
        wait_until(lambda: all(lsn_of(at) >= lsn_of(end) for at in cluster.flush_lsns().values()))
        assert cluster.proposer.is_running
        assert primary.sql("SELECT wal_status FROM pg_replication_slots") != "lost"


def test_the_role_of_the_compose_file_may_stream_and_attach(major: int) -> None:
    with PostgresServer.create() as server:
        place = {"PGHOST": server.directory, "PGPORT": server.port, "PGDATA": server.data}
        # As the image of this version has left it: an older one's passwords are md5 by themselves.
        method = server.sql("SHOW password_encryption")
        hba = server.data / "pg_hba.conf"
        hba.write_text(f"local all all trust\nhost all all all {method}\n")
        done = subprocess.run(
            ["bash", str(DOCKER / "primary.sh")],
            env={
                "PATH": os.environ["PATH"],  # a psql of any version
                "WALKEEPER_PASSWORD": PASSWORD,
                **{name: str(value) for name, value in place.items()},
            },
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, done
        server.reload()
        role = {"user": "walkeeper", "password": PASSWORD}
        with psycopg.connect(server.dsn(**role, replication="true"), autocommit=True) as stream:
            stream.execute("IDENTIFY_SYSTEM")
        server.sql(
            "ALTER SYSTEM SET synchronous_standby_names = ''", "SELECT pg_reload_conf()", **role
        )


def _restore_alone(standby: PostgresServer, cluster: Cluster) -> None:
    """Recover it by restore alone: it was never started, and gets no stream."""
    with installed() as walkeeper:
        command = f"{walkeeper.script} restore --safekeepers {cluster.addresses} %f %p"
        standby.configure({"restore_command": command})
        standby.start()
        standby.promote()


def _feed_from(standby: PostgresServer, cluster: Cluster, number: int) -> None:
    feed = f"host=127.0.0.1 port={cluster.ports[number - 1]} user=replica"
    standby.configure({"primary_conninfo": feed})


def _feed_from_one_of_the_quorum(standby: PostgresServer, cluster: Cluster, end: int) -> None:
    """Feed from a safekeeper with all WAL: `settle` waits for two, not for the third."""
    complete = [number for number, lsn in cluster.flush_lsns().items() if lsn_of(lsn) >= end]
    assert len(complete) >= 2
    _feed_from(standby, cluster, complete[0])
    standby.sql("SELECT pg_reload_conf()")


def _kill_each_part(cluster: Cluster, journal: Journal) -> None:
    """Kill each part, and start it again under load."""
    journal.wait_for_more(100)
    cluster.safekeepers[0].kill()
    journal.wait_for_more(100)
    cluster.safekeepers[0].start()
    cluster.primary.kill()
    cluster.primary.start()
    journal.wait_for_more(100)
    cluster.proposer.kill()
    cluster.proposer.start()
    journal.wait_for_more(100)
