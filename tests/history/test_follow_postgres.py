"""A log that is being written is followed: every record once, as soon as it is there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.postgres_server import PostgresServer
from tests.support.waiting import LIMIT_S, wait_until
from walkeeper_common.lsn import Lsn
from walkeeper_history.follow import Follower, log_end
from walkeeper_history.tables import table
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan

pytestmark = pytest.mark.postgres


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    # Without wal_keep_size: segments are recycled under new names while they are followed.
    settings = {"min_wal_size": "2MB", "max_wal_size": "8MB", "fsync": "off"}
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as made:
        yield made


def test_a_running_server_is_followed_over_recycled_segments(server: PostgresServer) -> None:
    files = open_files(str(server.data / "pg_wal"))
    server.sql("CREATE TABLE t (id int PRIMARY KEY, b text)", "CHECKPOINT")
    follower = Follower(
        files,
        table("records", ["start_lsn", "end_lsn", "prev_lsn"]),
        log_end(files, make_plan(files)),
    )
    rows: list[dict[str, Any]] = []

    def read() -> None:
        for batch in follower.new_rows():
            rows.extend(batch.to_pylist())

    read()
    for number in range(12):
        fill = f"SELECT i, repeat('x', 300) FROM generate_series({number}000, {number}999) i"
        server.sql(f"INSERT INTO t {fill}")
        read()
        if number % 4 == 1:
            server.sql("SELECT pg_switch_wal()")
            read()
            server.sql("CHECKPOINT")  # recycles what has been read
    end = Lsn.parse(server.sql("SELECT pg_current_wal_flush_lsn()"))

    def has_all() -> bool:
        read()
        return follower.next_lsn >= end

    wait_until(has_all)
    starts = [row["start_lsn"] for row in rows]
    segments = sorted(path.name for path in (server.data / "pg_wal").glob("0*"))
    assert int(segments[0][16:], 16) > 3, "some were recycled"
    assert len(rows) > 12_000 and len(set(starts)) == len(starts) and starts == sorted(starts)
    assert [row["prev_lsn"] for row in rows[1:]] == starts[:-1], "none is left out"


def test_tail_shows_a_commit_within_its_interval(server: PostgresServer, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "walkeeper_cli", "history", "tail", "--json"),
                *("--path", str(server.data / "pg_wal"), "--interval", "100ms"),
                *("--columns", "start_lsn,xid,kind,time"),
            ],
            stdout=file,
        )
    try:
        xids: list[int] = []

        def shown() -> bool:
            xids.append(int(server.sql("SELECT txid_current()")))
            whole = output.read_text().rpartition("\n")[0]  # the last one may be half written
            lines = [json.loads(line) for line in whole.splitlines()]
            return any(line["xid"] in xids and line["kind"] == "commit" for line in lines)

        wait_until(shown)
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait(LIMIT_S)
