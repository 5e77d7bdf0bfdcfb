"""A record that the primary never finished reaches nobody behind a safekeeper (R13).

Its committed beginning is truncated by the next election and other WAL comes in its place. A stock
standby that had got some of it would never replay again. It restarts its stream in the segment that
it was in, and keeps the record's old beginning in the segments before. It kills its walreceiver for
the wrong continuation before that one can overwrite them. pg_receivewal would keep the old bytes in
a finished segment for good.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, lsn_of
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer, own
from tests.support.receivers import identified, pg_receivewal
from tests.support.recovery import assembled_wal
from tests.support.segment_files import assert_same_wal
from tests.support.standbys import standby_of, wait_replayed
from tests.support.valve import Valve
from tests.support.waiting import wait_until
from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn, segment_name

pytestmark = pytest.mark.postgres

SEGMENT_BYTES = 16 << 20
RECORD_BYTES = 40 << 20
BEYOND_BYTES = 4 << 20  # WAL of the record in the next segment


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with PostgresServer.create() as server:
        yield server


def lose_the_primary_inside_a_record(
    cluster: Cluster, primary: PostgresServer, valve: Valve
) -> int:
    """Return the start of the record. It is committed into the next segment; its end nobody has."""
    start = lsn_of(primary.sql("SELECT pg_current_wal_flush_lsn()"))
    next_segment = (start // SEGMENT_BYTES + 1) * SEGMENT_BYTES
    valve.allow(next_segment - start + BEYOND_BYTES)  # so the proposer gets no more of it
    emit = f"SELECT pg_logical_emit_message(false, 'lost', repeat('x', {RECORD_BYTES}))"
    primary.sql("SET synchronous_commit = local", emit, "CREATE TABLE flushed ()")
    wait_until(lambda: committed(cluster) > next_segment)
    primary.kill()
    cluster.proposers[-1].kill()
    assert committed(cluster) < min(next_segment + SEGMENT_BYTES, start + RECORD_BYTES)
    return start


def committed(cluster: Cluster) -> int:
    """Return the LSN that every safekeeper has committed."""
    return min(lsn_of(line["commit_lsn"]) for line in cluster.status()["safekeepers"])


def rebuilt(backup: PostgresServer, wal: Path) -> None:
    """Make `backup` the primary, by a crash recovery with the safekeepers' WAL."""
    for segment in wal.iterdir():
        shutil.copy2(segment, backup.data / "pg_wal" / segment.name)
    shutil.rmtree(wal)
    own(backup.data)
    backup.start()
    backup.sql("SELECT pg_create_physical_replication_slot('walkeeper', true)")


def test_a_standby_and_pg_receivewal_go_on_after_a_rebuilt_primary(
    cluster: Cluster, primary: PostgresServer
) -> None:
    with contextlib.ExitStack() as stack:
        backup = primary.base_backup()
        stack.callback(backup.delete)
        standby = stack.enter_context(standby_of(primary, cluster.ports[0]))
        received = stack.enter_context(pg_receivewal(cluster.ports[1]))
        valve = stack.enter_context(Valve(primary.port))
        cluster.proposer.terminate()
        cluster.new_proposer("metered", dsn=primary.dsn(port=valve.port)).start()
        with Journal(primary) as journal:
            journal.wait_for_more(100)
        start = lose_the_primary_inside_a_record(cluster, primary, valve)
        served = lsn_of(identified(cluster, 3)[2])
        settled = lsn_of(cluster.settle()["consensus_lsn"])
        assert start <= served == settled < start + WAL_PAGE_BYTES
        wait_replayed(standby, settled)

        rebuilt(backup, assembled_wal(cluster, (1, 2, 3)))
        cluster.new_proposer("rebuilt", dsn=backup.dsn()).start()
        with Journal(backup, record_bytes=3_000_000) as later:
            later.wait_for_more(100)
        wait_replayed(standby, lsn_of(backup.sql("SELECT pg_current_wal_flush_lsn()")))
        assert not journal.lost_in(standby) and not later.lost_in(standby)
        cluster.primary = backup
        switched = lsn_of(backup.sql("SELECT pg_switch_wal()"))
        cluster.wait_all_equal()
        name = segment_name(1, Lsn(switched - 1), SEGMENT_BYTES)
        wait_until((received / name).exists)
        assert assert_same_wal(cluster.wal_dir(1), received, switched, SEGMENT_BYTES) > 1
