"""Mirrors of a transaction of many times the memory: one commit, equal rows, a bounded fold."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.replay.test_change_stream_postgres import SETTINGS, Died, one_segment
from tests.replay.test_lake_mirrors_postgres import Delta, Iceberg, Lake, check_versions, read
from tests.support.postgres_server import PostgresServer
from walkeeper_cli.history import stream as streaming
from walkeeper_cli.history.wal_options import Source
from walkeeper_replay.lakes.change_folds import Fold
from walkeeper_replay.lakes.lake_mirrors import MIRROR, SCD2
from walkeeper_replay.lakes.large_folds import LargeFold, shares_of
from walkeeper_replay.streams.change_windows import ChangeStream, Scope

pytest.importorskip("deltalake", reason="pip install 'walkeeper[lake]'")
pytest.importorskip("pyiceberg", reason="pip install 'walkeeper[lake]'")
pytestmark = [
    pytest.mark.postgres,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
MEMORY_BYTES = 50_000
TABLES = ("big", "pairs", "emptied", "small")
BUSY = "INSERT INTO busy SELECT i, repeat('x', 900) FROM generate_series(1, 900) i"


def work(server: PostgresServer) -> None:
    """Run one transaction over several windows, beside others, on tables that have rows."""
    for statement in (
        "CREATE TABLE busy (id int, t text)",
        "CREATE TABLE big (id int PRIMARY KEY, t text)",
        'CREATE TABLE pairs (d date, "B" text, n numeric, PRIMARY KEY (d, "B"))',
        "CREATE TABLE emptied (id int PRIMARY KEY, t text)",
        "CREATE TABLE small (id int PRIMARY KEY, t text)",
        "INSERT INTO big SELECT i, 'before ' || i FROM generate_series(1, 300) i",
        "INSERT INTO pairs SELECT date '2024-01-01' + i % 5, 'b''' || i, i / 7.0 "
        "FROM generate_series(1, 600) i",
        "INSERT INTO emptied SELECT i, 'before' FROM generate_series(1, 50) i",
        "INSERT INTO small VALUES (1, 'one')",
        BUSY,
    ):
        server.sql(statement)
    with server.connect() as long:
        for statement in (
            "BEGIN; INSERT INTO big SELECT i, 'row ' || i FROM generate_series(301, 2000) i",
            "INSERT INTO emptied SELECT i, 'lost' FROM generate_series(51, 900) i",
            BUSY,
            "UPDATE big SET t = t || '!' WHERE id % 2 = 0; DELETE FROM big WHERE id % 10 = 7",
            'UPDATE pairs SET n = n + 1; UPDATE pairs SET "B" = "B" || \'x\' WHERE n > 9',
            BUSY,
            "TRUNCATE emptied; INSERT INTO emptied SELECT i, 'new' FROM generate_series(40, 700) i",
            "UPDATE small SET t = 'two'; UPDATE big SET id = id + 5000 WHERE id % 100 = 1",
            BUSY,
        ):
            long.execute(statement.encode())
        server.sql("INSERT INTO small VALUES (2, 'between')")
        server.sql("INSERT INTO big VALUES (9999, 'between')")
        for statement in (
            "UPDATE emptied SET t = t || id WHERE id % 3 = 0; ALTER TABLE big ADD later int",
            "UPDATE big SET later = id WHERE id < 20; " + BUSY,
            "COMMIT",
        ):
            long.execute(statement.encode())
    server.sql("DELETE FROM big WHERE id = 2; INSERT INTO small VALUES (3, 'last')")


class Log:
    """The WAL of the work, and what the server had at its end."""

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        work(server)
        self.rows = {name: as_json(server, name) for name in TABLES}
        server.stop()
        self.wal = folder / "wal"
        shutil.copytree(server.data / "pg_wal", self.wal)

    def source(self) -> Source:
        return Source(
            str(self.wal), None, None, None, None, None, "fail", "crc", "auto", False, None
        )


def as_json(server: PostgresServer, name: str) -> list[dict[str, Any]]:
    text = server.sql(f"SELECT json_agg(x) FROM {name} x")
    rows: list[dict[str, Any]] = text if isinstance(text, list) else json.loads(str(text))
    return rows


def plain(rows: list[dict[str, Any]]) -> list[str]:
    """Return rows as texts that do not depend on the types of a lake."""
    return sorted(
        json.dumps({k: float(v) if k == "n" else v for k, v in row.items()}, default=str)
        for row in rows
    )


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        yield Log(server, tmp_path_factory.mktemp("log"))


def streamed(log: Log, folder: Path, lake: Lake, mode: str, bytes_max: int) -> None:
    asked = streaming.Asked(
        Scope(TABLES, "postgres"), folder / "state", 1 << 30, True, 1.0, False, mode,
        changes_max_bytes=bytes_max,
    )  # fmt: skip
    streaming.stream(log.source(), asked, lake.sink(mode))


@pytest.mark.parametrize("mode", [MIRROR, SCD2])
@pytest.mark.parametrize("made_lake", [Delta, Iceberg])
def test_a_large_transaction_is_mirrored_in_shares_and_once(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_lake: type[Lake], mode: str
) -> None:
    """It dies before and after the commits of the large transaction. No share is large."""
    monkeypatch.setattr(ChangeStream, "advance_into", one_segment(ChangeStream.advance_into))
    lake, calls, sizes, totals = made_lake(tmp_path), 0, list[int](), list[int]()
    owner: Any = type(lake.sink(mode))
    replace, fold, folds = owner._replace, LargeFold._fold, LargeFold.folds

    def dying(self: Any, *given: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise Died
        replace(self, *given)
        if calls == 2:
            raise Died

    def measured(self: LargeFold, places: Any) -> Fold:
        made = fold(self, places)
        sizes.append(0 if made.rows is None else made.rows.nbytes)
        return made

    def noted(self: LargeFold) -> Any:
        totals.append(self.size)
        return folds(self)

    monkeypatch.setattr(owner, "_replace", dying)
    monkeypatch.setattr(LargeFold, "_fold", measured)
    monkeypatch.setattr(LargeFold, "folds", noted)
    deaths = 0
    while deaths < 5:
        try:
            streamed(log, tmp_path, lake, mode, MEMORY_BYTES)
            break
        except Died:
            deaths += 1
    assert deaths == 2 and calls == 4, "three tables are large, and one of them was written again"
    assert max(totals) > 3 * MEMORY_BYTES
    assert max(sizes) < MEMORY_BYTES, "memory has a share"
    once = made_lake(tmp_path / "once")
    if mode == SCD2:
        streamed(log, tmp_path / "once", once, mode, 1 << 30)
    for name in TABLES:
        rows, names = read(lake, name)
        if mode == SCD2:
            expected, _ = read(once, name)
            assert plain([{n: row[n] for n in names} for row in expected]) == plain(rows), name
            if name != "pairs":
                check_versions(rows, name)
            rows = [row for row in rows if row["valid_to_lsn"] is None]
            names = [n for n in names if not n.startswith("valid_")]
        found = [{n: row[n] for n in names} for row in rows]
        wanted = [{n: row[n] for n in names} for row in log.rows[name]]
        assert plain(found) == plain(wanted), name


def test_a_key_is_in_one_share_whatever_its_type() -> None:
    keys = {
        "i": pa.array([1, -7, 1 << 40], pa.int64()),
        "t": pa.array(["a", "", "é"]),
        "b": pa.array([b"a", b"", b"\xff"]),
        "d": pa.array([1, 2, 3], pa.date32()),
        "n": pa.array([1, 2, 3], pa.decimal128(9, 2)),
    }
    rows = pa.table(keys)
    narrow = pa.table({**keys, "i": pa.array([1, -7, 9], pa.int32())})
    for name in keys:
        shares = shares_of(rows, (name,), 64)
        assert shares.tolist()[::-1] == shares_of(rows.take([2, 1, 0]), (name,), 64).tolist()
        assert shares.tolist()[:2] == shares_of(narrow, (name,), 64).tolist()[:2]
    assert len(set(shares_of(pa.table({"i": range(1000)}), ("i",), 64).tolist())) > 60


ROWS, BOUND_MB, MORE_MB = 1_500_000, 16, 400
RUN = """
import resource, sys
from walkeeper_cli.program import run
code = run(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
sys.exit(code)
"""


@pytest.mark.soak
def test_a_mirror_of_a_large_transaction_needs_little_more_memory_than_a_small_one(
    tmp_path: Path,
) -> None:
    """The same command mirrors 1,500,000 rows in one transaction, and in 150."""
    needed = {}
    for count in (1, 150):
        with PostgresServer.create(SETTINGS) as server:
            server.sql("CREATE TABLE big (id int PRIMARY KEY, t text)")
            each = ROWS // count
            for begin in range(0, ROWS, each):
                server.sql(
                    f"INSERT INTO big SELECT {begin} + i, repeat('x', 150) || i "
                    f"FROM generate_series(1, {each}) i"
                )
            server.stop()
            wal, to = tmp_path / f"wal{count}", tmp_path / f"to{count}"
            shutil.copytree(server.data / "pg_wal", wal)
        asked = ["history", "stream", "--path", str(wal), "--to", f"delta:{to}", "--table", "big",
                 "--mode", "mirror", "--change-memory", str(BOUND_MB), "--once",
                 "--state", str(tmp_path / f"state{count}")]  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", RUN, *asked], stdout=subprocess.PIPE, check=True
        )
        needed[count] = int(done.stdout)
        shutil.rmtree(wal)
    assert needed[1] < needed[150] + MORE_MB, needed
