"""S3 that is down, full, slow and lying, under load: commits go on, and no WAL goes too early."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.archive.archiving_cluster import FAST_TAIL, ArchivingCluster, archived_digests, digests
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer
from tests.support.s3_server import S3Server, s3_server
from tests.support.waiting import wait_until
from tests.with_postgres.conftest import Figure, figure
from walkeeper_archive.archive import Archive, open_archive
from walkeeper_archive.verification import survey, verify
from walkeeper_common.lsn import Lsn

pytestmark = pytest.mark.postgres

SEGMENT = 1 << 20
COMMITS_MIN = 100  # more than would return in WITHIN_S if each waited for a store that takes 1 s
WITHIN_S = 60.0
__all__ = ["figure"]


@pytest.fixture
def server() -> Iterator[S3Server]:
    """This process asks it where nothing goes wrong; the safekeepers where it does."""
    with s3_server() as served, pytest.MonkeyPatch.context() as patch:
        for name, value in served.environment_at(served.honest_port).items():
            patch.setenv(name, value)
        yield served


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with PostgresServer.create({"wal_keep_size": "1GB"}, initdb_options=["--wal-segsize=1"]) as s:
        yield s


def assert_nothing_went_too_early(cluster: ArchivingCluster, archive: Archive) -> None:
    """Check that WAL which left the disks is in the archive, with a receipt.

    Above that there may be gaps: segments are put side by side, and arrive in any order.
    """
    begins = [cluster.oldest_kept(number) for number in (1, 2, 3)]
    runs = survey(archive).runs(1)
    assert runs[0][1] >= max(begins), (runs, begins)


def commits_per_second(journal: Journal, load: Callable[[], None]) -> float:
    """Let commits go on; their rate is a figure alone."""
    began_s, before = time.monotonic(), len(journal.entries)
    load()
    journal.wait_for_more(COMMITS_MIN, WITHIN_S)
    return (len(journal.entries) - before) / (time.monotonic() - began_s)


def is_told(failure: str | None) -> bool:
    """Return True if it is of what was cut. One of the fault before may be there for a while."""
    texts = ("524288 bytes are there", "gives back other bytes")
    return any(text in (failure or "") for text in texts)


def test_s3_that_is_down_full_slow_or_lies_costs_no_wal_and_no_commit(
    primary: PostgresServer, server: S3Server, figure: Figure
) -> None:
    options = ("--wal-keep-size", "0", *FAST_TAIL)
    environment = server.environment
    with (
        ArchivingCluster.archiving(primary, server.url, *options, **environment) as cluster,
        Journal(primary, writers=2, pause_s=0.01) as journal,
    ):
        first = cluster.oldest_kept(1)
        cluster.fill(3)
        cluster.wait_archived()
        archive = open_archive(server.url)
        faults = server.faults
        rates = {"none": commits_per_second(journal, lambda: cluster.fill(3))}
        for fault, value in (
            ("down", True),
            ("full", True),
            ("delay_s", 1.0),
            ("cut_answers", True),
        ):
            normal = getattr(faults, fault)
            setattr(faults, fault, value)
            rates[fault] = commits_per_second(journal, lambda: cluster.fill(3))
            assert_nothing_went_too_early(cluster, archive)
            setattr(faults, fault, normal)
        cluster.wait_archived()
        # It stores half of what it is given, and says that all is well.
        faults.truncate_puts = True
        rates["truncate_puts"] = commits_per_second(journal, lambda: cluster.fill(3))
        wait_until(lambda: is_told(cluster.archive_of(cluster.offloader())["failure"]))
        faults.truncate_puts = False
        assert_nothing_went_too_early(cluster, archive)
        assert max(cluster.archived_lsns().values()) < cluster.last_whole()
        for found in survey(archive).without_receipt:
            if found.size < SEGMENT:  # a whole one waits for its receipt alone
                archive.delete(found)  # the remedy that the text names
        cluster.wait_archived()
        assert_nothing_went_too_early(cluster, archive)
        contents = survey(archive)
        assert [problem.text for problem in verify(archive, contents)] == []
        assert contents.runs(1)[0][0] == Lsn(first), "from the first byte of the log on"
        there = archived_digests(archive)
        own = digests(primary.data / "pg_wal")  # later: the load goes on
        assert {name: own[name] for name in there} == there
    for fault, rate in rates.items():
        figure(f"commits/s while S3 has fault: {fault}", rate)
