"""restore_command = 'walkeeper restore …' on real servers: nothing acknowledged is left out.

The primary is deleted; restore alone brings a base backup to the last acknowledged commit.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path

import psycopg
import pytest

from tests.support.cluster import Cluster, lsn_of
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer, make_directory, own, run_as_server_user
from tests.support.restore_installation import Installation, installed
from tests.support.standbys import fail_over, standby_of
from tests.support.waiting import NotInTime, wait_until

pytestmark = pytest.mark.postgres

RESTORED = re.compile(r'restored log file "([0-9A-F]{24})" from archive')
NOT_IN_RECOVERY = "SELECT NOT pg_is_in_recovery()"
WAITS_FOR_THE_QUORUM = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


def is_removed(directory: Path) -> bool:
    """Remove a directory; its prefetcher ends then, and may add a file before."""
    shutil.rmtree(directory, ignore_errors=True)
    return not directory.exists()


@dataclass
class Scene:
    """A cluster, a base backup from before the load, and a walkeeper that PostgreSQL can run."""

    cluster: Cluster
    backup: PostgresServer
    installation: Installation

    def command(self, *options: str, addresses: str | None = None) -> str:
        words = (f"{self.installation.script} restore", *options)
        return f"{' '.join(words)} --safekeepers {addresses or self.cluster.addresses} %f %p"

    @contextlib.contextmanager
    def server(self, signal_file: str, command: str, **settings: str) -> Iterator[PostgresServer]:
        """Yield a copy of the backup that is not started."""
        directory = make_directory("walkeeper_restored_")
        run_as_server_user(["cp", "-a", str(self.backup.data), str(directory / "data")])
        quick = {
            "fsync": "off",
            "synchronous_standby_names": "",
            "wal_retrieve_retry_interval": "200ms",
        }
        server = PostgresServer(directory, {"restore_command": command, **quick, **settings})
        (server.data / signal_file).touch()
        own(server.data)
        try:
            yield server
        finally:
            server.kill()
            wait_until(lambda: is_removed(directory))

    def segments(self) -> list[str]:
        names = os.listdir(self.cluster.wal_dir(1))
        return sorted(name for name in names if len(name) == 24)

    def run_in(self, directory: Path) -> subprocess.CompletedProcess[str]:
        """Ask for the log's first segment as PostgreSQL does."""
        words = (
            self.command().replace("%f", self.segments()[0]).replace("%p", "pg_wal/RECOVERYXLOG")
        )
        return subprocess.run(words.split(), cwd=directory, capture_output=True, text=True)


@dataclass
class Lost(Scene):
    """The primary is deleted, the log is settled. The target is in the middle of the load."""

    journal: Journal
    target_lsn: str
    target_time: str
    until_target: int

    def is_whole(self, server: PostgresServer) -> bool:
        return not self.journal.lost_in(server)


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    with installed() as made:
        yield made


@pytest.fixture(scope="module")
def lost(installation: Installation) -> Iterator[Lost]:
    with (
        PostgresServer.create(initdb_options=["--wal-segsize=1"]) as primary,
        Cluster.create(primary) as cluster,
    ):
        backup = primary.base_backup()
        with Journal(primary, writers=6) as journal:
            journal.wait_for_more(1500)
        lsn, time = primary.rows("SELECT pg_current_wal_lsn()::text, now()::text")[0]
        until_target = len(journal.entries)
        fill = "INSERT INTO filler SELECT repeat(g::text, 200) FROM generate_series(1, 40000) g"
        primary.sql(
            "CREATE TABLE filler (t text)", "ALTER TABLE filler ALTER t SET STORAGE PLAIN", fill
        )
        more = Journal(primary, writers=6)
        with more:
            more.wait_for_more(1500)
            cluster.proposer.kill()
            primary.kill()
        more.entries[:0] = journal.entries
        shutil.rmtree(primary.data)
        cluster.settle()
        yield Lost(cluster, backup, installation, more, lsn, time, until_target)
        backup.delete()


