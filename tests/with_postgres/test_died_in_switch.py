"""A server that dies while it pads a segment behind a switch, and what is committed behind that.

PostgreSQL writes the zeros behind an XLOG_SWITCH in many writes. In a recycled segment older pages
stay where it did not come to. Its recovery goes on in the next segment without a look at them, and
so must ours. Otherwise it takes the log to end at the switch and cuts acknowledged commits after
it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.history.reading_whole import unexpected, whole_stats
from tests.support.cluster import Cluster, lsn_of
from tests.support.postgres_server import PostgresServer
from tests.support.recovery import assembled_wal, recovered
from tests.support.standbys import standby_of, wait_replayed
from tests.support.waiting import wait_until
from walkeeper_common.lsn import WAL_PAGE_BYTES, parse_segment_name
from walkeeper_common.postgres.walpages import page_header

pytestmark = pytest.mark.postgres

SEGMENT_BYTES = 16 << 20
ZEROS_WRITTEN = 3  # writes before it dies
FILL = "SELECT pg_logical_emit_message(true, 'x', repeat(md5(random()::text), 480000))"


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with PostgresServer.create({"wal_keep_size": "64MB"}) as server:
        yield server


def recycle_segments(server: PostgresServer) -> None:
    """Make the server recycle segments: the next ones are full of older pages."""
    server.configure({"wal_keep_size": "0"})
    server.reload()
    for _ in range(4):
        server.sql(FILL, "SELECT pg_switch_wal()")
    server.sql("CHECKPOINT", "CHECKPOINT")
    server.configure({"wal_keep_size": "64MB"})
    server.reload()


def die_in_a_switch(server: PostgresServer, trace: Path) -> None:
    inject = f"inject=pwrite64:signal=SIGKILL:when={ZEROS_WRITTEN}"
    with server.connect() as session:
        session.execute("SELECT pg_logical_emit_message(true, 'x', 'so that there is one')")
        pid = str(session.info.backend_pid)
        tracer = subprocess.Popen(
            ["strace", "-f", "-p", pid, "-e", "trace=pwrite64", "-e", inject, "-o", str(trace)],
            stderr=subprocess.PIPE,
            text=True,
        )
        with tracer:
            assert tracer.stderr is not None and "attached" in tracer.stderr.readline()
            with pytest.raises(psycopg.OperationalError):
                session.execute("SELECT pg_switch_wal()")
    wait_until(lambda: accepts(server))


def accepts(server: PostgresServer) -> bool:
    try:
        return bool(server.sql("SELECT true"))
    except psycopg.OperationalError:
        return False


def has_old_pages(segment: Path) -> bool:
    """Return True if a page says that it belongs to another segment."""
    data, begin_lsn = segment.read_bytes(), parse_segment_name(segment.name, SEGMENT_BYTES)[1]
    headers = (page_header(data[at : at + 40]) for at in range(0, SEGMENT_BYTES, WAL_PAGE_BYTES))
    return any(0 < header.page_lsn < begin_lsn for header in headers)


def test_commits_after_a_half_padded_segment_are_kept(
    primary: PostgresServer, tmp_path: Path
) -> None:
    recycle_segments(primary)
    backup = primary.base_backup()
    with Cluster.create(primary) as cluster, standby_of(primary, cluster.ports[0]) as standby:
        primary.sql("SELECT pg_switch_wal()", "CREATE TABLE kept (n int)")
        primary.sql("INSERT INTO kept VALUES (1)")
        segment = primary.sql("SELECT pg_walfile_name(pg_current_wal_lsn())")
        die_in_a_switch(primary, tmp_path / "trace")
        primary.sql("INSERT INTO kept VALUES (2)")
        assert has_old_pages(primary.data / "pg_wal" / segment)
        for safekeeper in cluster.safekeepers:
            safekeeper.kill()
        cluster.proposer.kill()
        primary.kill()
        for safekeeper in cluster.safekeepers:
            safekeeper.start()
        end = lsn_of(cluster.settle()["consensus_lsn"])
        wait_replayed(standby, end)
        assert standby.rows("SELECT n FROM kept ORDER BY n") == [(1,), (2,)]
        wal = assembled_wal(cluster, [1, 2, 3])
        stats, _, problems = whole_stats(wal)
        assert not unexpected(problems) and stats.end_lsn == end
        with recovered(backup, wal) as server:
            assert server.rows("SELECT n FROM kept ORDER BY n") == [(1,), (2,)]
    backup.delete()
