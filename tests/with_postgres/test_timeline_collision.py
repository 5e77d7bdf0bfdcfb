"""R23: two standbys take one timeline number, and the one that the log did not follow comes back.

Stock PostgreSQL starts it as a standby without an error: an acknowledged row is gone and one that
nobody acknowledged is there. Each play here ends with a refusal, or without the other branch.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from tests.support.cluster import Cluster, lsn_of
from tests.support.postgres_server import PostgresServer, program, run_as_server_user
from tests.support.restore_installation import Installation, installed
from tests.support.standbys import (
    fail_over,
    feed_from,
    rewind,
    standby_of,
    wait_replayed,
)

pytestmark = pytest.mark.postgres

ROWS = "SELECT coalesce(string_agg(who, ' ' ORDER BY who), '') FROM t WHERE id = 201"
BRANCH = "another branch with the same number 2"


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    with installed() as made:
        yield made


@dataclass
class Play:
    """`acknowledged` leads; `alone` was promoted to timeline 2 at the same LSN."""

    cluster: Cluster
    acknowledged: PostgresServer
    alone: PostgresServer
    restore: str

    @property
    def both(self) -> tuple[PostgresServer, PostgresServer]:
        return self.alone, self.acknowledged

    def check(self, server: PostgresServer, *options: str) -> subprocess.CompletedProcess[str]:
        return self.cluster.try_command("standby-check", "-D", str(server.data), *options)

    def comes_back(self, server: PostgresServer, *, with_restore: bool) -> None:
        """Make it a standby of a safekeeper, not started."""
        feed_from(server, self.cluster.ports[1])
        if with_restore:
            server.configure({"restore_command": self.restore})
        (server.data / "standby.signal").touch()


@contextlib.contextmanager
def two_promotions(
    primary: PostgresServer, installation: Installation, *, length: str = "shorter"
) -> Iterator[Play]:
    """Yield both servers, which run. `length` of the branch that the log does not follow."""
    settings = {"synchronous_standby_names": "FIRST 1 (walkeeper)", "wal_log_hints": "on"}
    with Cluster.create(primary, attach=False) as cluster, contextlib.ExitStack() as stack:
        primary.configure(settings | {"wal_keep_size": "64MB"})
        primary.reload()
        primary.sql(
            "CREATE ROLE watcher LOGIN",
            "CREATE TABLE t (id int, who text)",
            "CREATE TABLE filler (t text)",
        )
        alone, acknowledged = primary.base_backup(), primary.base_backup()
        for server in (alone, acknowledged):
            stack.callback(server.delete)
            feed_from(server, cluster.ports[0])
            (server.data / "standby.signal").touch()
            server.start()
        cluster.proposer.kill()
        primary.kill()
        end = lsn_of(cluster.settle()["consensus_lsn"])
        for server in (alone, acknowledged):
            wait_replayed(server, end)
        alone.promote()
        with alone.connect() as connection:
            connection.execute("SET synchronous_commit = local")
            write(connection, "alone_______", 5000 if length == "longer" else 0)
        acknowledged.promote()
        cluster.new_proposer("leads", dsn=acknowledged.dsn()).start()
        cluster.primary = acknowledged
        with acknowledged.connect() as connection:
            write(connection, "acknowledged", 50 if length == "shorter" else 0)
        command = f"{installation.script} restore --safekeepers {cluster.addresses} %f %p"
        yield Play(cluster, acknowledged, alone, command)


def write(connection: psycopg.Connection[Any], who: str, rows: int) -> None:
    """Write the same for both but for the word: WAL of one length, if `rows` is."""
    connection.execute("CHECKPOINT")
    connection.execute(f"INSERT INTO t VALUES (201, '{who}')".encode())
    if rows:
        made = f"SELECT repeat('a', 500) FROM generate_series(1, {rows})"
        connection.execute(f"INSERT INTO filler {made}".encode())


def refuses_to_start(server: PostgresServer) -> str:
    """Return the server's log; the server must be down."""
    server.pg_ctl("-l", str(server.log), "-w", "-t", "60", "start", check=False)
    text = server.log_text()
    if server.is_running:
        shown = server.sql(ROWS)
        raise AssertionError(f"it is a standby and shows {shown!r}: {text[-3000:]}")
    return text


def end_of(server: PostgresServer) -> str:
    """Return the end of its last record; the next one's beginning may be behind a page header."""
    return str(server.sql("SELECT pg_current_wal_flush_lsn()::text"))


