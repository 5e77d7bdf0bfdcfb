"""Delta and Iceberg as sinks: each change once through any death, and none of another log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.replay.test_change_stream_postgres import (
    SETTINGS,
    Died,
    Log,
    die_at_each_second,
    one_segment,
    source_of,
)
from tests.support.postgres_server import PostgresServer
from walkeeper_cli.history import stream as streaming
from walkeeper_common.lsn import Lsn
from walkeeper_replay.changes.change_rows import SCHEMA
from walkeeper_replay.lakes.lake_tables import LSN, DeltaChanges, IcebergChanges
from walkeeper_replay.streams.change_windows import ChangeStream, Scope
from walkeeper_wal.wal_errors import HistoryError

pytest.importorskip("deltalake", reason="pip install 'walkeeper[lake]'")
pytest.importorskip("pyiceberg", reason="pip install 'walkeeper[lake]'")
pytestmark = [
    pytest.mark.postgres,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
Sink = DeltaChanges | IcebergChanges
Rows = list[dict[str, Any]]


class Delta:
    def __init__(self, folder: Path) -> None:
        self.url = str(folder / "delta")

    def sink(self) -> DeltaChanges:
        return DeltaChanges(self.url)

    def rows(self) -> Rows:
        import deltalake

        rows: Rows = deltalake.DeltaTable(self.url).to_pyarrow_table().to_pylist()
        return rows

    def commits(self) -> list[str]:
        import deltalake

        commits = deltalake.DeltaTable(self.url).history()
        return [commit[LSN] for commit in commits if commit["operation"] == "WRITE"]


class Iceberg:
    def __init__(self, folder: Path) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        self._catalog = SqlCatalog(
            "lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}"
        )

    def sink(self) -> IcebergChanges:
        return IcebergChanges("lake", "db.changes", opened=self._catalog)

    def rows(self) -> Rows:
        rows: Rows = self._catalog.load_table("db.changes").scan().to_arrow().to_pylist()
        return rows

    def commits(self) -> list[str]:
        snapshots = self._catalog.load_table("db.changes").snapshots()
        return [each.summary.additional_properties[LSN] for each in snapshots if each.summary]


Lake = Callable[[Path], Delta | Iceberg]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        yield Log(server, tmp_path_factory.mktemp("log"))


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: (row["commit_lsn"], row["start_lsn"], str(row["new"])))


@pytest.mark.parametrize(("lake", "is_done"), [(Delta, True), (Iceberg, True), (Delta, False)])
def test_a_death_at_a_commit_loses_and_repeats_nothing(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lake: Lake, is_done: bool
) -> None:
    """It dies before or after each second commit of changes."""
    table, deaths = lake(tmp_path), 0
    die_at_each_second(monkeypatch, type(table.sink()), "write", is_done=is_done)
    monkeypatch.setattr(ChangeStream, "advance_into", one_segment(ChangeStream.advance_into))
    scope = Scope((), "postgres", str(log.base))
    state = tmp_path / "state"
    asked = streaming.Asked(scope, state, 1 << 20, True, 1.0, False, changes_max_bytes=1000)
    for _ in range(30):
        try:
            streaming.stream(source_of(log), asked, table.sink())
            break
        except Died:
            deaths += 1
    assert deaths >= 2
    assert in_order(table.rows()) == in_order(log.expected([], log.base))
    ends = [int(Lsn.parse(lsn)) for lsn in table.commits()]
    assert len(set(ends)) == len(ends) > 2
    assert table.sink().position() >= max(row["commit_lsn"] for row in table.rows())


@pytest.mark.parametrize("lake", [Delta, Iceberg])
def test_another_log_and_a_second_writer_are_refused(tmp_path: Path, lake: Lake) -> None:
    table = lake(tmp_path)
    first, second = table.sink(), table.sink()
    for sink in (first, second):
        sink.refuse_other({"system": "1", "tables": ["a"]})
        assert sink.position() == 0
    row = dict.fromkeys(SCHEMA.names) | {"start_lsn": 5, "commit_lsn": 9}
    made = SCHEMA.empty_table().from_pylist([row], SCHEMA)
    first.write(made.to_reader(), 0, 16)
    with pytest.raises(HistoryError, match="another stream writes here"):
        second.write(made.to_reader(), 0, 24)
    assert second.position() == 16 and len(table.rows()) == 1
    first.beat(16, {})
    first.beat(32, {})
    assert second.position() == 32 and len(table.rows()) == 1
    with pytest.raises(HistoryError, match="has changes with tables"):
        second.refuse_other({"system": "1", "tables": ["b"]})
