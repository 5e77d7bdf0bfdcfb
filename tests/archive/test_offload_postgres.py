"""Offload on real safekeepers, behind a real PostgreSQL: archive, safekeepers and primary agree."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.archive.archiving_cluster import (
    FAST_TAIL,
    MESSAGE,
    ArchivingCluster,
    archived_digests,
    digests,
)
from tests.support.cluster import lsn_of, walkeeper
from tests.support.journal import Journal
from tests.support.postgres_server import (
    PostgresServer,
    make_directory,
    own,
    program,
    run_as_server_user,
)
from tests.support.recovery import recovered
from tests.support.waiting import LIMIT_S, wait_until
from walkeeper_archive.archive import Archive, open_archive
from walkeeper_archive.layout import Kind, segment_file
from walkeeper_archive.verification import survey
from walkeeper_common.lsn import Lsn

pytestmark = pytest.mark.postgres

SEGMENT = 1 << 20
KEEP_NONE = ("--wal-keep-size", "0")


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with PostgresServer.create({"wal_keep_size": "1GB"}, initdb_options=["--wal-segsize=1"]) as s:
        yield s


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "archive").mkdir()
    return f"file://{tmp_path}/archive"


def verified(url: str) -> str:
    """Return the output of `archive verify`, which must find no damage."""
    done = walkeeper("archive", "verify", url)
    assert done.returncode == 0, done
    return done.stderr


def prune(cluster: ArchivingCluster, url: str) -> tuple[int, str]:
    """Return its exit code and its first lines if only the log itself needs WAL."""
    flags = ("--keep", "F/0", "--safekeepers", cluster.addresses)
    done = walkeeper("archive", "prune", url, *flags)
    return done.returncode, done.stdout + ("" if done.returncode == 0 else done.stderr)


def segments_read(port: int, *, before: Lsn) -> list[str]:
    """Return pg_receivewal's bytes from the last segment's start on; it ends after --endpos."""
    end_lsn = str(Lsn(before - 1))
    received = make_directory("walkeeper_received_")
    try:
        own(received)
        where = ["-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-D", str(received)]
        run_as_server_user([program("pg_receivewal"), *where, "--endpos", end_lsn, "--no-loop"])
        return [path.name for path in received.iterdir()]
    finally:
        shutil.rmtree(received)


def test_archive_safekeepers_and_primary_agree_byte_for_byte(
    primary: PostgresServer, url: str, tmp_path: Path
) -> None:
    with ArchivingCluster.archiving(primary, url, *FAST_TAIL) as cluster:
        cluster.fill(12)
        archived_lsn = cluster.wait_archived()
        assert set(cluster.archived_lsns().values()) == {archived_lsn}
        there = archived_digests(cluster.archive())
        assert len(there) >= 6
        own = digests(primary.data / "pg_wal")
        assert {name: own[name] for name in there} == there
        for number in (1, 2, 3):
            kept = digests(cluster.wal_dir(number))
            assert {name: kept[name] for name in there} == there
        assert [cluster.archive_of(n)["failure"] for n in (1, 2, 3)] == [None] * 3
        wait_until(lambda: len(cluster.offloaders()) == 1)
        # The tail, up to what is committed, soon after.
        end = lsn_of(primary.sql("SELECT pg_current_wal_flush_lsn()"))
        segment = primary.sql("SELECT pg_walfile_name(pg_current_wal_flush_lsn())")
        target, archive = tmp_path / "tail", cluster.archive()
        wait_until(lambda: (archive.fetch_tail(segment, str(target), SEGMENT) or 0) >= end)
        tail = (primary.data / "pg_wal" / segment).read_bytes()
        assert target.read_bytes()[: end % SEGMENT] == tail[: end % SEGMENT]
        verified(url)


def forgets(cluster: ArchivingCluster, lsn: int) -> bool:
    """Return True if no safekeeper keeps WAL near `lsn` for a member or for what tells (R22)."""
    lines = cluster.status()["safekeepers"]
    return all(lsn_of(line["restart_lsn"] or "0/0") > lsn + 4 * SEGMENT for line in lines)


def test_wal_that_left_the_disks_is_streamed_from_the_archive(
    primary: PostgresServer, url: str
) -> None:
    with ArchivingCluster.archiving(
        primary, url, *KEEP_NONE, "--archive-compress", "zstd"
    ) as cluster:
        begin = cluster.oldest_kept(1)
        where = f"host=127.0.0.1 port={cluster.ports[1]} user=postgres replication=true"
        ask = [program("psql"), f"{where} dbname=replication", "-c"]
        run_as_server_user([*ask, "CREATE_REPLICATION_SLOT backup PHYSICAL RESERVE_WAL"])
        slot_lsn = lsn_of(cluster.status()["safekeepers"][1]["slots"][0]["restart_lsn"])
        cluster.fill(16)
        archived = cluster.wait_archived()
        wait_until(lambda: max(cluster.oldest_kept(n) for n in (1, 2, 3)) >= archived - 2 * SEGMENT)
        received = make_directory("walkeeper_received_")
        end = primary.sql("SELECT pg_current_wal_flush_lsn()")
        cluster.primary.sql("SELECT pg_switch_wal()")
        port = cluster.ports[1]
        into = ["-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-D", str(received)]
        start = segment_file(1, Lsn(begin), SEGMENT).name
        # pg_receivewal goes on from what its directory has: one segment before the first one.
        (received / start).write_bytes((primary.data / "pg_wal" / start).read_bytes())
        own(received)
        run_as_server_user([program("pg_receivewal"), *into, "--endpos", end, "--no-loop"])
        there = digests(received)
        mine = digests(primary.data / "pg_wal")
        assert len(there) >= 8 and {name: mine[name] for name in there} == there
        shutil.rmtree(received)
        # The WAL of a slot stays in the archive, although no other client needs it any more.
        wait_until(lambda: forgets(cluster, slot_lsn))
        assert "which slot 'backup' of safekeeper" in prune(cluster, url)[1]
        first = survey(cluster.archive()).timelines[1].first_lsn
        assert first is not None and slot_lsn - SEGMENT < first <= slot_lsn < archived - 6 * SEGMENT
        run_as_server_user([*ask, "DROP_REPLICATION_SLOT backup"])
        cluster.safekeepers[2].kill()
        code, said = prune(cluster, url)
        assert code == 1 and "cannot know the WAL that safekeeper" in said
        cluster.safekeepers[2].start()
        wait_until(lambda: not any(line["slots"] for line in cluster.status()["safekeepers"]))
        wait_until(lambda: forgets(cluster, slot_lsn))
        assert prune(cluster, url)[0] == 0
        first = survey(cluster.archive()).timelines[1].first_lsn
        assert first is not None and slot_lsn < first
        verified(url)


def test_a_laggard_is_fed_from_the_archive_when_nobody_has_its_wal(
    primary: PostgresServer, url: str
) -> None:
    with ArchivingCluster.archiving(primary, url, *KEEP_NONE) as cluster:
        cluster.fill(4)
        cluster.wait_archived()
        laggard = cluster.offloader()
        others = [n for n in (1, 2, 3) if n != laggard]
        cluster.safekeepers[laggard - 1].kill()
        behind = lsn_of(primary.sql("SELECT pg_current_wal_flush_lsn()"))
        cluster.fill(12)
        cluster.wait_archived()  # taken over from the one that was killed
        wait_until(lambda: min(cluster.oldest_kept(n) for n in others) > behind)
        for number in others:  # started again, they know at once how far back the archive goes
            assert cluster.safekeepers[number - 1].terminate() == 0
            cluster.safekeepers[number - 1].start()
        cluster.proposer.kill()  # its window remembers nothing of all that
        cluster.proposer.start()
        cluster.safekeepers[laggard - 1].start()
        cluster.wait_all_equal()
        cluster.wait_archived()
        verified(url)


def test_killed_offloaders_leave_no_gap_and_no_conflict(primary: PostgresServer, url: str) -> None:
    with ArchivingCluster.archiving(primary, url, *FAST_TAIL) as cluster, Journal(primary):
        for _ in range(4):
            cluster.fill(6)
            killed = cluster.safekeepers[cluster.offloader() - 1]
            killed.kill()
            cluster.fill(2)
            killed.start()
        cluster.wait_archived()
        there = archived_digests(cluster.archive())
        own = digests(primary.data / "pg_wal")
        assert {name: own[name] for name in there} == there
        verified(url)
        for safekeeper in cluster.safekeepers:
            assert "other content" not in safekeeper.output()


def test_at_the_high_mark_appends_are_refused_and_go_on_when_there_is_space(
    primary: PostgresServer, tmp_path: Path
) -> None:
    """An archive that is not there: WAL may not go, until it is."""
    url = f"file://{tmp_path}/not-mounted"
    options = (*KEEP_NONE, "--wal-size-max", "8MB")
    with ArchivingCluster.archiving(primary, url, *options) as cluster:
        where = ["-h", "127.0.0.1", "-p", str(primary.port), "-U", "postgres"]
        writer = subprocess.Popen(
            [program("psql"), *where, *["-c", MESSAGE] * 24],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            refusing = wait_until(
                lambda: [
                    line for line in cluster.status()["safekeepers"]
                    if "--wal-size-max" in (line["error"] or "")
                ]
            )  # fmt: skip
            assert "8 MB are allowed" in refusing[0]["error"]
            failure = wait_until(lambda: cluster.archive_of(cluster.offloader())["failure"])
            assert "not-mounted" in failure
            assert all(len(digests(cluster.wal_dir(n))) <= 8 for n in (1, 2, 3))
            # Votes and reads go on.
            cluster.settle()
            there = f"host=127.0.0.1 port={cluster.ports[0]} user=postgres replication=true"
            asked = [program("psql"), there + " dbname=replication", "-c", "IDENTIFY_SYSTEM"]
            assert subprocess.run(asked, capture_output=True, timeout=LIMIT_S).returncode == 0
            readable = Lsn.parse(cluster.status()["safekeepers"][0]["commit_lsn"])
            assert segments_read(cluster.ports[0], before=readable)
            (tmp_path / "not-mounted").mkdir()
            assert cluster.proposer.ended() == 1, "settle has deposed it"
            cluster.proposer.start()
            assert writer.wait(LIMIT_S) == 0
        finally:
            writer.kill()
            writer.wait()
        cluster.wait_archived()
        verified(url)


def test_foreign_lost_and_conflicting_archives_are_loud_and_stop_removal_and_nothing_else(
    primary: PostgresServer, url: str, tmp_path: Path
) -> None:
    with ArchivingCluster.archiving(primary, url, *KEEP_NONE) as cluster:

        def wait_failed(text: str) -> None:
            """Wait for this failure; that of the step before may be there for a while."""
            wait_until(lambda: text in (cluster.archive_of(cluster.offloader())["failure"] or ""))

        cluster.fill(4)
        archived = Lsn(cluster.wait_archived())
        system_id = int(cluster.status()["cluster"]["system_id"])
        archive = open_archive(url, "main", system_id)
        # 1. Another log has taken a name.
        taken = segment_file(1, archived + 2 * SEGMENT, SEGMENT)
        archive.put(taken, hashlib.sha256(b"another log").digest() * (SEGMENT // 32))
        cluster.fill(8)
        wait_failed(f"{taken.name} has other content")
        wait_until(lambda: max(cluster.archived_lsns().values()) == archived + 2 * SEGMENT)
        for found in [found for found in archive.objects() if found.file == taken]:
            archive.delete(found)
        cluster.wait_archived()
        # 2. Another system's archive is in the folder.
        other = open_archive(url, "main", 5)
        other.put(segment_file(1, Lsn(SEGMENT), SEGMENT), bytes(SEGMENT))
        cluster.fill(4)
        wait_failed("another database system (5; this one is")

        def is_warned() -> bool:
            status = walkeeper("status", "--safekeepers", cluster.addresses, "--check")
            return status.returncode == 1 and "cannot archive, commits go on" in status.stdout

        wait_until(is_warned)
        shutil.rmtree(tmp_path / "archive" / "main" / "5")
        cluster.wait_archived()
        # 3. Its disk is not mounted any more.
        (tmp_path / "archive").rename(tmp_path / "unmounted")
        (tmp_path / "archive").mkdir()
        cluster.fill(4)
        wait_failed("is it mounted?")
        begin = max(cluster.archived_lsns().values())
        assert max(cluster.oldest_kept(n) for n in (1, 2, 3)) <= begin
        (tmp_path / "archive").rmdir()
        (tmp_path / "unmounted").rename(tmp_path / "archive")
        cluster.wait_archived()
        verified(url)


def test_a_base_backup_and_the_archive_alone_give_every_commit_up_to_the_tail(
    primary: PostgresServer, url: str, tmp_path: Path
) -> None:
    backup = primary.base_backup()
    try:
        with ArchivingCluster.archiving(primary, url, *FAST_TAIL, *KEEP_NONE) as cluster:
            with Journal(primary, writers=2) as journal:
                cluster.fill(8)
                journal.wait_for_more(50)
            acknowledged = journal.acknowledged
            end = lsn_of(primary.sql("SELECT pg_current_wal_flush_lsn()"))
            archive = cluster.archive()
            segment = primary.sql("SELECT pg_walfile_name(pg_current_wal_flush_lsn())")
            cluster.wait_archived()
            wait_until(lambda: _tail_lsn(archive, segment) >= end)
        primary.kill()  # and every safekeeper with its disk
        wal = make_directory("walkeeper_fetched_")
        for file in survey(archive).files():
            if file.kind is Kind.SEGMENT:
                assert archive.fetch(file.name, str(wal / file.name))
        assert archive.fetch_tail(segment, str(wal / segment), SEGMENT)
        own(wal)
        with recovered(backup, wal) as server:
            wait_until(lambda: server.sql("SELECT NOT pg_is_in_recovery()"))
            found = {row[0] for row in server.rows("SELECT id FROM journal")}
            assert acknowledged - found == set() and len(acknowledged) >= 50
        shutil.rmtree(wal)
    finally:
        backup.delete()


def _tail_lsn(archive: Archive, segment: str) -> int:
    partial = archive.newest_partial(segment)
    return 0 if partial is None else partial.end_lsn