@pytest.mark.parametrize(
    ("length", "how"),
    [
        pytest.param("shorter", "immediate", marks=pytest.mark.soak),
        pytest.param("equal", "fast", marks=pytest.mark.soak),
        ("longer", "immediate"),
    ],
)
def test_the_other_branch_does_not_come_back(
    primary: PostgresServer, installation: Installation, length: str, how: str
) -> None:
    with two_promotions(primary, installation, length=length) as play:
        alone, acknowledged = play.alone, play.acknowledged
        files = [(s.data / "pg_wal" / "00000002.history").read_bytes() for s in play.both]
        assert files[0] == files[1], "PostgreSQL has nothing else to tell them by"
        if length == "equal":
            assert end_of(alone) == end_of(acknowledged)
        done = play.check(alone)
        assert done.returncode == 1 and BRANCH in done.stderr, f"running: {done}"
        alone.stop(how)
        done = play.check(alone)
        assert done.returncode == 1 and BRANCH in done.stderr, f"stopped: {done}"
        assert "Do not use pg_rewind" in done.stderr
        play.comes_back(alone, with_restore=True)
        said = refuses_to_start(alone)
        assert BRANCH in said and "pg_basebackup" in said, said[-3000:]
        done = play.check(acknowledged, "--json")
        assert done.returncode == 0, done
        document = json.loads(done.stdout)
        assert (document["verdict"], document["timeline"]) == ("same", 2)
        assert_the_remedy_helps(play)


def assert_the_remedy_helps(play: Play) -> None:
    """Check a base backup of the primary once, replay it, and find the acknowledged row."""
    rebuilt = play.acknowledged.base_backup()
    try:
        assert play.check(rebuilt).returncode == 0
        play.comes_back(rebuilt, with_restore=True)
        rebuilt.start()
        wait_replayed(rebuilt, lsn_of(end_of(play.acknowledged)))
        assert rebuilt.sql(ROWS) == "acknowledged"
        proof = rebuilt.data / "pg_wal" / ".walkeeper_ancestry"
        first = proof.stat().st_mtime_ns
        assert play.check(rebuilt).returncode == 0, "while it runs"
        rebuilt.stop()
        rebuilt.start()
        assert proof.stat().st_mtime_ns > first, "once more at the next start"
    finally:
        rebuilt.delete()


@pytest.mark.soak
def test_pg_rewind_alone_finds_nothing_to_do(
    primary: PostgresServer, installation: Installation
) -> None:
    """Stock PostgreSQL accepts the server that the check refuses."""
    with two_promotions(primary, installation) as play:
        play.alone.stop()
        play.acknowledged.sql("CHECKPOINT")
        arguments = ["--target-pgdata", str(play.alone.data)]
        arguments += ["--source-server", play.acknowledged.dsn()]
        done = run_as_server_user([program("pg_rewind"), *arguments])
        assert "no rewind required" in done.stdout, done
        play.comes_back(play.alone, with_restore=False)
        play.alone.start()
        assert play.alone.sql(ROWS) == "alone_______"
        done = play.check(play.alone)
        assert done.returncode == 1 and BRANCH in done.stderr, f"running as a standby: {done}"
        assert_nobody_vouches_for_it(play)


def assert_nobody_vouches_for_it(play: Play) -> None:
    """Run the other branch as a standby; a failover to it ends before a promotion."""
    settle = ("settle", "--seal", "--timeout", "30s", "--replayed-by")
    rebuilt = play.acknowledged.base_backup()
    try:
        play.comes_back(rebuilt, with_restore=False)
        rebuilt.start()
        play.cluster.proposers[-1].kill()
        play.acknowledged.kill()
        done = play.cluster.try_command(*settle, play.alone.dsn())
        assert done.returncode == 1 and BRANCH in done.stderr, done
        done = play.cluster.try_command(*settle, rebuilt.dsn())
        assert done.returncode == 0 and "its WAL is the log's" in done.stdout, done
        done = play.cluster.try_command(*settle, rebuilt.dsn(user="watcher"))
        assert done.returncode == 1 and "GRANT EXECUTE" in done.stderr, done
    finally:
        rebuilt.delete()


