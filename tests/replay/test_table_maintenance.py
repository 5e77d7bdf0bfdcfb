"""Maintenance of lakes' tables: their folders stay bounded, and no reader or position is lost."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support.waiting import LIMIT_S, wait_until
from walkeeper_replay.changes.change_rows import SCHEMA
from walkeeper_replay.lakes import iceberg_maintenance
from walkeeper_replay.lakes.delta_mirrors import DeltaMirrors
from walkeeper_replay.lakes.iceberg_maintenance import AGE, EXPIRED
from walkeeper_replay.lakes.iceberg_mirrors import IcebergMirrors
from walkeeper_replay.lakes.lake_mirrors import MIRROR
from walkeeper_replay.lakes.lake_tables import LSN, DeltaChanges, IcebergChanges
from walkeeper_replay.lakes.table_maintenance import (
    FILES_MIN,
    Maintained,
    Retention,
    merge_target,
)
from walkeeper_wal.wal_errors import HistoryError

deltalake = pytest.importorskip("deltalake", reason="pip install 'walkeeper[lake]'")
pytest.importorskip("pyiceberg", reason="pip install 'walkeeper[lake]'")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
Output = pytest.CaptureFixture[str]
ORDERS: Any = SimpleNamespace(
    oid=7, schema="public", name="orders", shown="public.orders", key=("id",)
)
ALL = np.ones(100, bool)
MONTH, HOUR = Retention(30 * 86400), Retention(3600)


def orders(number: int, first: int = 0) -> Any:
    ids = pa.array(range(first, first + 100), pa.int32())
    return pa.table({"id": ids, "t": [f"text {number}"] * 100})


def change(number: int) -> Any:
    row = dict.fromkeys(SCHEMA.names) | {"start_lsn": number, "commit_lsn": number}
    return SCHEMA.empty_table().from_pylist([row], SCHEMA).to_reader()


def files_in(folder: Path, ending: str) -> set[Path]:
    return {path for path in folder.rglob(f"*{ending}") if not path.name.startswith("_")}


def commits_of(sink: DeltaMirrors | IcebergMirrors) -> Callable[[int], None]:
    """Return a function that writes the orders of a number in a commit of their own."""
    sink._note(ORDERS)

    def commit(number: int) -> None:
        rows, target = orders(number), sink._opened(ORDERS)
        if target is None:
            sink._overwrite(ORDERS, rows, number)
        else:
            sink._merge_rows(ORDERS, rows, ALL, target, number)

    return commit


# Merges


def test_files_are_merged_when_they_are_many_and_each_row_few_times() -> None:
    assert merge_target([1000] * (FILES_MIN - 1), 1 << 20) is None
    assert merge_target([1000] * FILES_MIN, 1 << 20) == FILES_MIN * 1000
    assert merge_target([5 << 20] * 100, 1 << 20) is None  # They are large enough.
    # A large file waits until the small ones are as large as it is, together.
    assert merge_target([1000] * FILES_MIN + [50_000], 1 << 20) == FILES_MIN * 1000
    assert merge_target([1000] * 50 + [50_000], 1 << 20) == 100_000
    assert merge_target([100_000] * 50, 1 << 20) == 1 << 20


def test_a_row_is_written_anew_a_few_times_while_a_table_grows() -> None:
    sizes, written = list[int](), 0
    for _ in range(20_000):
        sizes.append(1000)
        if (target := merge_target(sizes, 1 << 20)) is not None:
            merged = [each for each in sizes if each <= target]
            sizes = [each for each in sizes if each > target] + [sum(merged)]
            written += sum(merged)
        assert len(sizes) < 3 * FILES_MIN
    assert written < 10 * sum(sizes)


# Delta


def mirrored(tmp_path: Path) -> tuple[DeltaMirrors, Callable[[int], None]]:
    sink = DeltaMirrors(str(tmp_path / "to"), MIRROR)
    return sink, commits_of(sink)


def test_a_delta_mirror_stays_bounded_through_many_commits(tmp_path: Path) -> None:
    sink, commit = mirrored(tmp_path)
    url = tmp_path / "to" / "public.orders"
    commit(1)
    deltalake.DeltaTable(url).alter.set_table_properties({"delta.checkpointInterval": "10"})
    written = files_in(url, ".parquet")
    second = Retention(1)
    for number in range(2, 62):
        commit(number)
        written |= files_in(url, ".parquet")
        if number % 10 == 0:
            sink.maintain("public.orders", second, time.time())

    def has_live_files_alone() -> bool:
        sink.maintain("public.orders", second, time.time())
        live = {Path(each).name for each in deltalake.DeltaTable(url).file_uris()}
        return {path.name for path in url.glob("*.parquet")} == live

    assert len(written) >= 60
    wait_until(has_live_files_alone, LIMIT_S)
    assert len([*url.glob("*.parquet")]) < 5
    assert sum(path.stat().st_size for path in url.glob("*.parquet")) < 20_000
    for number in range(62, 90):  # Entries of the log go at a checkpoint.
        commit(number)
    assert not (url / "_delta_log" / f"{5:020}.json").exists()
    again = DeltaMirrors(str(tmp_path / "to"), MIRROR)
    assert again._done(again._opened(ORDERS)) == 89
    assert again.tables() == ["public.orders"]
    rows = deltalake.DeltaTable(url).to_pyarrow_table().to_pylist()
    assert {row["t"] for row in rows} == {"text 89"} and len(rows) == 100


def test_a_reader_of_an_older_delta_version_within_the_retention_reads_on(tmp_path: Path) -> None:
    sink, commit = mirrored(tmp_path)
    url = tmp_path / "to" / "public.orders"
    commit(1)
    for path in url.glob("*.parquet"):  # An old file, which is replaced now.
        os.utime(path, (1, 1))
    reader = deltalake.DeltaTable(url)
    for number in range(2, 8):
        commit(number)
        deltalake.DeltaTable(url).create_checkpoint()
        assert sink.maintain("public.orders", HOUR, time.time()).removed == 0
    assert {row["t"] for row in reader.to_pyarrow_table().to_pylist()} == {"text 1"}
    older = deltalake.DeltaTable(url, version=0).to_pyarrow_table()
    assert {row["t"] for row in older.to_pylist()} == {"text 1"}
    assert deltalake.DeltaTable(url).history(1)[0][LSN] == "0/7"


def test_a_file_that_a_checkpoint_forgot_is_removed(tmp_path: Path) -> None:
    sink, commit = mirrored(tmp_path)
    url = tmp_path / "to" / "public.orders"
    commit(1)
    sink.maintain("public.orders", Retention(1), 0)
    commit(2)
    over_s = time.time() + 1
    wait_until(lambda: time.time() > over_s, LIMIT_S)
    deltalake.DeltaTable(url).create_checkpoint()
    assert deltalake.DeltaTable(url).vacuum(dry_run=True) == []
    assert sink.maintain("public.orders", Retention(1), 0).removed == 1
    assert {row["t"] for row in deltalake.DeltaTable(url).to_pyarrow_table().to_pylist()} == {
        "text 2"
    }


def test_a_default_retention_gives_way_to_the_tables_own(tmp_path: Path) -> None:
    sink, commit = mirrored(tmp_path)
    url = tmp_path / "to" / "public.orders"
    commit(1)
    names = ("delta.deletedFileRetentionDuration", "delta.logRetentionDuration")

    def kept() -> list[str | None]:
        own = deltalake.DeltaTable(url).metadata().configuration
        return [own.get(name) for name in names]

    sink.maintain("public.orders", Retention(5, is_asked=False), 0)
    assert kept() == ["interval 5 seconds"] * 2
    sink.maintain("public.orders", Retention(9, is_asked=False), 0)
    assert kept() == ["interval 5 seconds"] * 2
    sink.maintain("public.orders", MONTH, 0)
    assert kept() == ["interval 2592000 seconds"] * 2
    version = deltalake.DeltaTable(url).version()
    sink.maintain("public.orders", MONTH, 0)
    assert deltalake.DeltaTable(url).version() == version


def test_files_of_others_below_a_delta_table_stay(tmp_path: Path) -> None:
    sink, commit = mirrored(tmp_path)
    url = tmp_path / "to" / "public.orders"
    commit(1)
    commit(2)
    inner = url / "inner" / "part-00000.parquet"
    inner.parent.mkdir()
    inner.write_bytes(b"another table's")
    failed = url / "part-00000-of-a-failed-commit.parquet"
    failed.write_bytes(b"no commit has it")
    for path in (inner, failed):
        os.utime(path, (1, 1))
    done = sink.maintain("public.orders", HOUR, time.time())
    assert inner.exists() and failed.exists() and not done.removed
    assert done.remark is not None and "inner/part-00000.parquet is no file of" in done.remark
    inner.unlink()
    done = sink.maintain("public.orders", HOUR, time.time())
    assert done == Maintained(removed=1) and not failed.exists()


def test_small_files_of_delta_changes_are_merged_without_a_change(tmp_path: Path) -> None:
    url = str(tmp_path / "changes")
    sink = DeltaChanges(url)
    assert sink.maintain(url, HOUR, 0) == Maintained()  # There is no table yet.
    sink.refuse_other({"system": "1"})
    for number in range(1, FILES_MIN + 1):
        sink.write(change(number), number - 1, number)
    rows = deltalake.DeltaTable(url).to_pyarrow_table().sort_by("start_lsn")
    assert sink.maintain(url, HOUR, 0) == Maintained(merged=FILES_MIN, made=1)
    table = deltalake.DeltaTable(url)
    assert table.to_pyarrow_table().sort_by("start_lsn") == rows
    lines = (tmp_path / f"changes/_delta_log/{table.version():020}.json").read_text()
    actions = [each for line in lines.splitlines() for each in json.loads(line).values()]
    assert {each["dataChange"] for each in actions if "dataChange" in each} == {False}
    assert table.history(1)[0][LSN] == f"0/{FILES_MIN:X}"
    assert DeltaChanges(url).position() == FILES_MIN
    sink.write(change(FILES_MIN + 1), FILES_MIN, FILES_MIN + 1)


def test_delta_changes_know_their_log_when_its_entries_are_gone(tmp_path: Path) -> None:
    url = str(tmp_path / "changes")
    sink = DeltaChanges(url)
    sink.refuse_other({"system": "1"})
    sink.write(change(1), 0, 8)
    table = deltalake.DeltaTable(url)
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    log = tmp_path / "changes" / "_delta_log"

    def is_short() -> bool:
        found = deltalake.DeltaTable(url)
        found.create_checkpoint()
        found.cleanup_metadata()
        return len([*log.glob("*.json")]) == 1

    wait_until(is_short, LIMIT_S)
    assert DeltaChanges(url).position() == 8
    with pytest.raises(HistoryError, match="has changes with system '1'"):
        DeltaChanges(url).refuse_other({"system": "2"})


# Iceberg


def catalog_in(folder: Path) -> Any:
    from pyiceberg.catalog.sql import SqlCatalog

    return SqlCatalog("lake", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}/to")


def iceberg(tmp_path: Path) -> tuple[IcebergMirrors, Any, Callable[[int], None]]:
    catalog = catalog_in(tmp_path)
    sink = IcebergMirrors("lake", "shop", MIRROR, opened=catalog)
    return sink, lambda: catalog.load_table("shop.public_orders"), commits_of(sink)


def texts(scan: Any) -> set[str]:
    return {row["t"] for row in scan.to_arrow().to_pylist()}


def reached(table: Any) -> set[Path]:
    """Return the files that the snapshots of a table have."""
    found = set[str]()
    for snapshot in table.snapshots():
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            found.add(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(table.io)
            found.update(entry.data_file.file_path for entry in entries)
    return {Path(each.removeprefix("file://")) for each in found}


def stored(tmp_path: Path) -> set[Path]:
    return files_in(tmp_path / "to", ".parquet") | files_in(tmp_path / "to", ".avro")


def test_an_iceberg_mirror_stays_bounded_through_many_commits(tmp_path: Path) -> None:
    sink, table, commit = iceberg(tmp_path)
    at_s = time.time()
    for number in range(1, 31):
        commit(number)
        if number % 10 == 0:
            at_s += 7200
            sink.maintain("public_orders", HOUR, at_s)
            assert len(table().snapshots()) == 1
            assert stored(tmp_path) == reached(table())
    assert len(stored(tmp_path)) < 10
    assert sum(path.stat().st_size for path in stored(tmp_path)) < 40_000
    assert len(files_in(tmp_path / "to", ".metadata.json")) <= 21
    assert texts(table().scan()) == {"text 30"}
    again = IcebergMirrors("lake", "shop", MIRROR, opened=catalog_in(tmp_path))
    assert again._done(again._opened(ORDERS)) == 30 and again.tables() == ["public_orders"]
    commit(31)
    assert texts(table().scan()) == {"text 31"}


def test_a_reader_of_an_older_snapshot_within_the_retention_reads_on(tmp_path: Path) -> None:
    """The snapshot is older than the retention, and was replaced within it."""
    sink, table, commit = iceberg(tmp_path)
    commit(1)
    first = table().current_snapshot()
    commit(2)
    replaced_ms = table().snapshots()[1].timestamp_ms
    assert sink.maintain("public_orders", Retention(1), (replaced_ms + 1000) / 1000).expired == 0
    assert texts(table().scan(snapshot_id=first.snapshot_id)) == {"text 1"}
    done = sink.maintain("public_orders", Retention(1), (replaced_ms + 1001) / 1000)
    assert done.expired >= 1
    assert first.snapshot_id not in {each.snapshot_id for each in table().snapshots()}


def test_a_snapshot_with_a_tag_keeps_its_files(tmp_path: Path) -> None:
    sink, table, commit = iceberg(tmp_path)
    commit(1)
    commit(2)
    tagged = table().current_snapshot().snapshot_id
    table().manage_snapshots().create_tag(tagged, "audit").commit()
    # The next snapshot has the tag's file, too, and the last one does not.
    sink._merge_rows(ORDERS, orders(3, first=100), ALL, sink._opened(ORDERS), 3)
    commit(4)
    assert sink.maintain("public_orders", HOUR, time.time() + 7200).expired > 2
    assert {each.snapshot_id for each in table().snapshots()} > {tagged}
    assert texts(table().scan(snapshot_id=tagged)) == {"text 2"}
    assert stored(tmp_path) == reached(table())


def test_a_death_while_files_are_removed_leaves_none_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, table, commit = iceberg(tmp_path)
    for number in range(1, 4):
        commit(number)
    kind, died = type(table().io), 0
    real = kind.delete
    for allowed in range(40):
        left = [allowed]

        def dying(self: Any, path: Any, left: list[int] = left) -> None:
            if not left[0]:
                raise InterruptedError
            left[0] -= 1
            real(self, path)

        monkeypatch.setattr(kind, "delete", dying)
        try:
            sink.maintain("public_orders", HOUR, time.time() + 7200)
            break
        except InterruptedError:
            died += 1
            assert EXPIRED in table().properties
    assert died > 3 and EXPIRED not in table().properties
    assert stored(tmp_path) == reached(table())
    assert texts(table().scan()) == {"text 3"}


def test_iceberg_properties_of_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, table, commit = iceberg(tmp_path)
    commit(1)
    commit(2)
    with table().transaction() as own:
        own.set_properties({AGE: "60000", "write.metadata.previous-versions-max": "7"})
    sink.maintain("public_orders", Retention(9, is_asked=False), 0)
    assert table().properties[AGE] == "60000"
    assert table().properties["write.metadata.previous-versions-max"] == "7"
    sink.maintain("public_orders", Retention(9), 0)
    assert table().properties[AGE] == "9000"
    with table().transaction() as own:
        own.set_properties({"gc.enabled": "false"})
    done = sink.maintain("public_orders", HOUR, time.time() + 7200)
    assert done == Maintained(remark="gc.enabled is false, so its files stay")
    with table().transaction() as own:
        own.remove_properties("gc.enabled")
    monkeypatch.setattr(iceberg_maintenance, "SMALL_FILES", 1)
    remark = sink.maintain("public_orders", HOUR, 0).remark
    assert remark is not None and "CALL system.rewrite_data_files('shop.public_orders')" in remark
    monkeypatch.setattr(iceberg_maintenance, "SNAPSHOTS_MAX", 1)
    assert sink.maintain("public_orders", HOUR, time.time() + 7200).expired == 1


def test_iceberg_changes_expire_and_know_their_position(tmp_path: Path) -> None:
    sink = IcebergChanges("lake", "db.changes", opened=catalog_in(tmp_path))
    sink.refuse_other({"system": "1"})
    sink.maintain("", HOUR, 0)
    table = catalog_in(tmp_path).load_table("db.changes")
    with table.transaction() as own:  # A file is in one manifest after the other.
        own.set_properties({"commit.manifest.min-count-to-merge": "2"})
    for number in range(1, 6):
        sink.write(change(number), number - 1, number)
    assert sink.tables() == ["iceberg:lake/db.changes"]
    done = sink.maintain(sink.tables()[0], HOUR, time.time() + 7200)
    assert done.expired == 4
    again = IcebergChanges("lake", "db.changes", opened=catalog_in(tmp_path))
    assert again.position() == 5
    rows = catalog_in(tmp_path).load_table("db.changes").scan().to_arrow()
    assert sorted(rows["start_lsn"].to_pylist()) == [1, 2, 3, 4, 5]
