"""Changes as a stream: what all of the WAL gives, window by window, and once through any death."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.postgres_server import PostgresServer
from tests.support.s3_server import BUCKET, s3_server
from tests.support.waiting import LIMIT_S, wait_until
from walkeeper_cli.history import stream as streaming
from walkeeper_cli.history.wal_options import Source
from walkeeper_cli.program import run
from walkeeper_history.change_files import BEAT, CLAIM, Bucket, ChangeFiles
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.changes.change_reader import ChangeReader
from walkeeper_replay.changes.change_rows import SCHEMA, batches
from walkeeper_replay.redo.apply import SLOTS
from walkeeper_replay.redo.base import BaseDirectory
from walkeeper_replay.redo.bounded_pages import PAGES_MIN
from walkeeper_replay.streams.change_windows import PAGES_MAX, ChangeStream, Scope
from walkeeper_replay.streams.one_stream import STATE, only_one
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan
from walkeeper_wal.wal_errors import HistoryError

pytestmark = pytest.mark.postgres
Output = pytest.CaptureFixture[str]
SETTINGS = {"wal_keep_size": "2GB", "max_prepared_transactions": "9", "fsync": "off"}
LONG = "(SELECT string_agg(md5((i * {0})::text), '') FROM generate_series(1, 300) i)"


def work(server: PostgresServer) -> None:
    """Run sessions that overlap over many segments, with values out of line and DDL."""

    def fill() -> None:
        server.sql(
            "INSERT INTO busy SELECT i, (SELECT string_agg(md5((i * n)::text), '') FROM "
            "generate_series(1, 55) n) FROM generate_series(1, 600) i"
        )

    server.sql("CREATE TABLE busy (id int, t text)")
    server.sql("CREATE TABLE docs (id int PRIMARY KEY, t text)")
    server.sql("ALTER TABLE docs ALTER t SET STORAGE EXTERNAL")
    with server.connect() as first, server.connect() as second, server.connect() as third:
        first.execute(b"BEGIN; CREATE TABLE late (id int, t text)")
        first.execute(f"INSERT INTO late VALUES (1, {LONG.format(1)})".encode())
        second.execute(f"INSERT INTO docs SELECT n, {LONG.format('n')} FROM generate_series(1, 9) n"
                       .encode())  # fmt: skip
        second.execute(b"BEGIN; UPDATE docs SET t = t || 'a' WHERE id < 4; SAVEPOINT s")
        second.execute(b"DELETE FROM docs WHERE id = 9; ROLLBACK TO s; SAVEPOINT q")
        second.execute(b"DELETE FROM docs WHERE id = 8; RELEASE q")
        fill()
        third.execute(b"BEGIN; DELETE FROM docs WHERE id = 7; PREPARE TRANSACTION 'p'")
        fill()
        first.execute(b"INSERT INTO late VALUES (2, 'short'); COMMIT")
        second.execute(b"COMMIT")
        server.sql("VACUUM docs")
        third.execute(b"COMMIT PREPARED 'p'")
    server.sql("CHECKPOINT")
    server.sql("ALTER TABLE docs ADD extra int DEFAULT 5")
    server.sql("UPDATE docs SET extra = id")
    server.sql("VACUUM FULL pg_class")
    fill()
    server.sql("UPDATE docs SET id = id + 100")
    server.sql("TRUNCATE late")
    server.sql("INSERT INTO late VALUES (3, 'after')")
    server.sql("VACUUM FULL docs")
    server.sql("DELETE FROM docs WHERE id = 101")
    fill()
    server.sql("DROP TABLE busy")


class Log:
    """The WAL of the work, a base backup of before it, and its changes by ChangeReader."""

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        server.sql("CREATE TABLE early (id int, t text)")
        server.sql("INSERT INTO early SELECT i, 'early' FROM generate_series(1, 100) i")
        server.stop()
        self.base = folder / "base"
        shutil.copytree(server.data, self.base)
        server.start()
        server.sql("DELETE FROM early WHERE id % 2 = 0")
        work(server)
        server.stop()
        self.wal = folder / "wal"
        shutil.copytree(server.data / "pg_wal", self.wal)

        self._known: dict[str, list[dict[str, Any]]] = {}

    def expected(self, tables: list[str], base: Path | None) -> list[dict[str, Any]]:
        """Return the rows of `changes`; each once made."""
        key = f"{tables} {base}"
        if key not in self._known:
            self._known[key] = self._read(tables, base)
        return self._known[key]

    def _read(self, tables: list[str], base: Path | None) -> list[dict[str, Any]]:
        files = open_files(str(self.wal))
        at = None if base is None else BaseDirectory(str(base))
        plan = make_plan(files, start_lsn=None if at is None else at.redo_lsn)
        history = CatalogHistory.read(files, plan, base=at)
        database = history.database(history.end_lsn, "postgres")
        reader = ChangeReader(files, plan, history, database, at)
        return rows_of(reader.read(tables), database.name)


def rows_of(changes: Any, database: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.Table.from_batches(
        batches(changes, database), SCHEMA
    ).to_pylist()
    return rows


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        yield Log(server, tmp_path_factory.mktemp("log"))


@pytest.mark.parametrize(
    ("tables", "over_base"), [([], True), ([], False), (["docs", "late"], True)]
)
@pytest.mark.parametrize("pages_max", [PAGES_MIN, PAGES_MAX])
def test_windows_give_what_all_wal_gives(
    log: Log, tmp_path: Path, tables: list[str], over_base: bool, pages_max: int
) -> None:
    """The state is saved and loaded after each window of one segment."""
    base = log.base if over_base else None
    expected = log.expected(tables, base)
    scope = Scope(tuple(tables), "postgres", None if base is None else str(base))
    found, path, most = [], tmp_path / "state", 0
    stream = ChangeStream.open(path, scope, pages_max=pages_max)
    files = open_files(str(log.wal))
    start = None if base is None else BaseDirectory(str(base)).redo_lsn
    windows = 0
    while True:
        before, stream.segments_max = stream.position, 1
        new = stream.advance(files, make_plan(files, start_lsn=start))
        found += rows_of(new.changes(), "postgres")
        made = pa.Table.from_batches(new.batches("postgres", 5), SCHEMA).to_pylist()
        assert made == rows_of(new.changes(), "postgres"), "by columns and one by one"
        if stream.position == before:
            break
        windows += 1
        most = max(most, pages_in_memory(stream))
        stream.save()
        stream.close()
        stream = ChangeStream.open(path, scope, pages_max=pages_max)
    stream.close()
    assert windows > 4 and most <= pages_max
    assert found == expected and len(found) > 30
    assert {row["operation"] for row in found} == {"insert", "update", "delete", "truncate"}


def pages_in_memory(stream: ChangeStream) -> int:
    assert stream._pages is not None, "a window was read"
    return int(stream._pages.counts[SLOTS])


def command(log: Log, to: Path, state: Path, *more: str) -> list[str]:
    return ["history", "stream", "--path", str(log.wal), "--base", str(log.base), "--database",
            "postgres", "--to", str(to), "--state", str(state), *more]  # fmt: skip


def read_back(to: Path) -> list[dict[str, Any]]:
    """Return the rows of all files, in the order of their names; their ranges share no LSN."""
    rows: list[dict[str, Any]] = []
    end = 0
    for path in sorted(to.glob("changes-*.parquet")):
        first, last = (int(part, 16) for part in path.stem.split("-")[1:])
        part = pq.read_table(path).to_pylist()
        assert end <= first < last
        assert all(first < row["commit_lsn"] <= last for row in part)
        rows, end = rows + part, last
    return rows


class Died(Exception):
    """The process ends here."""


def die_at_each_second(
    monkeypatch: pytest.MonkeyPatch, owner: Any, step: str, *, is_done: bool
) -> None:
    """Let each second call of this method end the process: when it is done, or before it begins."""
    real, count = getattr(owner, step), 0

    def dying(self: Any, *given: Any) -> None:
        nonlocal count
        count += 1
        if count % 2 == 0 and not is_done:
            raise Died
        real(self, *given)
        if count % 2 == 0:
            raise Died

    monkeypatch.setattr(owner, step, dying)


@pytest.mark.parametrize(
    ("step", "is_done"), [("write", False), ("write", True), ("beat", False), ("save", True)]
)
def test_a_death_at_any_step_loses_and_repeats_nothing(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, is_done: bool
) -> None:
    """It dies before or after each second write, position or saved state, again and again."""
    owner: Any = ChangeStream if step == "save" else ChangeFiles
    die_at_each_second(monkeypatch, owner, step, is_done=is_done)
    monkeypatch.setattr(ChangeStream, "advance_into", one_segment(ChangeStream.advance_into))
    deaths = 0
    scope = Scope((), "postgres", str(log.base))
    for _ in range(60):
        asked = streaming.Asked(
            scope, tmp_path / "state", 1 << 20, True, 1.0, False, pages_max=PAGES_MIN,
            changes_max_bytes=1000,
        )  # fmt: skip
        try:
            streaming.stream(source_of(log), asked, ChangeFiles.open(str(tmp_path / "to")))
            break
        except Died:
            deaths += 1
    assert deaths >= 2
    assert read_back(tmp_path / "to") == log.expected([], log.base)


def one_segment(real: Any) -> Any:
    def advance(self: ChangeStream, *given: Any) -> Any:
        self.segments_max = 1
        return real(self, *given)

    return advance


def source_of(log: Log) -> Source:
    return Source(str(log.wal), None, None, None, None, None, "fail", "crc", "auto", False, None)


def has_more(to: Path, before: int, end: int) -> bool:
    return before >= end or ChangeFiles.open(str(to)).position() > before


def test_killed_processes_lose_and_repeat_nothing(log: Log, tmp_path: Path) -> None:
    """kill -9 at random times, until one of them comes to the end."""
    random, to, state = Random(7), tmp_path / "to", tmp_path / "state"
    arguments = command(log, to, state, "--save-every", "1", "--interval", "50ms")
    expected = log.expected([], log.base)
    end = max(row["commit_lsn"] for row in expected)
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-m", "walkeeper_cli", *arguments])
        before = ChangeFiles.open(str(to)).position()
        wait_until(partial(has_more, to, before, end), LIMIT_S)
        try:
            process.wait(random.random() / 5)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
        process.wait(LIMIT_S)
    assert run([*arguments, "--once"]) == 0
    assert read_back(to) == expected


def test_a_stream_that_comes_to_the_end_has_a_position_and_writes_nothing_again(
    log: Log, tmp_path: Path, capsys: Output
) -> None:
    to, state = tmp_path / "to", tmp_path / "state"
    assert run(command(log, to, state, "--once")) == 0
    assert read_back(to) == log.expected([], log.base)
    names = sorted(path.name for path in to.iterdir())
    assert BEAT in names
    assert run(command(log, to, state, "--once")) == 0
    assert sorted(path.name for path in to.iterdir()) == names
    assert "0 changes" in capsys.readouterr().err.splitlines()[-1]
    shutil.rmtree(state)
    assert run(command(log, to, state, "--once")) == 0, "without the state it reads all again"
    assert sorted(path.name for path in to.iterdir()) == names


def test_another_scope_a_damaged_state_and_a_lost_sink_are_refused(
    log: Log, tmp_path: Path, capsys: Output
) -> None:
    to, state = tmp_path / "to", tmp_path / "state"
    assert run(command(log, to, state, "--once")) == 0
    assert run(command(log, to, state, "--once", "--table", "docs")) == 1
    assert "was begun for other tables" in capsys.readouterr().err
    assert run(command(log, to, tmp_path / "s", "--once", "--table", "docs")) == 1
    assert "name another --to" in capsys.readouterr().err
    assert run(command(log, tmp_path / "t", state, "--once")) == 1
    assert "remove the state" in capsys.readouterr().err
    path = state / STATE
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert run(command(log, to, state, "--once")) == 1
    assert "damaged, or of another version" in capsys.readouterr().err
    with (
        only_one(state),
        pytest.raises(HistoryError, match="another stream uses"),
        only_one(state),
    ):
        pass


def test_a_log_in_which_the_tables_do_not_change_has_a_position(log: Log, tmp_path: Path) -> None:
    to = tmp_path / "to"
    assert run(command(log, to, tmp_path / "state", "--once", "--table", "not_yet_there")) == 0
    assert {path.name for path in to.iterdir()} == {BEAT, CLAIM}
    beat = ChangeFiles.open(str(to)).last_beat()
    assert beat is not None and beat["tables"] == ["not_yet_there"] and beat["time"]
    last = max(row["commit_lsn"] for row in log.expected([], log.base))
    assert ChangeFiles.open(str(to)).position() >= last


def test_a_log_that_has_become_quiet_has_a_position(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last windows have no change of the table, and no WAL comes after them."""
    monkeypatch.setattr(ChangeStream, "advance_into", one_segment(ChangeStream.advance_into))
    monkeypatch.setattr(ChangeFiles, "beat_s", 3600.0)
    scope = Scope(("docs",), "postgres", str(log.base))
    state, sink = tmp_path / "state", ChangeFiles.open(str(tmp_path / "to"))
    asked = streaming.Asked(scope, state, 1 << 30, False, 1.0, False)
    with (
        only_one(state),
        closing(streaming.Streaming(source_of(log), asked, sink)) as run,
    ):
        while run.advance():
            pass
        end = run._stream.position
        assert sink.position() < end, "not due"
        run._beat_at = 0.0
        assert not run.advance()
        assert sink.position() == end