def test_each_pair_of_safekeepers_restores_every_acknowledged_commit(lost: Lost) -> None:
    for pair in combinations((1, 2, 3), 2):
        absent = next(s for n, s in enumerate(lost.cluster.safekeepers, 1) if n not in pair)
        absent.kill()
        with lost.server("recovery.signal", lost.command()) as server:
            server.start()
            wait_until(partial(server.sql, NOT_IN_RECOVERY))
            assert lost.is_whole(server), f"{pair=}\n{server.log_text()[-4000:]}"
            spool = server.data / "pg_wal" / ".walkeeper_prefetch"
            wait_until(partial(is_away, spool))
        absent.start()


@pytest.mark.parametrize("kind", ["lsn", "time"])
def test_a_recovery_stops_at_its_target(lost: Lost, kind: str) -> None:
    target = lost.target_lsn if kind == "lsn" else lost.target_time
    settings = {f"recovery_target_{kind}": target, "recovery_target_action": "promote"}
    with lost.server("recovery.signal", lost.command(), **settings) as server:
        server.start()
        wait_until(lambda: server.sql(NOT_IN_RECOVERY))
        expected = {entry.id for entry in lost.journal.entries[: lost.until_target]}
        assert expected <= lost.journal.ids_in(server)
        assert not server.sql("SELECT to_regclass('filler')")


def test_a_standby_far_behind_is_promoted_with_every_acknowledged_commit(lost: Lost) -> None:
    """Its upstream is dead: only restore can bring what is missing."""
    dead = "host=127.0.0.1 port=1 user=postgres"
    with lost.server("standby.signal", lost.command(), primary_conninfo=dead) as server:
        server.start()
        server.pg_ctl("promote", "-w", "-t", "60")
        assert server.sql(NOT_IN_RECOVERY)
        assert lost.is_whole(server)


def fails(server: PostgresServer, signal_file: str, command: str) -> None:
    """Let it fail: it stops without the end of its recovery, and can be started again."""
    server.configure({"restore_command": command})
    server.pg_ctl("-l", str(server.log), "-w", "-t", "60", "start", check=False)
    has_stopped(server, signal_file)


def has_stopped(server: PostgresServer, signal_file: str) -> None:
    try:
        wait_until(lambda: not server.is_running)
    except NotInTime as error:
        raise AssertionError(f"it runs: {server.log_text()[-4000:]}") from error
    assert (server.data / signal_file).exists(), server.log_text()[-4000:]
    assert not list((server.data / "pg_wal").glob("*.history"))


def launch(server: PostgresServer, command: str) -> list[int]:
    """Start it; the restore that it waits for."""
    server.configure({"restore_command": command})
    server.pg_ctl("-l", str(server.log), "-W", "start")
    return wait_until(lambda: restore_processes(server))


def is_away(path: Path) -> bool:
    return not path.exists()


def accepts(server: PostgresServer) -> bool:
    with contextlib.suppress(psycopg.OperationalError):
        return bool(server.sql("SELECT true"))
    return False


