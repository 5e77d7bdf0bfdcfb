"""restore_command with an archive: what safekeepers have removed, and what is without them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.archive.archiving_cluster import FAST_TAIL, ArchivingCluster
from tests.support.cluster import lsn_of
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer, make_directory, own
from tests.support.restore_installation import Installation, installed
from tests.support.waiting import wait_until
from tests.with_postgres.test_restore import NOT_IN_RECOVERY, Scene, fails
from walkeeper_archive.archive import Archive
from walkeeper_archive.layout import Kind
from walkeeper_archive.verification import survey

pytestmark = pytest.mark.postgres

KEEP_NONE = ("--wal-keep-size", "0")


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    with installed() as made:
        yield made


@pytest.fixture
def place() -> Iterator[Path]:
    directory = make_directory("walkeeper_archive_")
    yield directory
    shutil.rmtree(directory)


def test_an_archive_has_what_is_removed_and_what_is_left_without_safekeepers(
    installation: Installation, place: Path
) -> None:
    with (
        PostgresServer.create(initdb_options=["--wal-segsize=1"]) as primary,
        ArchivingCluster.archiving(primary, f"file://{place}", *FAST_TAIL, *KEEP_NONE) as cluster,
    ):
        scene = Scene(cluster, primary.base_backup(), installation)
        with Journal(primary) as early:
            early.wait_for_more(100)
        primary.sql("SELECT pg_switch_wal()")
        needed = primary.sql("SELECT pg_walfile_name(pg_switch_wal())")  # and not in the backup
        cluster.fill(12)
        wait_until(lambda: not any((cluster.wal_dir(n) / needed).exists() for n in (1, 2, 3)))
        with Journal(primary) as late:
            late.wait_for_more(100)
        cluster.wait_archived()
        cluster.proposer.kill()
        primary.kill()
        end = lsn_of(cluster.settle()["consensus_lsn"])
        archive = cluster.archive()
        wait_until(lambda: tail_lsn(archive) == end)  # the archive rests
        own(place)
        try:
            _recover(scene, f"--archive file://{place}", early, late)
            for safekeeper in cluster.safekeepers:
                safekeeper.kill()
            own(place)
            _recover_without_safekeepers(scene, place, early)
        finally:
            scene.backup.delete()


def tail_lsn(archive: Archive) -> int:
    """Return the end of the part of a segment that goes furthest."""
    files = survey(archive).files()
    return max((file.end_lsn for file in files if file.kind is Kind.PARTIAL), default=0)


def _recover(scene: Scene, option: str, *journals: Journal) -> None:
    with scene.server("recovery.signal", scene.command()) as server:
        server.configure({"restore_command": scene.command(option)})
        server.start()
        wait_until(lambda: server.sql(NOT_IN_RECOVERY))
        for journal in journals:
            assert not journal.lost_in(server)


def _recover_without_safekeepers(scene: Scene, place: Path, journal: Journal) -> None:
    """Recover to the end of the archive, and never end because it could not be read."""
    command = f"{scene.installation.script} restore --archive file://{place} --wait 500ms %f %p"
    with scene.server("recovery.signal", command) as server:
        away = place.with_name(f"{place.name}_away")
        place.rename(away)
        fails(server, "recovery.signal", command)
        away.rename(place)
        with _without_a_segment(place, server):
            fails(server, "recovery.signal", command)
        assert "the archive goes on to" in server.log_text()
        far = command.replace("--wait", "--min-lsn FF/0 --wait")
        fails(server, "recovery.signal", far)
        assert "below --min-lsn FF/0" in server.log_text()
        server.configure({"restore_command": command})
        server.start()
        wait_until(lambda: server.sql(NOT_IN_RECOVERY))
        assert "the archive ends at" in server.log_text()
        assert not journal.lost_in(server)


@contextlib.contextmanager
def _without_a_segment(place: Path, server: PostgresServer) -> Iterator[None]:
    """Remove one in the middle of the server's missing segments, and its receipt."""
    has = max(path.name for path in (server.data / "pg_wal").glob("[0-9A-F]*[0-9A-F]"))
    later = sorted(path for path in place.rglob("0" * 7 + "1" + "?" * 16) if path.name > has)
    gone = later[len(later) // 2]
    away = {path: path.with_name(f"{path.name}.away") for path in gone.parent.glob(f"{gone.name}*")}
    for path, aside in away.items():
        path.rename(aside)
    yield
    for path, aside in away.items():
        aside.rename(path)
