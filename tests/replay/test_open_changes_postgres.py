"""Large transactions in a stream: bounded memory, whole changes, and nothing of what was undone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.replay.test_change_stream_postgres import LONG, SETTINGS, Log, rows_of, source_of
from tests.support.postgres_server import PostgresServer
from walkeeper_cli.history import stream as streaming
from walkeeper_replay.changes.change_rows import FoundChanges
from walkeeper_replay.streams.change_windows import ChangeStream, Scope
from walkeeper_replay.streams.spooled_changes import SpooledChanges
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan

pytestmark = pytest.mark.postgres
MEMORY_BYTES = 20_000
WINDOW_BYTES = 1 << 20
BUSY = "INSERT INTO busy SELECT i, repeat('x', 900) FROM generate_series(1, 1500) i"


def work(server: PostgresServer) -> None:
    """Run one transaction over several windows, beside others that commit and roll back."""
    server.sql("CREATE TABLE big (id int PRIMARY KEY, t text)")
    server.sql("CREATE TABLE docs (id int PRIMARY KEY, t text)")
    server.sql("ALTER TABLE docs ALTER t SET STORAGE EXTERNAL")
    server.sql("CREATE TABLE emptied (id int); INSERT INTO emptied VALUES (1)")
    server.sql("CREATE TABLE busy (id int, t text)")
    fill = f"FROM generate_series(1, 4) n; {BUSY}".encode()
    with server.connect() as long, server.connect() as undone:
        long.execute(b"BEGIN; INSERT INTO big SELECT i, 'row ' || i FROM generate_series(1, 900) i")
        long.execute(f"INSERT INTO docs SELECT n, {LONG.format('n')} ".encode() + fill)
        undone.execute(
            b"BEGIN; INSERT INTO big SELECT i, 'undone' FROM generate_series(7000, 7900) i"
        )
        server.sql(BUSY)
        long.execute(b"SAVEPOINT s; INSERT INTO big SELECT i, 'taken back' FROM "
                     b"generate_series(5001, 5900) i; " + BUSY.encode())  # fmt: skip
        long.execute(b"ROLLBACK TO s; SAVEPOINT q")
        server.sql("INSERT INTO big VALUES (100000, 'between')")
        undone.execute(BUSY.encode() + b"; ROLLBACK")
        long.execute(f"UPDATE docs SET t = {LONG.format('id * 7')}; {BUSY}".encode())
        long.execute(b"UPDATE big SET t = t || '!' WHERE id <= 450; RELEASE q")
        # The values out of line are in another part than this update, and then on no page.
        long.execute(b"UPDATE docs SET id = id + 100; " + BUSY.encode())
        long.execute(b"INSERT INTO emptied VALUES (2); TRUNCATE emptied; DELETE FROM docs")
        long.execute(BUSY.encode() + b"; INSERT INTO emptied VALUES (3); COMMIT")
        server.sql("VACUUM docs")
    server.sql("INSERT INTO big VALUES (100001, 'after')")


class LongLog(Log):
    def __init__(self, server: PostgresServer, folder: Path) -> None:
        work(server)
        server.stop()
        self.base, self.wal, self._known = folder / "none", folder / "wal", {}
        shutil.copytree(server.data / "pg_wal", self.wal)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        yield LongLog(server, tmp_path_factory.mktemp("log"))


TABLES = ("big", "docs", "emptied", "busy")


def test_a_large_transaction_comes_in_parts_and_whole(log: Log, tmp_path: Path) -> None:
    """Memory has a bounded part of what is open, and so has each part of what is given."""
    scope, path, files = Scope(TABLES, "postgres"), tmp_path / "state", open_files(str(log.wal))
    parts: list[tuple[int, list[dict[str, Any]]]] = []
    most_pieces, end = 0, -1
    while True:
        stream = ChangeStream.open(path, scope, changes_max_bytes=MEMORY_BYTES)
        with closing(stream):
            stream.segments_max = 1

            def take(found: FoundChanges) -> None:
                parts.append((len(found), rows_of(found.changes(), "postgres")))

            stream.advance_into(files, make_plan(files), take)
            assert stream._waiting.bytes_in_memory <= MEMORY_BYTES
            most_pieces = max(most_pieces, stream._waiting.pieces)
            if stream.position == end:
                break
            end = stream.position
            stream.save()
    rows = [row for _, part in parts for row in part]
    assert rows == log.expected(list(TABLES), None)
    assert not any("undone" in str(row) or "taken back" in str(row) for row in rows)
    assert most_pieces > 3, "it went to the file"
    assert stream._waiting.pieces == 0, "and nothing of it stayed"
    largest = max(len({r["start_lsn"] for r in part}) for _, part in parts)
    long = next(r["commit_lsn"] for r in rows if r["table"] == "docs")
    in_parts = [p for _, p in parts if any(r["commit_lsn"] == long for r in p)]
    assert len(in_parts) > 3 and largest < len(rows) / 3


def test_a_stream_with_a_bound_writes_the_same(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command's own path writes the parts of a window into one file."""
    from tests.replay.test_change_stream_postgres import one_segment, read_back
    from walkeeper_history.change_files import ChangeFiles

    on_disk = []
    real = SpooledChanges.reader

    def reader(self: SpooledChanges) -> Any:
        on_disk.append(self.is_on_disk)
        return real(self)

    monkeypatch.setattr(SpooledChanges, "reader", reader)
    monkeypatch.setattr(ChangeStream, "advance_into", one_segment(ChangeStream.advance_into))
    state, to = tmp_path / "state", tmp_path / "to"
    asked = streaming.Asked(
        Scope(TABLES, "postgres"), state, 1 << 30, True, 1.0, False, changes_max_bytes=MEMORY_BYTES
    )
    assert streaming.stream(source_of(log), asked, ChangeFiles.open(str(to))) == 0
    assert read_back(to) == log.expected(list(TABLES), None)
    assert True in on_disk
    assert not [path for path in state.iterdir() if path.suffix == ".tmp"]


ROWS, MEMORY_MB = 2_000_000, 1600
RUN = """
import resource, sys
from walkeeper_cli.program import run
code = run(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
sys.exit(code)
"""


@pytest.mark.soak
def test_two_million_rows_of_one_transaction_need_bounded_memory(tmp_path: Path) -> None:
    """Most of the memory is the work of a window, as without a large transaction."""
    with PostgresServer.create(SETTINGS) as server:
        server.sql("CREATE TABLE big (id int PRIMARY KEY, t text)")
        server.sql(f"INSERT INTO big SELECT i, repeat('x', 150) FROM generate_series(1, {ROWS}) i")
        server.sql("CHECKPOINT")
        server.stop()
        wal, to = tmp_path / "wal", tmp_path / "to"
        shutil.copytree(server.data / "pg_wal", wal)
    asked = ["history", "stream", "--path", str(wal), "--to", str(to), "--table", "big",
             "--state", str(tmp_path / "state"), "--once"]  # fmt: skip
    done = subprocess.run([sys.executable, "-c", RUN, *asked], stdout=subprocess.PIPE, check=True)
    (found,) = to.glob("changes-*.parquet")
    assert pq.read_metadata(found).num_rows == ROWS
    assert int(done.stdout) < MEMORY_MB, f"{int(done.stdout)} MB"
