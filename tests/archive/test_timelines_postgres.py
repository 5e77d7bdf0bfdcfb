"""A promotion, archived: both timelines are recovered from it when all else is gone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.archive.archiving_cluster import FAST_TAIL, ArchivingCluster
from tests.support.cluster import lsn_of, walkeeper
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer, make_directory, own, run_as_server_user
from tests.support.restore_installation import installed
from tests.support.standbys import fail_over, standby_of
from tests.support.waiting import wait_until
from walkeeper_archive.archive import Archive
from walkeeper_archive.layout import Kind
from walkeeper_archive.verification import survey

pytestmark = pytest.mark.postgres

MB = 1 << 20
DONE = "SELECT NOT pg_is_in_recovery()"


@contextmanager
def recovered(backup: PostgresServer, command: str, timeline: str) -> Iterator[PostgresServer]:
    """Recover the backup with that restore_command alone to the end of that timeline."""
    directory = make_directory("walkeeper_recovered_")
    run_as_server_user(["cp", "-a", str(backup.data), str(directory / "data")])
    settings = {"restore_command": command, "fsync": "off"}
    settings |= {"recovery_target_timeline": timeline, "synchronous_standby_names": ""}
    server = PostgresServer(directory, settings)
    (server.data / "recovery.signal").touch()
    own(server.data)
    try:
        server.start()
        wait_until(lambda: server.sql(DONE))
        yield server
    finally:
        server.delete()


def fetched(archive: Archive) -> Path:
    """Return all archived files by PostgreSQL's names, with a part of a segment padded."""
    target = make_directory("walkeeper_fetched_")
    for file in survey(archive).files():
        if file.kind is Kind.PARTIAL:
            archive.fetch_tail(file.segment, str(target / file.segment), MB)
        else:
            assert archive.fetch(file.name, str(target / file.name))
    own(target)
    return target


def test_both_timelines_are_recovered_from_the_archive_alone() -> None:
    """By its files alone, and by `walkeeper restore --archive`."""
    place = make_directory("walkeeper_archive_")
    url = f"file://{place}"
    options = ("--wal-keep-size", "0", *FAST_TAIL)
    with (
        PostgresServer.create(initdb_options=["--wal-segsize=1"]) as primary,
        ArchivingCluster.archiving(primary, url, *options) as cluster,
        standby_of(primary, cluster.ports[0]) as standby,
    ):
        backup = primary.base_backup()
        with Journal(primary, writers=2) as before:
            cluster.fill(3)
            before.wait_for_more(50)
            primary.kill()
        proposer = fail_over(cluster, standby)
        with Journal(standby, writers=2) as after:
            after.wait_for_more(50)
            for _ in range(4):
                standby.sql("SELECT pg_logical_emit_message(true, 'fill', repeat('x', 500000))")
            after.wait_for_more(50)
        end = lsn_of(standby.sql("SELECT pg_current_wal_flush_lsn()"))
        segment = standby.sql("SELECT pg_walfile_name(pg_current_wal_flush_lsn())")
        archive = cluster.archive()

        def is_there() -> bool:
            part = archive.newest_partial(segment)
            return part is not None and part.end_lsn >= end

        wait_until(is_there)
        proposer.kill()
        standby.kill()
    try:
        done = walkeeper("archive", "verify", url)
        assert done.returncode == 0, done
        fork = survey(archive).timelines[1].tail
        assert fork is not None, "the last part of timeline 1"
        wal = fetched(archive)
        own(place)
        with installed() as installation:
            restore = f"{installation.script} restore --wait 1s --archive {url} %f %p"
            for command in (f'cp "{wal}/%f" "%p"', restore):
                with recovered(backup, command, "latest") as server:
                    assert not before.lost_in(server) and not after.lost_in(server)
                with recovered(backup, command, "1") as server:
                    assert not before.lost_in(server)
                    rows = {row[0] for row in server.rows("SELECT id FROM journal")}
                    assert not rows & after.acknowledged, "what only timeline 2 has"
                    left = (server.data / "pg_wal" / "00000003.history").read_text()
                    assert f"1\t{fork.end_lsn}\t" in left, "it went on from the fork, no byte off"
        shutil.rmtree(wal)
    finally:
        backup.delete()
        shutil.rmtree(place)