def restore_processes(server: PostgresServer) -> list[int]:
    """List the restore processes of this server: they work in its data directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"restore" in words and Path(os.readlink(entry / "cwd")) == server.data:
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    "signal_file", [pytest.param("recovery.signal", marks=pytest.mark.soak), "standby.signal"]
)
def test_no_failure_ends_a_recovery_and_afterwards_it_goes_on(lost: Lost, signal_file: str) -> None:
    """One server, every failure in turn, then none."""
    with lost.server(signal_file, lost.command()) as server:
        fails(server, signal_file, lost.command("--bogus"))
        assert "No such option" in server.log_text()
        with lost.installation.without("walkeeper_common/wire/framing.py"):
            if signal_file == "recovery.signal":
                fails(server, signal_file, lost.command())
            else:  # it tries again: an upgrade may be under way, and then it goes on
                launch(server, lost.command())
                wait_until(lambda: "installation is broken" in server.log_text())
        if signal_file == "standby.signal":
            wait_until(lambda: accepts(server))
            server.stop("immediate")
        if signal_file == "recovery.signal":
            fails(server, signal_file, lost.command("--wait 500ms", addresses="127.0.0.1:1"))
            assert "gave up after 0.5 s" in server.log_text()
        for safekeeper in lost.cluster.safekeepers[:2]:
            safekeeper.kill()
        os.kill(launch(server, lost.command())[0], signal.SIGTERM)
        has_stopped(server, signal_file)
        if signal_file == "recovery.signal":
            fails(server, signal_file, lost.command("--wait 500ms"))
        for safekeeper in lost.cluster.safekeepers[:2]:
            safekeeper.start()
        server.configure({"restore_command": lost.command()})
        server.start()
        if signal_file == "standby.signal":
            server.pg_ctl("promote", "-w", "-t", "60")
        wait_until(lambda: server.sql(NOT_IN_RECOVERY))
        assert lost.is_whole(server)


def test_a_hot_standby_stays_up_while_nobody_can_answer(lost: Lost) -> None:
    """Two ways of not knowing: no quorum, and nobody at all."""
    with lost.server("standby.signal", lost.command()) as server:
        server.start()
        wait_until(lambda: server.sql("SELECT to_regclass('filler')") is not None)
        for safekeeper in lost.cluster.safekeepers[:2]:
            safekeeper.kill()
        wait_until(lambda: "no quorum: 1 of 3 members answered" in server.log_text())
        assert server.sql("SELECT pg_is_in_recovery()")
        lost.cluster.safekeepers[2].kill()
        wait_until(lambda: "no safekeeper answered" in server.log_text())
        assert server.sql("SELECT pg_is_in_recovery()")
        for safekeeper in lost.cluster.safekeepers:
            safekeeper.start()
        server.pg_ctl("promote", "-w", "-t", "60")
        assert lost.is_whole(server)


def test_a_padded_part_is_no_archived_segment(lost: Lost) -> None:
    """archive_mode = always would archive it as if it were whole."""
    archive = {"archive_mode": "always", "archive_command": "true"}
    with lost.server("recovery.signal", lost.command(), **archive) as server:
        fails(server, "recovery.signal", lost.command())
        assert "archive_mode = always" in server.log_text()
        server.configure({"restore_command": lost.command("--no-partial")})
        server.start()
        wait_until(lambda: server.sql(NOT_IN_RECOVERY))
        assert not lost.is_whole(server)  # as --no-partial says
    with lost.server("standby.signal", lost.command(), **archive) as server:
        server.start()
        wait_until(lambda: "`restore` leaves it out" in server.log_text())
        assert server.sql("SELECT pg_is_in_recovery()")
        ready = (server.data / "pg_wal" / "archive_status").glob("*")
        restored = {path.name.partition(".")[0] for path in ready}
        last = max(lost.segments())
        assert len(restored) > 3 and last not in restored


def test_another_clusters_safekeepers_are_refused(lost: Lost) -> None:
    """Its WAL would look to PostgreSQL like the end of the WAL."""
    with lost.server("recovery.signal", lost.command()) as server:
        control = server.data / "global" / "pg_control"
        kept = control.read_bytes()
        control.write_bytes(bytes(8) + kept[8:])
        done = lost.run_in(server.data)
        control.write_bytes(kept)
        assert done.returncode == 126 and "system identifier" in done.stderr


def test_a_server_killed_in_its_recovery_goes_on(lost: Lost) -> None:
    """With segments that were fetched ahead lying about, some of them half."""
    with lost.server("standby.signal", lost.command()) as server:
        launch(server, lost.command())
        spool = server.data / "pg_wal" / ".walkeeper_prefetch"
        wait_until(lambda: len(list(spool.glob("*/*"))) > 2)
        server.kill()
        server.start()
        wait_until(lambda: server.sql("SELECT to_regclass('filler')") is not None)
        server.pg_ctl("promote", "-w", "-t", "60")
        assert lost.is_whole(server)
        wait_until(lambda: not spool.exists())
        assert not list((server.data / "pg_wal").glob("*.walkeeper-*"))


def test_most_segments_need_no_python_until_the_next_start(lost: Lost) -> None:
    """Python places the first one after each start, for a prefetcher and for the proof (R23)."""
    with slow_python(lost.installation) as (script, python):
        command = lost.command().replace(str(lost.installation.script), str(script))
        with lost.server("standby.signal", command) as server:
            for _ in range(2):
                python.unlink(missing_ok=True)
                server.log.unlink(missing_ok=True)
                server.start()
                wait_until(lambda: len(set(RESTORED.findall(server.log_text()))) > 2)
                server.kill()
                named = RESTORED.findall(server.log_text())
                by_python = [name for name in python.read_text().split() if len(name) == 24]
                assert by_python[0] == named[0] and set(named) - set(by_python), named
            server.configure({"restore_command": lost.command()})
            server.start()
            server.pg_ctl("promote", "-w", "-t", "60")
            assert lost.is_whole(server)


@contextlib.contextmanager
def slow_python(installation: Installation) -> Iterator[tuple[Path, Path]]:
    """Yield a `walkeeper` whose first Python awaits the prefetcher, and the list of its files."""
    directory = make_directory("walkeeper_slow_")
    script, names = directory / "walkeeper", directory / "names"
    shutil.copy(installation.script, script)
    python = directory / "walkeeper-python"
    python.write_text(
        "#!/bin/sh\n"
        f"for word; do name=$path path=$word; done; echo $name >>{names}\n"
        f'{installation.script.parent}/walkeeper-python "$@"\ncode=$?\n'
        f"[ ${{#name}} = 24 ] && [ $(grep -c '^.\\{{24\\}}$' {names}) = 1 ] || exit $code\n"
        f"for turn in $(seq 600); do\n  set -- pg_wal/.walkeeper_prefetch/*/{'?' * 24}\n"
        '  [ -e "$1" ] && break\n  sleep 0.1\ndone\nexit $code\n'
    )
    python.chmod(0o755)
    own(directory)
    try:
        yield script, names
    finally:
        shutil.rmtree(directory)


def test_nothing_is_called_the_end_that_may_have_been_acknowledged(
    installation: Installation,
) -> None:
    """One safekeeper has more than is known to be committed, and no proposer is left: `settle`."""
    with (
        PostgresServer.create(initdb_options=["--wal-segsize=1"]) as primary,
        Cluster.create(primary) as cluster,
    ):
        primary.sql("CREATE TABLE t (n int)")
        backup = primary.base_backup()
        for safekeeper in cluster.safekeepers[1:]:
            safekeeper.kill()
        hanging = primary.psql("-c", "INSERT INTO t VALUES (1)")
        wait_until(lambda: primary.sql(WAITS_FOR_THE_QUORUM))
        end = lsn_of(primary.sql("SELECT pg_current_wal_flush_lsn()::text"))
        wait_until(lambda: lsn_of(cluster.flush_lsns().get(1, "0/0")) >= end)
        cluster.proposer.kill()
        primary.kill()
        hanging.communicate()
        for safekeeper in cluster.safekeepers[1:]:
            safekeeper.start()
        scene = Scene(cluster, backup, installation)
        try:
            with scene.server("recovery.signal", scene.command()) as server:
                launch(server, scene.command())
                wait_until(lambda: "may have been acknowledged" in server.log_text())
                cluster.settle()
                wait_until(lambda: accepts(server) and server.sql(NOT_IN_RECOVERY))
                assert server.rows("SELECT n FROM t") == [(1,)]
        finally:
            backup.delete()


@pytest.mark.soak
def test_a_backup_is_restored_to_a_time_on_each_of_three_timelines(
    installation: Installation,
) -> None:
    """Two promotions; the backup is from before, and restore_command is all that it has."""
    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(PostgresServer.create(initdb_options=["--wal-segsize=1"]))
        cluster = stack.enter_context(Cluster.create(primary))
        backup = primary.base_backup()
        stack.callback(backup.delete)
        standbys = [stack.enter_context(standby_of(primary, cluster.ports[n])) for n in (0, 1)]
        targets, before = list[tuple[str, Journal, Journal]](), list[Journal]()
        server, proposer = primary, cluster.proposer
        for successor in (*standbys, None):
            with Journal(server) as until:
                until.wait_for_more(50)
            target = server.sql("SELECT now()::text")
            with Journal(server) as later:
                later.wait_for_more(50)
                server.kill()
                proposer.kill()
            targets.append((target, until, later))
            if successor is not None:
                server, proposer = successor, fail_over(cluster, successor)
        cluster.settle()
        scene = Scene(cluster, backup, installation)
        for target, until, later in targets:
            settings = {"recovery_target_time": target, "recovery_target_action": "promote"}
            with scene.server("recovery.signal", scene.command(), **settings) as restored:
                restored.start()
                wait_until(partial(restored.sql, NOT_IN_RECOVERY))
                assert not any(journal.lost_in(restored) for journal in (*before, until))
                assert not later.acknowledged & later.ids_in(restored), "it stopped at its target"
            before += [until, later]
