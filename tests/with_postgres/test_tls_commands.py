"""Each command that asks safekeepers, at safekeepers that admit no peer without a certificate.

One cluster serves all tests of this module. test_tls_clients.py has the readers of a log.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.archive.archiving_cluster import FAST_TAIL, HurriedDaemon
from tests.support.cluster import Daemon, lsn_of, walkeeper
from tests.support.postgres_server import (
    PostgresServer,
    make_directory,
    own,
    program,
    server_environment,
)
from tests.support.restore_installation import installed
from tests.support.standbys import wait_replayed
from tests.support.tls_cluster import TlsCluster
from tests.support.waiting import LIMIT_S, wait_until
from tests.tls_files import TlsFiles
from tests.with_postgres.test_replace import add_safekeeper
from walkeeper_common.access.identity import Role

pytestmark = pytest.mark.postgres

FILL = "SELECT pg_logical_emit_message(true, 'fill', repeat('x', 600000)), pg_switch_wal()"


class ArchivingTlsCluster(TlsCluster):
    """Its safekeepers archive into a directory, and their tails each second."""

    archive: Path

    def new_safekeeper(self, number: int, port: int, data_dir: Path | None = None) -> Daemon:
        made = super().new_safekeeper(number, port, data_dir)
        arguments = (*made.arguments, "--archive", self.url, *FAST_TAIL)
        return HurriedDaemon(made.name, arguments, made.log)

    @property
    def url(self) -> str:
        return f"file://{self.archive}"

    def run(self, *words: str, role: Role = Role.ADMIN) -> subprocess.CompletedProcess[str]:
        """Run a command with the file of a role."""
        file = self.files.path(role, "alice")
        return walkeeper(*words, "--safekeepers", self.addresses, "--tls", file)

    def printed(self, *words: str, role: Role = Role.ADMIN) -> str:
        done = self.run(*words, role=role)
        assert done.returncode == 0, done
        return done.stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArchivingTlsCluster]:
    files = TlsFiles(tmp_path_factory.mktemp("tls"))
    ArchivingTlsCluster.archive = tmp_path_factory.mktemp("archive")
    with (
        PostgresServer.create(initdb_options=["--wal-segsize=1"]) as server,
        ArchivingTlsCluster.with_files(server, files) as made,
    ):
        yield made


def checks(cluster: ArchivingTlsCluster, *options: str) -> dict[str, dict[str, Any]]:
    """Return the findings of `walkeeper check` by check."""
    done = cluster.run("check", "--json", *options)
    return {each["check"]: each for each in json.loads(done.stdout)["checks"]}


def test_check_follows_a_marker_to_the_archive_and_back(cluster: ArchivingTlsCluster) -> None:
    wait_until(lambda: checks(cluster)["members"]["state"] == "OK")  # also behind a change of them
    findings = checks(cluster, "--dsn", cluster.primary.dsn(), "--archive", cluster.url)
    ways = ("members", "commit", "quorum", "archive", "restore", "restore, archive")
    assert {findings[way]["state"] for way in ways} == {"OK"}, findings


def test_slots_are_listed_and_dropped(cluster: ArchivingTlsCluster) -> None:
    dsn = cluster.libpq(1, Role.REPLICA, "old")
    words = [program("pg_receivewal"), "-d", dsn, "-D", "/tmp", "--create-slot", "--slot", "old"]
    subprocess.run(words, check=True, env=server_environment(), capture_output=True)
    assert " old " in cluster.printed("slots", "ls", role=Role.MONITOR)
    assert "dropped slot old" in cluster.printed("slots", "drop", "old")


def test_logs_are_listed_and_dropped(cluster: ArchivingTlsCluster) -> None:
    words = ("create", "--cluster", "old", "--dsn", cluster.primary.dsn())
    cluster.printed(*words)
    listed = cluster.printed("logs", "ls", role=Role.MONITOR).splitlines()
    assert {line.split()[0] for line in listed[1:]} == {"main", "old"}
    assert cluster.printed("logs", "drop", "--yes", "old").count("dropped") == 3


def test_the_archive_is_repaired_and_pruned(cluster: ArchivingTlsCluster) -> None:
    for _ in range(3):
        cluster.primary.sql(FILL)

    def archived() -> list[Path]:
        return sorted(path for path in cluster.archive.rglob("*") if len(path.name) == 24)

    wait_until(lambda: len(archived()) >= 3)
    archived()[1].unlink()
    assert "repaired" in cluster.printed("archive", "repair", cluster.url)
    oldest = archived()[2].name
    prune = ("archive", "prune", cluster.url, "--keep", oldest, "--dry-run")
    assert "would delete" in cluster.printed(*prune, role=Role.MONITOR)


def test_a_standby_replays_by_restore_command(cluster: ArchivingTlsCluster) -> None:
    """PostgreSQL's user runs the command, so the installation and the file are that user's."""
    place = make_directory("walkeeper_tls_")
    file = shutil.copy(cluster.files.path(Role.RESTORE, "standby1"), place)
    own(place)
    standby = cluster.primary.base_backup()
    try:
        with installed(("cryptography", "_cffi_backend")) as made:
            command = f"{made.script} restore --safekeepers {cluster.addresses} --tls {file} %f %p"
            retry = {"wal_retrieve_retry_interval": "200ms"}
            standby.configure({"restore_command": command, "primary_conninfo": "", **retry})
            (standby.data / "standby.signal").touch()
            standby.start()
            cluster.primary.sql("CREATE TABLE restored AS SELECT 42 AS i")
            wait_replayed(standby, lsn_of(cluster.wait_all_equal()))
            assert standby.sql("SELECT i FROM restored") == 42
            where = ("standby-check", "-D", str(standby.data))
            assert "is the log of cluster main" in cluster.printed(*where, role=Role.RESTORE)
            standby.kill()
    finally:
        standby.delete()
        shutil.rmtree(place)


def test_the_members_change(cluster: ArchivingTlsCluster) -> None:
    """The proposer, the command and the newcomer each meet the others' certificates.

    The members are the same at the end, as the tests run in any order.
    """
    assert json.loads(cluster.printed("members", "--json", role=Role.MONITOR))
    limit = ("--timeout", f"{LIMIT_S}s")
    _, port = add_safekeeper(cluster, 4)
    newcomer = f"4@127.0.0.1:{port}"
    assert "1, 2, 3, 4" in cluster.printed("members", "add", newcomer, *limit)
    cluster.primary.sql("CREATE TABLE changed AS SELECT 1 AS i")
    cluster.printed("members", "remove", "4", *limit)
