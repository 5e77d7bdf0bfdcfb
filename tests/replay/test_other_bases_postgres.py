"""A base backup of a branch that the WAL left, with tablespaces elsewhere, near the last multixact.
WAL alone that begins with wal_level = minimal."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.postgres_server import (
    PostgresServer,
    make_directory,
    own,
    program,
    run_as_server_user,
)
from tests.support.waiting import wait_until
from walkeeper_cli.program import run

pytestmark = pytest.mark.postgres
Output = pytest.CaptureFixture[str]
SETTINGS = {"wal_keep_size": "1GB", "fsync": "off"}
INITDB = ["--wal-segsize=1"]
SLRU_BYTES = 32 * 8192


def rows_of(name: str, wal: Path, capsys: Output, *more: str) -> list[str]:
    """Return the rows of a table as CSV, which the command calls complete."""
    assert run(["history", "table-at", name, "--path", str(wal), *more]) == 0
    said = capsys.readouterr()
    assert said.err.endswith("; complete\n"), said.err
    return said.out.split()[1:]


def refusal_of(words: list[str], capsys: Output) -> str:
    """Return what a command says that ends with exit code 1."""
    assert run(["history", *words]) == 1
    return capsys.readouterr().err


@pytest.mark.soak
def test_a_backup_of_a_branch_that_this_wal_left_is_refused(capsys: Output) -> None:
    with PostgresServer.create(SETTINGS, initdb_options=INITDB) as former:
        former.sql("CREATE TABLE d (id int)", "INSERT INTO d VALUES (1)", "CHECKPOINT")
        settings = {**SETTINGS, "primary_conninfo": former.dsn(), "hot_standby": "on"}
        standby = former.base_backup(settings)
        try:
            (standby.data / "standby.signal").touch()
            own(standby.data)
            standby.start()
            place = former.sql("SELECT pg_current_wal_flush_lsn()")
            ask = f"SELECT pg_last_wal_replay_lsn() >= '{place}'"
            wait_until(lambda: standby.sql(ask))
            standby.promote()
            former.sql("INSERT INTO d VALUES (2)", "DELETE FROM d WHERE id = 1", "CHECKPOINT")
            backup = former.base_backup()
            former.stop()
            standby.sql("CREATE TABLE e (id int)", "SELECT pg_switch_wal()")
            for number in range(6):  # well beyond the end of the other branch
                standby.sql(f"INSERT INTO e VALUES ({number})", "SELECT pg_switch_wal()")
            standby.sql("INSERT INTO e VALUES (7)")
            wal = standby.data / "pg_wal"
            for base in (former.data, backup.data):
                for words in (["table-at", "d"], ["changes"], ["undo", "--table", "e"]):
                    said = refusal_of([*words, "--path", str(wal), "--base", str(base)], capsys)
                    assert "is of timeline 1 at" in said and "name the backup's own" in said
            standby.stop()
            assert rows_of("d", wal, capsys, "--base", str(standby.data)) == ["1"]
        finally:
            standby.delete()
            backup.delete()


def test_a_stopped_servers_directory_needs_the_wal_from_its_end_on(
    tmp_path: Path, capsys: Output
) -> None:
    """The changes between its end and the WAL were missing, and the WAL was not blamed."""
    with PostgresServer.create(SETTINGS, initdb_options=INITDB) as server:
        server.sql("CREATE TABLE old (id int)")
        server.stop()
        copy = server.directory / "copy"
        run_as_server_user(["cp", "-a", str(server.data), str(copy)])
        server.start()
        server.sql("INSERT INTO old VALUES (1)", "SELECT pg_switch_wal()", "SELECT txid_current()")
        first = server.sql("SELECT pg_walfile_name(pg_current_wal_insert_lsn())")
        server.sql("INSERT INTO old VALUES (2)")
        shutil.copy(server.data / "pg_wal" / first, tmp_path)
        for words in (["table-at", "old"], ["changes"], ["undo", "--table", "old"]):
            where = ["--path", str(tmp_path), "--base", str(copy)]
            assert "the base backup needs WAL from" in refusal_of([*words, *where], capsys)


def test_a_backups_map_says_where_its_tablespaces_are(capsys: Output) -> None:
    with PostgresServer.create(SETTINGS, initdb_options=INITDB) as server:
        place, copied_place = make_directory(), make_directory(r"walkeeper\pg_")
        wal, copy = server.data / "pg_wal", server.directory / "copy"
        server.sql(
            f"CREATE TABLESPACE elsewhere LOCATION '{place}'",
            "CREATE TABLE spaced (id int) TABLESPACE elsewhere",
            "INSERT INTO spaced SELECT generate_series(1, 3)",
            "CREATE TABLE beside (id int)",
        )
        with server.connect() as session:
            session.execute("SELECT pg_backup_start('copy', true)")
            run_as_server_user(["cp", "-a", str(server.data), str(copy)])
            run_as_server_user(["cp", "-a", f"{place}/.", str(copied_place)])
            stop = "SELECT labelfile, spcmapfile FROM pg_backup_stop()"
            label, spaces = session.execute(stop).fetchone() or ("", "")
        (copy / "backup_label").write_text(label)
        escaped = str(copied_place).replace("\\", "\\\\")
        (copy / "tablespace_map").write_text(spaces.replace(str(place), escaped))
        server.sql("INSERT INTO beside VALUES (1)")
        lsn = str(server.sql("SELECT pg_current_wal_insert_lsn()"))
        server.sql("DELETE FROM spaced WHERE id > 1", "VACUUM spaced", "CHECKPOINT")
        where = ("--base", str(copy), "--lsn", lsn)
        try:
            assert rows_of("spaced", wal, capsys, *where) == ["1", "2", "3"]
        finally:
            shutil.rmtree(copied_place)
            shutil.rmtree(place)


def test_updaters_are_known_where_multixacts_begin_again(capsys: Output) -> None:
    with PostgresServer.create(SETTINGS, initdb_options=INITDB) as server:
        server.sql(
            "CREATE TABLE shared (id int PRIMARY KEY, n int)",
            "INSERT INTO shared SELECT generate_series(1, 4), 0",
            "CREATE TABLE beside (id int)",
        )
        server.stop()
        first, member = (1 << 32) - 2, (1 << 32) - 3
        for name, segment in (("offsets", first // 65536), ("members", member // 1636 // 32)):
            path = server.data / "pg_multixact" / name / f"{segment:04X}"
            path.write_bytes(bytes(SLRU_BYTES))
        own(server.data / "pg_multixact")
        numbers = ("-m", f"{first},{first - 90}", "-O", str(member), "-f")
        run_as_server_user([program("pg_resetwal"), *numbers, "-D", str(server.data)])
        server.start()
        for number in range(1, 5):
            with server.connect() as locks, server.connect() as updates:
                locks.execute("BEGIN")
                locks.execute(f"SELECT FROM shared WHERE id = {number} FOR KEY SHARE")
                updates.execute(f"UPDATE shared SET n = {number} WHERE id = {number}")
                locks.execute("COMMIT")
        assert server.sql("SELECT next_multixact_id::text FROM pg_control_checkpoint()") != "1"
        backup = server.base_backup()
        try:
            server.sql("INSERT INTO beside VALUES (1)")
            wal, base = server.data / "pg_wal", str(backup.data)
            found = rows_of("shared", wal, capsys, "--base", base)
            assert found == ["1,1", "2,2", "3,3", "4,4"]
        finally:
            backup.delete()


def test_wal_that_begins_with_minimal_is_not_called_complete(
    tmp_path: Path, capsys: Output
) -> None:
    settings = {**SETTINGS, "wal_level": "minimal", "max_wal_senders": "0"}
    with PostgresServer.create(
        {**settings, "wal_skip_threshold": "0"}, initdb_options=INITDB
    ) as server:
        server.sql("SELECT pg_switch_wal()")
        first = server.sql("SELECT pg_walfile_name(pg_current_wal_insert_lsn())")
        create = "CREATE TABLE loaded AS SELECT g AS id FROM generate_series(1, 9) g"
        server.sql(f"DO $$ BEGIN {create}; EXCEPTION WHEN division_by_zero THEN END $$")
        lsn = server.sql("SELECT pg_current_wal_insert_lsn()")
        server.configure({"wal_level": "replica", "max_wal_senders": "10"})
        server.restart()
        server.sql("CREATE TABLE later AS SELECT 1 AS id", "SELECT pg_switch_wal()")
        for path in (server.data / "pg_wal").glob("0*"):
            if path.name >= first:
                shutil.copy(path, tmp_path)
    wal = str(tmp_path)
    for words in (["table-at", "loaded", "--lsn", lsn], ["table-at", "loaded"], ["changes"]):
        said = refusal_of([*words, "--path", wal], capsys)
        assert "is of wal_level = minimal, without bulk loads" in said
