"""WAL as PostgreSQL 13 to 18 write it, as a recovery of ours walks it: nothing in it is refused.

The walk wants zeros where no CRC looks, and this system's pages of the right timelines. A server
that wrote anything else there would lose acknowledged WAL at a safekeeper's next start.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from tests.support.installations import NPM_PACKAGES, WHEELS, binaries_or_skip, versions
from tests.support.postgres_server import PostgresServer, installation
from walkeeper_common.history import NO_BALLOT, Fragment
from walkeeper_common.lsn import Lsn, parse_segment_name
from walkeeper_common.timelines import Timelines, parse_timeline_file
from walkeeper_safekeeper.disk.real_disk import RealDisk
from walkeeper_safekeeper.storage.wal_store import WalStore

pytestmark = pytest.mark.postgres

SEGMENT_BYTES = 1 << 20
CRASHES = 6
ODD_SIZES = """SELECT pg_logical_emit_message(i % 2 = 0, 'x', repeat('y', i))
    FROM generate_series({}) i"""
INSERT_LSN = "SELECT pg_current_wal_insert_lsn()::text"
LARGE = "SELECT pg_logical_emit_message(false, 'x', repeat('z', 60000000))"


@pytest.fixture(params=versions([*WHEELS, *NPM_PACKAGES]), ids=lambda major: f"PostgreSQL {major}")
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    settings = {"wal_keep_size": "900MB", "wal_level": "logical", "restore_command": "false"}
    with contextlib.ExitStack() as stack:
        stack.enter_context(installation(binaries_or_skip(request.param)))
        made = PostgresServer.create(settings, initdb_options=["--wal-segsize=1"])
        yield stack.enter_context(made)


def crash_while_writing(server: PostgresServer) -> None:
    """Kill it; most of these kills leave a record that was begun."""

    def write() -> None:
        with contextlib.suppress(psycopg.OperationalError):
            server.sql(LARGE)

    writer = threading.Thread(target=write)
    begin_lsn = Lsn.parse(server.sql(INSERT_LSN))
    writer.start()
    while writer.is_alive() and Lsn.parse(server.sql(INSERT_LSN)) == begin_lsn:
        time.sleep(0.002)
    server.kill()
    writer.join()
    server.start()


def promote(server: PostgresServer) -> None:
    """Promote it to a new timeline, inside a page."""
    server.stop()
    (server.data / "standby.signal").touch()
    server.start()
    server.promote()


def first_kept(server: PostgresServer) -> Lsn:
    names = (path.name for path in (server.data / "pg_wal").iterdir())
    name = min(name for name in names if re.fullmatch(r"[0-9A-F]{24}", name))
    return parse_segment_name(name, SEGMENT_BYTES)[1]


def store_of(server: PostgresServer, first_lsn: Lsn) -> WalStore:
    """Return its pg_wal as a safekeeper would have it after a start."""
    wal = server.data / "pg_wal"
    newest = max(wal.glob("0*.history"))
    ends = parse_timeline_file(newest.read_bytes())
    begins = [first_lsn, *(end for _, end in ends)]
    timelines = [*(timeline for timeline, _ in ends), int(newest.name[:8], 16)]
    history = [
        Fragment(NO_BALLOT, begin, timeline, False, (), 1)
        for begin, timeline in zip(begins, timelines, strict=True)
    ]
    system_id = server.sql("SELECT system_identifier::text FROM pg_control_system()")
    store = WalStore(
        RealDisk(str(wal), reserve_bytes=0),
        segment_bytes=SEGMENT_BYTES,
        timelines=Timelines(history),
        system_id=int(system_id),
    )
    store.adopt(store.found_files(), first_lsn, head_known=True)
    return store


def test_a_scan_ends_where_the_server_does(server: PostgresServer) -> None:
    first_lsn = first_kept(server)
    for round_ in range(CRASHES):
        server.sql(ODD_SIZES.format("0, 700"), f"CREATE TABLE t{round_} (a text)")
        server.sql(ODD_SIZES.format("7900, 8300, 7"), "SELECT pg_switch_wal()")
        server.sql(ODD_SIZES.format("1, 300, 3"))
        if round_ % 2:
            promote(server)
        else:
            crash_while_writing(server)
    server.sql(ODD_SIZES.format("0, 100"))
    flush_lsn = Lsn.parse(server.sql("SELECT pg_current_wal_flush_lsn()::text"))
    found = store_of(server, first_lsn).scan(first_lsn, flush_lsn)
    assert found.end_lsn == flush_lsn, f"{found=} {flush_lsn=}"