def test_a_second_stream_with_a_state_of_its_own_is_refused(
    log: Log, tmp_path: Path, capsys: Output
) -> None:
    to = tmp_path / "to"
    assert run(command(log, to, tmp_path / "first", "--once")) == 0
    before = read_back(to)
    assert run(command(log, to, tmp_path / "second", "--once")) == 1
    shown = capsys.readouterr().err
    assert CLAIM in shown and str(tmp_path / "first") in shown and "remove this file" in shown
    assert read_back(to) == before


def test_a_stream_reads_and_writes_buckets(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    """WAL and changes lie in S3, and so does the claim of the first stream."""
    with s3_server() as served:
        for name, value in served.environment.items():
            monkeypatch.setenv(name, value)
        wal = Bucket(f"s3://{BUCKET}/main")
        for path in log.wal.iterdir():
            if path.is_file():
                wal.put(path.name, path.read_bytes())
        to = f"s3://{BUCKET}/changes"
        asked = ["history", "stream", "--path", f"s3://{BUCKET}/main", "--base", str(log.base),
                 "--database", "postgres", "--to", to, "--once", "--state"]  # fmt: skip
        assert run([*asked, str(tmp_path / "first")]) == 0, capsys.readouterr().err
        assert run([*asked, str(tmp_path / "second")]) == 1
        assert "another stream" in capsys.readouterr().err
        objects, folder = Bucket(to), tmp_path / "to"
        with pytest.raises(Died), objects.whole("torn") as file:
            file.write(b"half")
            raise Died
        assert objects.get("torn") is None
        folder.mkdir()
        for name in objects.names():
            (folder / name).write_bytes(objects.get(name) or b"")
    assert read_back(folder) == log.expected([], log.base)
