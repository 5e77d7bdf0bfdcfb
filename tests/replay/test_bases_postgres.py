"""A base backup after a crash, within its own window, and one that is none by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from struct import pack_into, unpack_from
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c

from tests.support.postgres_server import PostgresServer, make_directory, run_as_server_user
from tests.support.waiting import wait_until
from walkeeper_cli.program import run
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.control_data import CRC_OFFSETS, FLOAT_FORMAT
from walkeeper_pager.base_pages import BasePages
from walkeeper_pager.page_names import Place
from walkeeper_replay.catalogs.catalog import Catalog
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.changes.change_reader import CUT_OFF
from walkeeper_replay.redo.base import BaseDirectory
from walkeeper_replay.redo.page import PAGE_BYTES
from walkeeper_replay.redo.store import Relation
from walkeeper_replay.table_at import TableAt, coverage_of
from walkeeper_replay.text.coverage import COMPLETE
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import Problem, make_plan
from walkeeper_wal.wal_errors import HistoryError

pytestmark = pytest.mark.postgres
SETTINGS = {
    "max_prepared_transactions": "2",
    "wal_level": "replica",
    "fsync": "off",
    "autovacuum": "off",
    "full_page_writes": "on",
}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as made:
        yield made


def _past(
    server: PostgresServer,
    table: str,
    start: int,
    base: BaseDirectory | None,
    lsn: int | None = None,
    catalog: Catalog | None = None,
) -> Any:
    wal = str(server.data / "pg_wal")
    plan = make_plan(open_files(wal), start_lsn=start)
    past = TableAt.open(wal, plan, table, lsn=lsn, base=base, database="postgres", catalog=catalog)
    return past.whole()


def _ids(table: Any) -> list[int]:
    return sorted(table["id"].to_pylist())


def test_a_commit_just_before_the_wal_counts_beside_an_older_open_transaction(
    server: PostgresServer,
) -> None:
    """The open transaction is the oldest one of the WAL's checkpoint. A later xid can be of before.
    Rows of such a one were missing, and the answer said "complete".
    """
    server.configure({"wal_keep_size": "1GB"})
    server.reload()
    server.sql("CREATE TABLE t (id int)", "INSERT INTO t VALUES (1), (2)")
    backup = server.base_backup()
    try:
        with server.connect() as first:
            first.execute("BEGIN")
            first.execute("SELECT txid_current()")
            server.sql("DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (3)")
            server.sql("SELECT pg_switch_wal()", "CHECKPOINT")
            start = Lsn.parse(server.sql("SELECT redo_lsn FROM pg_control_checkpoint()"))
            server.sql("INSERT INTO t VALUES (4)")
            first.execute("ROLLBACK")
        server.sql("INSERT INTO t VALUES (5)")
        base, wal = BaseDirectory(str(backup.data)), open_files(str(server.data / "pg_wal"))
        history = CatalogHistory.read(wal, make_plan(wal, start_lsn=base.redo_lsn), base=base)
        catalog = history.at(history.end_lsn, history.database(history.end_lsn, "postgres"))
        past = _past(server, "public.t", start, None, catalog=catalog)
        said = coverage_of(past)
        assert _ids(past) == [2, 3, 4, 5]
        assert "1 row of transactions that ended before this WAL" in said
        assert "1 row taken away by transactions that ended before this WAL" in said
    finally:
        backup.delete()


def test_a_transaction_that_a_crash_ended_has_not_committed(server: PostgresServer) -> None:
    server.sql(
        "CREATE TABLE crashed (id int)",
        "CREATE TABLE elsewhere (id int)",
        "INSERT INTO crashed SELECT generate_series(1, 10)",
        "SELECT count(*) FROM crashed",
        "CHECKPOINT",
    )
    with server.connect() as deletes, server.connect() as inserts:
        deletes.execute("BEGIN")
        deletes.execute("DELETE FROM crashed WHERE id <= 5")
        inserts.execute("BEGIN")
        inserts.execute("INSERT INTO crashed VALUES (100)")
        server.sql("CHECKPOINT")
        server.stop("immediate")
        with pytest.raises(HistoryError, match="nor the directory of a server that was shut down"):
            BaseDirectory(str(server.data))
        deletes.close()
        inserts.close()
    server.start()
    backup = server.base_backup()
    try:
        base = BaseDirectory(str(backup.data))
        server.sql("INSERT INTO elsewhere VALUES (1)")
        past = _past(server, "public.crashed", base.redo_lsn, base)
        assert (_ids(past), coverage_of(past)) == (list(range(1, 11)), COMPLETE)

        # Without the backup the result is not known, and coverage says so for missing rows, too.
        server.sql("INSERT INTO crashed VALUES (11)")
        wal = open_files(str(server.data / "pg_wal"))
        history = CatalogHistory.read(wal, make_plan(wal, start_lsn=base.redo_lsn), base=base)
        at = history.end_lsn
        catalog = history.at(at, history.database(at, "postgres"))
        past = _past(server, "public.crashed", base.redo_lsn, None, catalog=catalog)
        said = coverage_of(past)
        assert _ids(past) == [6, 7, 8, 9, 10, 11, 100]
        assert "1 row of transactions that ended before this WAL" in said
        assert "5 rows taken away by transactions that ended before this WAL" in said
    finally:
        backup.delete()


def test_no_place_within_a_backup_is_answered_from_it(
    server: PostgresServer, tmp_path: Path
) -> None:
    server.sql("CREATE TABLE busy (id int, n int)", "SELECT pg_switch_wal()")
    server.sql("INSERT INTO busy SELECT g, 1 FROM generate_series(1, 1500) g", "CHECKPOINT")
    copy = server.directory / "within"
    with server.connect() as session:
        session.execute("SELECT pg_backup_start('within', true)")
        server.sql("UPDATE busy SET n = 2 WHERE id <= 100")
        within = int(Lsn.parse(server.sql("SELECT pg_current_wal_insert_lsn()")))
        server.sql("UPDATE busy SET n = n + 1", "DELETE FROM busy WHERE id > 300", "CHECKPOINT")
        run_as_server_user(["cp", "-a", str(server.data), str(copy)])
        row = session.execute("SELECT labelfile FROM pg_backup_stop()").fetchone()
    assert row is not None
    (copy / "backup_label").write_text(row[0])
    base = BaseDirectory(str(copy))
    with pytest.raises(HistoryError, match=r"is consistent only from .* on"):
        _past(server, "public.busy", base.redo_lsn, base, within)
    past = _past(server, "public.busy", base.redo_lsn, base)
    assert (_ids(past), coverage_of(past)) == (list(range(1, 301)), COMPLETE)


def test_a_time_before_a_backup_is_not_answered_by_the_first_commit_after_it(
    server: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.sql("CREATE TABLE early (id int)", "INSERT INTO early VALUES (1)")
    asked = server.sql("SELECT clock_timestamp()::text")
    server.sql("INSERT INTO early VALUES (2)")
    # A checkpoint's time is of whole seconds.
    wait_until(lambda: server.sql(f"SELECT clock_timestamp() > '{asked}'::timestamptz + '2 s'"))
    backup = server.base_backup()
    try:
        between = server.sql("SELECT clock_timestamp()::text")
        server.sql("INSERT INTO early VALUES (3)")
        where = ["--path", str(server.data / "pg_wal"), "--base", str(backup.data)]
        assert run(["history", "table-at", "early", *where, "--time", asked]) == 1
        assert "ask for a later time, or take an earlier backup" in capsys.readouterr().err
        assert run(["history", "table-at", "early", *where, "--time", between]) == 0
        assert capsys.readouterr().out.split() == ["id", "1", "2"]
    finally:
        backup.delete()


@pytest.mark.parametrize("ending", ["COMMIT", "PREPARE TRANSACTION 'p'"])
def test_changes_of_a_transaction_from_before_the_backup_are_not_called_complete(
    server: PostgresServer, ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.sql("DROP TABLE IF EXISTS cut", "CREATE TABLE cut (id int)")
    with server.connect() as long, server.connect() as idle:
        long.execute("BEGIN")
        long.execute("INSERT INTO cut VALUES (1)")
        idle.execute("BEGIN")
        idle.execute("INSERT INTO cut VALUES (10)")
        backup = server.base_backup()
        long.execute("SAVEPOINT s")
        long.execute("INSERT INTO cut VALUES (2)")
        long.execute(ending.encode())
        idle.execute("COMMIT")
    server.sql("INSERT INTO cut VALUES (3)")
    if ending.startswith("PREPARE"):
        server.sql("COMMIT PREPARED 'p'")
    try:
        words = ["--path", str(server.data / "pg_wal"), "--base", str(backup.data)]
        changes, undo = tmp_path / "changes", tmp_path / "undo"
        assert run(["history", "changes", *words, "--format", "json", "-o", str(changes)]) == 1
        assert "(2 in all): it began before the base backup" in capsys.readouterr().err
        rows = [json.loads(line) for line in changes.read_text().splitlines()]
        told = {row["new"]["id"]: row["coverage"] for row in rows if row["table"] == "cut"}
        assert told == {"2": CUT_OFF, "3": COMPLETE}
        assert run(["history", "undo", *words, "--table", "cut", "-o", str(undo)]) == 1
        assert "DELETE FROM" in undo.read_text() and CUT_OFF in undo.read_text()
        capsys.readouterr()
        begin = str(server.sql("SELECT pg_current_wal_insert_lsn()"))
        assert run(["history", "changes", *words, "--start-lsn", begin, "-o", str(changes)]) == 0
        assert "began before" not in capsys.readouterr().err, "nobody asked for that"
    finally:
        backup.delete()


def test_a_stopped_standby_has_pages_of_up_to_where_it_had_replayed(server: PostgresServer) -> None:
    server.sql("CREATE TABLE ahead (id int)", "CHECKPOINT")
    standby = server.base_backup({"primary_conninfo": server.dsn(), "hot_standby": "on"})
    try:
        (standby.data / "standby.signal").touch()
        standby.start()
        server.sql("CHECKPOINT", "INSERT INTO ahead SELECT generate_series(1, 1000)")
        place = Lsn.parse(server.sql("SELECT pg_current_wal_flush_lsn()"))
        wait_until(lambda: Lsn.parse(standby.sql("SELECT pg_last_wal_replay_lsn()")) >= place)
        standby.stop()
        base = BaseDirectory(str(standby.data))
        assert base.redo_lsn < place <= base.consistent_lsn
    finally:
        standby.delete()


def test_rows_written_with_minimal_wal_are_not_called_complete(
    server: PostgresServer,
) -> None:
    server.sql("SELECT pg_switch_wal()")
    begin = int(Lsn.parse(server.sql("SELECT pg_current_wal_insert_lsn()")))
    server.sql("CREATE TABLE logged AS SELECT g AS id FROM generate_series(1, 10) g")
    before = int(Lsn.parse(server.sql("SELECT pg_current_wal_insert_lsn()")))
    try:
        server.configure({"wal_level": "minimal", "max_wal_senders": "0"})
        server.restart()
        server.sql("CREATE TABLE loaded AS SELECT g AS id FROM generate_series(1, 1000) g")
    finally:
        server.configure({"wal_level": "replica", "max_wal_senders": "10"})
        server.restart()
    past = _past(server, "public.logged", begin, None, before)
    assert (_ids(past), coverage_of(past)) == (list(range(1, 11)), COMPLETE)
    past = _past(server, "public.loaded", begin, None)
    assert "is of wal_level = minimal, without bulk loads" in coverage_of(past)


LABEL = (
    "START WAL LOCATION: 0/4000028 (file 0)\nCHECKPOINT LOCATION: 0/4000060\nSTART TIMELINE: 1\n"
)


def _without_files(server: PostgresServer, directory: Path) -> Path:
    """Make a backup of no more than the server's pg_control; return the path of that."""
    (directory / "global").mkdir()
    (directory / "PG_VERSION").write_text("17\n")
    control = directory / "global" / "pg_control"
    control.write_bytes((server.data / "global" / "pg_control").read_bytes())
    return control