def test_a_deposed_primary_learns_that_pg_rewind_is_right(
    primary: PostgresServer, installation: Installation
) -> None:
    """Its number is the old one, so pg_rewind finds the place; rewound, it passes the check."""
    primary.configure({"wal_log_hints": "on", "wal_keep_size": "64MB"})
    primary.restart()
    with Cluster.create(primary) as cluster, standby_of(primary, cluster.ports[0]) as standby:
        primary.sql("CREATE TABLE t (id int, who text)")
        cluster.proposer.kill()
        with primary.connect() as connection:
            connection.execute("SET synchronous_commit = local")
            connection.execute("INSERT INTO t VALUES (201, 'of the deposed')")
        primary.stop("immediate")
        fail_over(cluster, standby)
        standby.sql("INSERT INTO t VALUES (201, 'acknowledged')")
        command = f"{installation.script} restore --safekeepers {cluster.addresses} %f %p"
        play = Play(cluster, standby, primary, command)
        done = play.check(primary)
        assert done.returncode == 1 and "pg_rewind --target-pgdata" in done.stderr, done
        rewind(primary, standby, cluster.ports[1])
        done = play.check(primary)
        assert done.returncode == 0, done
        play.comes_back(primary, with_restore=True)
        primary.start()
        wait_replayed(primary, lsn_of(end_of(standby)))
        assert primary.sql(ROWS) == "acknowledged"


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="with WAL", marks=pytest.mark.soak),
        pytest.param(("-X", "none"), id="no WAL", marks=pytest.mark.soak),
    ],
)
def test_a_base_backup_is_of_its_servers_branch(
    primary: PostgresServer, installation: Installation, options: tuple[str, ...]
) -> None:
    with two_promotions(primary, installation) as play, contextlib.ExitStack() as stack:
        acknowledged = play.acknowledged
        other = play.alone.base_backup(options=options)
        stack.callback(other.delete)
        done = play.check(other, "--wait", "0s")
        assert done.returncode == 3, f"it begins behind the log's end: {done}"
        for _ in range(2):
            acknowledged.sql("SELECT pg_switch_wal()", "INSERT INTO t VALUES (202, 'later')")
        play.comes_back(other, with_restore=True)
        assert BRANCH in refuses_to_start(other)
        done = play.check(other)
        assert done.returncode == 1 and BRANCH in done.stderr, done
        same = acknowledged.base_backup(options=options)
        stack.callback(same.delete)
        assert play.check(same).returncode == 0
        play.comes_back(same, with_restore=True)
        same.start()
        wait_replayed(same, lsn_of(end_of(acknowledged)))
        assert same.sql(ROWS) == "acknowledged"


@pytest.mark.soak
@pytest.mark.parametrize("with_restore", [False, True], ids=["stream", "restore"])
@pytest.mark.parametrize("how", ["immediate", "fast"])
@pytest.mark.parametrize("length", ["shorter", "equal", "longer"])
def test_each_variant_of_the_collision_ends_loudly(
    primary: PostgresServer, installation: Installation, length: str, how: str, with_restore: bool
) -> None:
    """Without `restore_command` PostgreSQL starts the other branch; every command refuses it."""
    with two_promotions(primary, installation, length=length) as play:
        alone, acknowledged = play.alone, play.acknowledged
        alone.stop(how)
        done = play.check(alone)
        assert done.returncode == 1 and BRANCH in done.stderr, done
        play.comes_back(alone, with_restore=with_restore)
        if with_restore:
            assert BRANCH in refuses_to_start(alone)
        else:
            alone.start()
            settle = ("settle", "--timeout", "30s", "--replayed-by", alone.dsn())
            done = play.cluster.try_command(*settle)
            assert done.returncode == 1 and BRANCH in done.stderr, done
            assert not (alone.data / "pg_wal" / "00000003.history").exists()
        assert acknowledged.sql(ROWS) == "acknowledged"


@pytest.mark.soak
def test_a_third_promotion_with_the_same_number_again_ends_loudly(
    primary: PostgresServer, installation: Installation
) -> None:
    """Both branches of timeline 2 are promoted once more, and both take timeline 3."""
    with two_promotions(primary, installation, length="longer") as play:
        alone, acknowledged, cluster = play.alone, play.acknowledged, play.cluster
        third = acknowledged.base_backup()
        try:
            play.comes_back(third, with_restore=False)
            third.start()
            wait_replayed(third, lsn_of(end_of(acknowledged)))
            cluster.proposers[-1].kill()
            acknowledged.kill()
            fail_over(cluster, third)
            third.sql("CHECKPOINT")
            alone.stop()
            alone.configure({"primary_conninfo": "", "restore_command": ""})
            (alone.data / "standby.signal").touch()
            alone.start()
            alone.promote()
            for server in (alone, third):
                server.sql("SET synchronous_commit = local", "CHECKPOINT")
                assert server.sql("SELECT timeline_id FROM pg_control_checkpoint()") == 3
            done = play.check(alone)
            assert done.returncode == 1 and "is not the log of cluster main" in done.stderr, done
            refused = cluster.new_proposer("refused", dsn=alone.dsn())
            refused.start(wait=False)
            assert refused.ended() == 1 and "another branch" in refused.output()
            assert third.sql(ROWS) == "acknowledged"
        finally:
            third.delete()
