"""The command into Delta and Iceberg: killed while it writes, equal to the primary at last."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.replay.test_change_stream_postgres import SETTINGS
from tests.replay.test_lake_mirrors_postgres import (
    FILL,
    TABLES,
    Delta,
    Iceberg,
    Log,
    as_text,
    read,
    rows_of,
    work,
)
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import LIMIT_S, wait_until
from walkeeper_cli.program import run

pytest.importorskip("deltalake", reason="pip install 'walkeeper[lake]'")
pytest.importorskip("pyiceberg", reason="pip install 'walkeeper[lake]'")
pytestmark = [
    pytest.mark.postgres,
    pytest.mark.soak,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
ROUNDS, KILLS = 8, 3


class LongLog(Log):
    """More of that work, so that a stream has several windows."""

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        server.sql("CREATE TABLE early (id int PRIMARY KEY, t text)")
        server.sql("INSERT INTO early SELECT i, 'early' FROM generate_series(1, 100) i")
        server.stop()
        self.base, self.wal = folder / "base", folder / "wal"
        shutil.copytree(server.data, self.base)
        server.start()
        work(server)
        for number in range(ROUNDS):
            for _ in range(4):
                server.sql(FILL)
            server.sql(f"INSERT INTO early VALUES ({5000 + number}, 'late')")
            server.sql("UPDATE early SET t = t || '.' WHERE id % 3 = 0")
            server.sql(f"UPDATE pairs SET n = n + 1 WHERE a % {number + 2} = 0")
            server.sql(f"DELETE FROM pairs WHERE a = {20 + number}")
        self.rows = {name: rows_of(server, name) for name in TABLES}
        server.stop()
        shutil.copytree(server.data / "pg_wal", self.wal)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LongLog]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        yield LongLog(server, tmp_path_factory.mktemp("log"))


def arguments(log: Log, tmp_path: Path, to: str, mode: str) -> list[str]:
    tables = [part for name in TABLES for part in ("--table", name)]
    return ["history", "stream", "--path", str(log.wal), "--base", str(log.base), *tables,
            "--database", "postgres", "--to", to, "--mode", mode, "--save-every", "1",
            "--interval", "50ms", "--state", str(tmp_path / "state")]  # fmt: skip


def killed(asked: list[str], folder: Path, random: Random) -> None:
    """Run the command and kill it soon after it has written something, or at the end of the log."""
    before = len([*folder.rglob("*")])

    def has_written(process: subprocess.Popen[bytes]) -> bool:
        return process.poll() is not None or len([*folder.rglob("*")]) > before

    with subprocess.Popen([sys.executable, "-m", "walkeeper_cli", *asked]) as process:
        wait_until(partial(has_written, process), LIMIT_S)
        try:
            process.wait(random.random())
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("mode", ["append", "mirror", "scd2"])
@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_the_command_is_killed_and_its_tables_are_the_primarys(
    log: LongLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, mode: str
) -> None:
    """pyiceberg's own configuration names the catalog, as a user's does."""
    random = Random(f"{kind} {mode}")
    lake: Any = Iceberg(tmp_path / "lake") if kind == "iceberg" else Delta(tmp_path / "lake")
    (tmp_path / "lake" / "to").mkdir(parents=True, exist_ok=True)
    (tmp_path / ".pyiceberg.yaml").write_text(
        f"catalog:\n  lake:\n    type: sql\n    uri: sqlite:///{tmp_path}/lake/catalog.db\n"
        f"    warehouse: file://{tmp_path}/lake/to\n"
    )
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    name = {"append": "lake/shop.changes"}.get(mode, "lake/shop")
    to = f"iceberg:{name}" if kind == "iceberg" else f"delta:{tmp_path}/lake/to"
    asked = arguments(log, tmp_path, to, mode)
    for _ in range(KILLS):
        killed(asked, tmp_path / "lake", random)
    once = [sys.executable, "-m", "walkeeper_cli", *asked, "--once"]
    assert subprocess.run(once, timeout=LIMIT_S, check=False).returncode == 0
    if mode == "append":
        assert appended(lake, tmp_path) == expected_changes(log, tmp_path)
        return
    for table in TABLES:
        rows, columns = read(lake, table)
        if mode == "scd2":
            rows = [row for row in rows if row["valid_to_lsn"] is None]
        names = [each for each in columns if not each.startswith("valid_")]
        assert as_text(rows, names) == log.rows[table], table


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["commit_lsn"], row["start_lsn"], str(row["new"])))


def appended(lake: Any, tmp_path: Path) -> list[dict[str, Any]]:
    if isinstance(lake, Iceberg):
        return in_order(lake.catalog.load_table("shop.changes").scan().to_arrow().to_pylist())
    import deltalake

    table = deltalake.DeltaTable(str(tmp_path / "lake" / "to"))
    return in_order(table.to_pyarrow_table().to_pylist())


def expected_changes(log: Log, tmp_path: Path) -> list[dict[str, Any]]:
    output = tmp_path / "changes.parquet"
    tables = [part for name in TABLES for part in ("--table", name)]
    asked = ["history", "changes", "--path", str(log.wal), "--base", str(log.base), *tables,
             "--database", "postgres", "-o", str(output)]  # fmt: skip
    assert run(asked) == 0
    return in_order(pq.read_table(output).to_pylist())