def test_a_damaged_pg_control_is_refused_with_the_remedy(
    server: PostgresServer, tmp_path: Path
) -> None:
    control = _without_files(server, tmp_path)
    (tmp_path / "backup_label").write_text(LABEL)
    whole = control.read_bytes()
    assert BaseDirectory(str(tmp_path)).redo_lsn == 0x4000028
    for at in range(292):
        control.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(HistoryError, match=r"pg_control: .*; read another copy"):
            BaseDirectory(str(tmp_path))
    for content in (b"", whole[:100], bytes(8192)):
        control.write_bytes(content)
        with pytest.raises(HistoryError, match=r"pg_control: .*; read another copy"):
            BaseDirectory(str(tmp_path))
    control.unlink()
    with pytest.raises(HistoryError, match="pg_control: No such file or directory; read another"):
        BaseDirectory(str(tmp_path))


def _with_sizes(control: Path, block_bytes: int, file_blocks: int) -> None:
    """Write the pg_control of a server that was built with other sizes."""
    content = bytearray(control.read_bytes())
    pack_into("<II", content, content.find(FLOAT_FORMAT) + 8, block_bytes, file_blocks)
    whole = control.read_bytes()
    at = next(at for at in CRC_OFFSETS if crc32c(whole[:at]) == unpack_from("<I", whole, at)[0])
    pack_into("<I", content, at, crc32c(bytes(content[:at])))
    control.write_bytes(content)


