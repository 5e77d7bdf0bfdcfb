"""R23: each promotion that `settle --replayed-by` prepares takes a timeline number of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.cluster import Cluster, lsn_of
from tests.support.postgres_server import PostgresServer
from tests.support.restore_installation import Installation, installed
from tests.support.standbys import feed_from, rewind, wait_replayed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.postgres

ROW = "SELECT string_agg(who, ' ' ORDER BY who) FROM t"
TIMELINE = "SELECT timeline_id FROM pg_control_checkpoint()"


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    with installed() as made:
        yield made


@dataclass
class Pair:
    """Two standbys that have replayed the whole log; the primary and its proposer are gone."""

    cluster: Cluster
    first: PostgresServer
    second: PostgresServer

    def settle(self, server: PostgresServer) -> int:
        """Prepare a promotion of this server; return the number that it takes."""
        return int(self.cluster.settle("--replayed-by", server.dsn())["reserved_timeline"])


@contextlib.contextmanager
def two_standbys(
    primary: PostgresServer, installation: Installation, *, with_restore: bool
) -> Iterator[Pair]:
    primary.configure({"wal_log_hints": "on"})
    primary.restart()
    with Cluster.create(primary) as cluster, contextlib.ExitStack() as stack:
        primary.sql("CREATE TABLE t (who text)", "CREATE ROLE watcher LOGIN")
        command = f"{installation.script} restore --safekeepers {cluster.addresses} %f %p"
        servers = primary.base_backup(), primary.base_backup()
        for port, server in zip(cluster.ports, servers, strict=False):
            stack.callback(server.delete)
            feed_from(server, port)
            if with_restore:
                server.configure({"restore_command": command})
            (server.data / "standby.signal").touch()
            server.start()
        end = lsn_of(cluster.wait_all_equal())
        cluster.proposer.kill()
        primary.kill()
        for server in servers:
            wait_replayed(server, end)
        yield Pair(cluster, *servers)


@pytest.mark.parametrize(
    ("with_restore", "how"),
    [
        pytest.param(False, "immediate", id="stream-immediate"),
        pytest.param(False, "fast", id="stream-fast", marks=pytest.mark.soak),
        pytest.param(True, "immediate", id="restore-immediate", marks=pytest.mark.soak),
        pytest.param(True, "fast", id="restore-fast", marks=pytest.mark.soak),
    ],
)
def test_two_promotions_take_two_numbers(
    primary: PostgresServer, installation: Installation, with_restore: bool, how: str
) -> None:
    """The log follows the second, and the first comes back by pg_rewind, which sees the numbers."""
    with two_standbys(primary, installation, with_restore=with_restore) as pair:
        cluster, first, second = pair.cluster, pair.first, pair.second
        assert [pair.settle(first), pair.settle(first), pair.settle(second)] == [2, 2, 3]
        first.promote()
        with first.connect() as connection:
            connection.execute("SET synchronous_commit = local")
            connection.execute("INSERT INTO t VALUES ('alone')")
        second.promote()
        leader = cluster.new_proposer("leader", dsn=second.dsn())
        leader.start()
        second.sql("INSERT INTO t VALUES ('acknowledged')", "CHECKPOINT")
        assert second.sql(TIMELINE) == 3
        assert first.sql("CHECKPOINT", TIMELINE) == 2
        refused = cluster.new_proposer("refused", dsn=first.dsn())
        refused.start(wait=False)
        assert refused.ended() == 1 and "behind a promotion" in refused.output()
        first.stop(how)
        done = cluster.try_command("standby-check", "-D", str(first.data))
        assert done.returncode == 1 and "pg_rewind --target-pgdata" in done.stderr, done
        rewind(first, second, cluster.ports[2])
        first.start()
        end = second.sql("SELECT pg_current_wal_flush_lsn()::text")
        wait_replayed(first, lsn_of(end))
        assert first.sql(ROW) == "acknowledged"


@pytest.mark.soak
def test_a_server_that_was_not_promoted_follows_the_one_that_was(
    primary: PostgresServer, installation: Installation
) -> None:
    """Its placeholder is removed at its next start, which would fail else."""
    with two_standbys(primary, installation, with_restore=True) as pair:
        cluster, first, second = pair.cluster, pair.first, pair.second
        assert [pair.settle(first), pair.settle(second)] == [2, 3]
        placeholder = second.data / "pg_wal" / "00000002.history"
        assert placeholder.exists()
        second.restart()
        assert not placeholder.exists()
        assert "removed the placeholder 00000002.history" in second.log_text()
        assert pair.settle(second) == 3
        first.promote()
        leader = cluster.new_proposer("leader", dsn=first.dsn())
        leader.start()
        first.sql("INSERT INTO t VALUES ('acknowledged')")
        wait_until(lambda: second.sql(ROW) == "acknowledged")


def test_a_promotion_that_would_take_a_reserved_number_is_refused(
    primary: PostgresServer, installation: Installation
) -> None:
    with two_standbys(primary, installation, with_restore=False) as pair:
        cluster, second = pair.cluster, pair.second
        assert pair.settle(pair.first) == 2
        options = ("--replayed-by", second.dsn(user="watcher"))
        done = cluster.try_command("settle", *options)
        assert done.returncode == 1 and "GRANT EXECUTE" in done.stderr, done
        cluster.safekeepers[2].kill()
        assert pair.settle(second) == 3
        cluster.safekeepers[1].kill()
        cluster.safekeepers[2].start()
        cluster.safekeepers[1].start()
        assert pair.settle(pair.first) == 2, "also after restarts"
