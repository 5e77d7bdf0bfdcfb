"""A logical log in the archive: read there as changes, and by consumers after it left the disks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.archive.archiving_cluster import FAST_TAIL, HurriedDaemon
from tests.proposer.test_logical_check import START, made_log
from tests.support.change_consumer import create_slot, receive
from tests.support.cluster import Daemon, lsn_of, walkeeper
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import wait_until
from tests.with_postgres.logical_cluster import SETTINGS, LogicalCluster, received_ids
from walkeeper_archive.verification import _flaw_of_entries

pytestmark = pytest.mark.postgres

SEGMENT = 1 << 20
FILL = "INSERT INTO t SELECT i, repeat('x', 900) FROM generate_series({}, {}) i"
ROWS = 1500  # rows of each transaction


class ArchivedChanges(LogicalCluster):
    """Keeps next to nothing on its disks, not even for consumers."""

    url = ""

    def new_safekeeper(self, number: int, port: int, data_dir: Path | None = None) -> Daemon:
        made = super().new_safekeeper(number, port, data_dir)
        more = ("--archive", self.url, "--archive-compress", "zstd", "--wal-keep-size", "100kB")
        return HurriedDaemon(made.name, (*made.arguments, *more, *FAST_TAIL), made.log)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ArchivedChanges]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        server.sql("CREATE PUBLICATION p FOR ALL TABLES", "CREATE TABLE t (id int, v text)")
        (tmp_path / "archive").mkdir()
        ArchivedChanges.url = str(tmp_path / "archive")
        with ArchivedChanges.create(server) as made:
            yield made


def first_kept(cluster: ArchivedChanges, number: int) -> int:
    names = [file.name for file in cluster.wal_dir(number).iterdir() if len(file.name) == 24]
    return min(int(name[16:], 16) * SEGMENT for name in names)


def archived_segments(cluster: ArchivedChanges) -> set[str]:
    """Return the files of whole segments: the tail is replaced whenever the log moves."""
    names = {file.name for file in Path(cluster.url).glob("*/*/*/00*")}
    return {name for name in names if "partial" not in name}


def pruned(cluster: ArchivedChanges) -> str:
    """Prune all entries that no client needs any more; return the output."""
    done = walkeeper("archive", "prune", cluster.url, "--keep", "F/0",
                     "--safekeepers", cluster.addresses)  # fmt: skip
    assert done.returncode == 0, done
    return done.stdout


def needed(cluster: ArchivedChanges) -> list[int]:
    return [lsn_of(line["needed_lsn"] or "0/0") for line in cluster.status()["safekeepers"]]


def test_changes_that_left_the_disks_are_read_from_the_archive(cluster: ArchivedChanges) -> None:
    create_slot(cluster.ports[0], "feed")
    for number in range(6):
        cluster.primary.sql(FILL.format(number * ROWS + 1, (number + 1) * ROWS))
    end_lsn, everything = cluster.end_lsn(), list(range(1, 6 * ROWS + 1))
    wait_until(lambda: min(first_kept(cluster, n) for n in (1, 2, 3)) > 4 * SEGMENT)
    lines = cluster.status()["safekeepers"]
    assert min(lsn_of(line["archived_lsn"]) for line in lines) > 4 * SEGMENT

    def archived() -> list[int]:
        done = walkeeper("history", "changes", "--path", f"{cluster.url}/{cluster.name}",
                         "--table", "t", "--format", "json")  # fmt: skip
        assert done.returncode == 0, done.stderr
        return [int(json.loads(line)["new"]["id"]) for line in done.stdout.splitlines()]

    wait_until(lambda: archived() == everything)  # with the tail, soon after
    verified = walkeeper("archive", "verify", cluster.url)
    assert verified.returncode == 0, verified
    segments = archived_segments(cluster)
    assert "which a consumer of safekeeper" in pruned(cluster)
    assert archived_segments(cluster) >= segments
    assert received_ids(receive(cluster.ports[1], "feed", end_lsn)) == everything
    wait_until(lambda: min(needed(cluster)) > 4 * SEGMENT)
    pruned(cluster)
    assert len(archived_segments(cluster)) < len(segments) - 2
    cluster.primary.sql(FILL.format(6 * ROWS + 1, 6 * ROWS + 10))
    more = receive(cluster.ports[2], "feed", cluster.end_lsn())
    assert received_ids(more) == list(range(6 * ROWS + 1, 6 * ROWS + 11))


def test_damage_inside_an_archived_segment_of_entries_is_found() -> None:
    log = made_log()
    data = bytes(log.read(START, log.end))
    assert _flaw_of_entries(data, START, SEGMENT) is None
    for cut in (len(data) - 1, 100, 60):
        assert _flaw_of_entries(data[:cut], START, SEGMENT) is None, "a tail may end anywhere"
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    assert "does not match its CRC" in str(_flaw_of_entries(bytes(changed), START, SEGMENT))
    assert "no segment header" in str(_flaw_of_entries(data, START + SEGMENT, SEGMENT))