def test_a_server_with_other_blocks_is_refused(server: PostgresServer, tmp_path: Path) -> None:
    control = _without_files(server, tmp_path)
    (tmp_path / "backup_label").write_text(LABEL)
    for size in (4096, 32768):
        _with_sizes(control, size, 131072)
        with pytest.raises(HistoryError, match=f"blocks of {size} bytes"):
            BaseDirectory(str(tmp_path))
    _with_sizes(control, PAGE_BYTES, 131072)
    BaseDirectory(str(tmp_path))


def test_blocks_of_later_files_are_where_the_server_has_them(
    server: PostgresServer, tmp_path: Path
) -> None:
    """A file that is not full is the last one. A backup may have later ones, from before a
    truncation or from after more growth."""
    control, file = _without_files(server, tmp_path), Relation(1663, 5, 16384)
    (tmp_path / "backup_label").write_text(LABEL)
    _with_sizes(control, PAGE_BYTES, 2)
    folder = tmp_path / "base" / "5"
    folder.mkdir(parents=True)
    for sizes, count in (((2, 1), 3), ((2, 2, 2), 6), ((1, 2), 1), ((2, 0, 2), 2), ((2, 1, 1), 3)):
        for number, size in enumerate(sizes):
            name = "16384" + (f".{number}" if number else "")
            pages = np.zeros((size, PAGE_BYTES), np.uint8)
            pages[:] = (2 * number + np.arange(size) + 1).reshape(-1, 1)
            pages.tofile(folder / name)
        base, pager = BaseDirectory(str(tmp_path)), BasePages(str(tmp_path))
        found = base.read(file)
        assert found is not None and found[:, 0].tolist() == list(range(1, count + 1))
        assert base.block_count(file) == count
        for block in range(count):
            assert base.read_block(file, block)[0] == block + 1
            page = pager.read(Place(*file), block)
            assert page is not None and page[0] == block + 1
        assert [blocks for _, blocks in pager.places_of(1663, 5)] == [count]


