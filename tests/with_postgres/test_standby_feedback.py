"""Reports of standbys behind safekeepers reach the primary: remote_apply, hot_standby_feedback."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import pytest

from tests.support.cluster import Cluster
from tests.support.postgres_server import PostgresServer, own
from tests.support.waiting import LIMIT_S, wait_until
from walkeeper_proposer.postgres.primary import STATUS_S

pytestmark = pytest.mark.postgres

WRITE = "SET synchronous_commit = {level}; INSERT INTO t VALUES ({n})"
ENOUGH_S = 2.0  # longer than the proposer's periodic status
SLOT_XMIN = "SELECT xmin::text FROM pg_replication_slots WHERE slot_name = 'walkeeper'"


@contextmanager
def standby(cluster: Cluster, number: int, **settings: str) -> Iterator[PostgresServer]:
    """Yield a standby that streams from safekeeper `number`."""
    server = cluster.primary.base_backup()
    upstream = f"host=127.0.0.1 port={cluster.ports[number - 1]} application_name=standby{number}"
    quick = {"wal_retrieve_retry_interval": "200ms", "synchronous_standby_names": ""}
    server.configure({"primary_conninfo": upstream, **quick, **settings})
    (server.data / "standby.signal").touch()
    own(server.data)
    try:
        server.start()
        wait_until(lambda: names(cluster, number) == [f"standby{number}"])
        yield server
    finally:
        server.delete()


def wait_known(cluster: Cluster, server: PostgresServer) -> None:
    """Wait until the proposer knows the standby.

    Its xmin comes to the primary's slot after its first report of what it has replayed.
    """
    server.configure({"hot_standby_feedback": "on", "wal_receiver_status_interval": "1s"})
    server.sql("SELECT pg_reload_conf()")
    wait_until(lambda: cluster.primary.sql(SLOT_XMIN) is not None)
    server.configure({"hot_standby_feedback": "off"})
    server.sql("SELECT pg_reload_conf()")
    wait_until(lambda: cluster.primary.sql(SLOT_XMIN) is None)


def names(cluster: Cluster, number: int) -> list[str]:
    line = next(s for s in cluster.status()["safekeepers"] if s["id"] == number)
    return [s["application_name"] for s in line["standbys"] if s["state"] == "streaming"]


@pytest.fixture
def strict(primary: PostgresServer) -> Iterator[Cluster]:
    """A cluster whose proposer has --apply standbys."""
    primary.sql("CREATE TABLE t (n int)")
    cluster = Cluster(primary)
    try:
        cluster.start_safekeepers()
        cluster.make_log()
        cluster.make_log()  # it may be repeated while nobody was elected: its slot is there then
        cluster.proposer = cluster.new_proposer("strict", "--apply", "standbys")
        cluster.proposer.start()
        cluster.attach()
        yield cluster
    finally:
        cluster.close()


def commit(cluster: Cluster, n: int, level: str = "remote_apply") -> subprocess.Popen[str]:
    return cluster.primary.psql("-c", WRITE.format(level=level, n=n))


def returns(process: subprocess.Popen[str]) -> bool:
    out, _ = process.communicate(timeout=LIMIT_S)
    return process.returncode == 0 and "canceling" not in out


def hangs(process: subprocess.Popen[str]) -> bool:
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(ENOUGH_S)
    return True


def has(server: PostgresServer, n: int) -> bool:
    return bool(server.sql(f"SELECT count(*) FROM t WHERE n = {n}"))


def test_remote_apply_waits_for_every_standby_that_is_there(strict: Cluster) -> None:
    with standby(strict, 1) as slow, standby(strict, 2) as quick:
        wait_known(strict, slow)
        wait_known(strict, quick)
        for n in range(20):  # not by luck: no time passes between the commit and the look
            assert returns(commit(strict, n))
            assert has(slow, n) and has(quick, n)
        slow.sql("SELECT pg_wal_replay_pause()")
        waiting = commit(strict, 100)
        assert hangs(waiting)
        wait_until(lambda: has(quick, 100))
        assert not has(slow, 100)
        assert returns(commit(strict, 101, "on"))
        slow.sql("SELECT pg_wal_replay_resume()")
        assert returns(waiting) and has(slow, 100)
        # A standby that leaves holds up no commit, though no WAL comes that would say so.
        slow.sql("SELECT pg_wal_replay_pause()")
        waiting = commit(strict, 102)
        assert hangs(waiting)
        slow.kill()
        assert returns(waiting) and has(quick, 102)
        # So does one whose safekeeper leaves.
        quick.sql("SELECT pg_wal_replay_pause()")
        slow.start()
        wait_until(lambda: names(strict, 1))
        waiting = commit(strict, 103)
        assert hangs(waiting)
        strict.safekeepers[1].kill()
        assert returns(waiting) and has(slow, 103)
        # With none at all there is nobody who could have applied it.
        slow.kill()
        waiting = commit(strict, 104)
        assert hangs(waiting)
        slow.start()
        assert returns(waiting) and has(slow, 104)


def test_by_default_remote_apply_waits_for_the_quorum_alone(
    cluster: Cluster, primary: PostgresServer
) -> None:
    primary.sql("CREATE TABLE t (n int)")
    with standby(cluster, 1) as slow:
        slow.sql("SELECT pg_wal_replay_pause()")
        assert returns(commit(cluster, 1))
        assert not has(slow, 1)


def test_rows_that_queries_of_a_standby_look_at_are_not_vacuumed(
    cluster: Cluster, primary: PostgresServer
) -> None:
    primary.sql("CREATE TABLE t (n int)", "INSERT INTO t SELECT generate_series(1, 100)")
    feedback = {"hot_standby_feedback": "on", "wal_receiver_status_interval": "1s"}
    with standby(cluster, 3, **feedback) as server:
        wait_until(lambda: server.sql("SELECT to_regclass('t')"))
        with server.connect() as query:
            query.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            query.execute("SELECT count(*) FROM t")
            own_xmin = query.execute("SELECT txid_snapshot_xmin(txid_current_snapshot())")
            (xmin,) = own_xmin.fetchone() or (0,)
            wait_until(lambda: int(primary.sql(SLOT_XMIN) or 0) == xmin % 2**32)
            for n in range(5):
                primary.sql(f"INSERT INTO t VALUES ({1000 + n})")
            primary.sql("DELETE FROM t", "VACUUM t")
            wait_until(lambda: server.sql("SELECT count(*) FROM t") == 0)
            assert query.execute("SELECT count(*) FROM t").fetchone() == (100,)
            assert int(primary.sql(SLOT_XMIN)) == xmin % 2**32
        wait_until(lambda: int(primary.sql(SLOT_XMIN)) > xmin % 2**32)
    wait_until(lambda: primary.sql(SLOT_XMIN) is None)


def test_a_commit_with_remote_apply_returns_soon(strict: Cluster) -> None:
    """No poll is in between: a hundred commits run one after the other."""
    with standby(strict, 1), strict.primary.connect() as writer:
        writer.execute("SET synchronous_commit = remote_apply")
        took_s = []
        for n in range(100):
            began_s = time.monotonic()
            writer.execute("INSERT INTO t VALUES (%s)", (n,))
            took_s.append(time.monotonic() - began_s)
        assert median(took_s) < STATUS_S / 2, "the machine may stand still now and then"