def test_two_visible_rows_of_one_oid_are_refused(server: PostgresServer) -> None:
    server.sql("CREATE TABLE twin_a (id int)", "CREATE TABLE twin_b (id int)")
    backup = server.base_backup()
    try:
        server.sql("INSERT INTO twin_a VALUES (1)")
        base = BaseDirectory(str(backup.data))
        assert _ids(_past(server, "public.twin_a", base.redo_lsn, base)) == [1]
        path = backup.data / str(server.sql("SELECT pg_relation_filepath('pg_class')"))
        one, other = (int(server.sql(f"SELECT '{n}'::regclass::oid")) for n in ("twin_a", "twin_b"))
        data = path.read_bytes()
        before = other.to_bytes(4, "little") + b"twin_b\0"
        assert data.count(before) == 1
        path.write_bytes(data.replace(before, one.to_bytes(4, "little") + b"twin_b\0"))
        said = rf"pg_class: the rows .* are visible, and both have the key {one}; .* read another"
        with pytest.raises(HistoryError, match=said):
            _past(server, "public.twin_a", base.redo_lsn, base)
        # A gap may have had the end of one of them, and `coverage` says so.
        wal = open_files(str(server.data / "pg_wal"))
        plan = make_plan(wal, start_lsn=base.redo_lsn)
        gap = Problem("a segment", None, None, "is missing")
        first = replace(plan.segments[0], problems=(gap,))
        plan = replace(plan, segments=(first, *plan.segments[1:]))
        skipped: list[Problem] = []
        history = CatalogHistory.read(wal, plan, base=base, on_problem=skipped.append)
        at = history.end_lsn
        assert gap in skipped and one in history.at(at, history.database(at, "postgres")).classes
    finally:
        backup.delete()


def test_the_updater_in_the_last_multixact_of_a_backup_is_known(server: PostgresServer) -> None:
    """Earlier minor versions set its end with the next multixact, so that it is 0 until then."""
    server.sql(
        "CREATE TABLE shared (id int PRIMARY KEY, n int)",
        "CREATE TABLE beside (a int)",
        "INSERT INTO shared VALUES (1, 1)",
    )
    with server.connect() as locks, server.connect() as updates:
        locks.execute("BEGIN")
        locks.execute("SELECT FROM shared FOR KEY SHARE")
        updates.execute("UPDATE shared SET n = 2")
        last = int(server.sql("SELECT next_multixact_id FROM pg_control_checkpoint()"))
        locks.execute("COMMIT")
    backup = server.base_backup()
    try:
        control = server.sql("SELECT next_multixact_id FROM pg_control_checkpoint()")
        assert int(control) == last + 1
        path = backup.data / "pg_multixact" / "offsets" / "0000"
        data = bytearray(path.read_bytes())
        data[4 * (last + 1) : 4 * (last + 2)] = bytes(4)
        path.write_bytes(data)
        base = BaseDirectory(str(backup.data))
        server.sql("INSERT INTO beside VALUES (1)")
        past = _past(server, "public.shared", base.redo_lsn, base)
        assert (past["n"].to_pylist(), coverage_of(past)) == ([2], COMPLETE)
    finally:
        backup.delete()


def test_an_incremental_backup_is_no_base(server: PostgresServer, tmp_path: Path) -> None:
    _without_files(server, tmp_path)
    (tmp_path / "backup_label").write_text(
        "START WAL LOCATION: 0/4000028 (file 000000010000000000000004)\n"
        "INCREMENTAL FROM LSN: 0/2000028\nINCREMENTAL FROM TLI: 1\n"
    )
    with pytest.raises(HistoryError, match="pg_combinebackup"):
        BaseDirectory(str(tmp_path))


def test_a_table_in_another_tablespace_does_not_move_its_database() -> None:
    place = make_directory()
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        server.sql(
            f"CREATE TABLESPACE other_disk LOCATION '{place}'",
            "CREATE TYPE spaced AS ENUM ('near', 'far')",
            "CREATE TABLE on_other_disk (id int, v spaced) TABLESPACE other_disk",
            "INSERT INTO on_other_disk VALUES (1, 'near')",
        )
        backup = server.base_backup(options=[f"--tablespace-mapping={place}={make_directory()}"])
        try:
            base = BaseDirectory(str(backup.data))
            server.sql(
                "VACUUM FULL pg_type",
                "VACUUM FULL pg_class",
                "INSERT INTO on_other_disk VALUES (2, 'far')",
            )
            past = _past(server, "public.on_other_disk", base.redo_lsn, base)
            assert coverage_of(past) == COMPLETE
            assert past["v"].to_pylist() == ["near", "far"]
        finally:
            backup.delete()
