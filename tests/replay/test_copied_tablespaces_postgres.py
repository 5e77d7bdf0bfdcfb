"""A copy's links to tablespaces may lead to the running server, whose rows are later: refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.replay.test_other_bases_postgres import refusal_of, rows_of
from tests.support.postgres_server import PostgresServer, make_directory, own
from walkeeper_replay.redo.tablespaces import _checksum

pytestmark = pytest.mark.postgres
Output = pytest.CaptureFixture[str]
SETTINGS = {"wal_keep_size": "1GB", "fsync": "off"}


@dataclass(frozen=True, slots=True)
class Spaced:
    """A server with a table in a tablespace."""

    server: PostgresServer
    place: Path
    oid: int

    @property
    def wal(self) -> Path:
        return self.server.data / "pg_wal"

    def go_on(self, *, kept: int = 1) -> str:
        """Delete rows, and return an LSN from before that. Without rows no page is left."""
        self.server.sql("INSERT INTO beside VALUES (1)")
        lsn = str(self.server.sql("SELECT pg_current_wal_insert_lsn()"))
        self.server.sql(f"DELETE FROM spaced WHERE id > {kept}", "VACUUM spaced", "CHECKPOINT")
        return lsn

    def link(self, copy: Path) -> Path:
        return copy / "pg_tblspc" / str(self.oid)


@pytest.fixture
def spaced() -> Iterator[Spaced]:
    place = make_directory()
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        server.sql(
            f"CREATE TABLESPACE elsewhere LOCATION '{place}'",
            "CREATE TABLE spaced (id int) TABLESPACE elsewhere",
            "INSERT INTO spaced SELECT generate_series(1, 3)",
            "CREATE TABLE beside (id int)",
        )
        yield Spaced(server, place, server.sql("SELECT max(oid) FROM pg_tablespace"))
    shutil.rmtree(place)


@pytest.mark.parametrize("has_map", [True, False])
def test_links_and_maps_to_the_running_server_are_refused(
    spaced: Spaced, tmp_path: Path, capsys: Output, has_map: bool
) -> None:
    copy = tmp_path / "copy"
    with spaced.server.connect() as session:
        session.execute("SELECT pg_backup_start('copy', true)")
        shutil.copytree(spaced.server.data, copy, symlinks=True)
        shutil.copytree(spaced.place, tmp_path / "copied")
        row = session.execute("SELECT labelfile, spcmapfile FROM pg_backup_stop()").fetchone()
    assert row is not None
    (copy / "backup_label").write_text(row[0])
    if has_map:
        (copy / "tablespace_map").write_text(row[1])
    where = ("--base", str(copy), "--lsn", spaced.go_on(kept=int(has_map)))
    said = refusal_of(["table-at", "spaced", "--path", str(spaced.wal), *where], capsys)
    assert f"{copy}/tablespace_map" in said
    assert str(spaced.link(copy)) in said or ("is later than the end of the backup" in said)
    (copy / "tablespace_map").write_text(f"{spaced.oid} {tmp_path}/copied\n")
    assert rows_of("spaced", spaced.wal, capsys, *where) == ["1", "2", "3"]


def test_a_manifest_says_whether_a_link_leads_to_the_copy(spaced: Spaced, capsys: Output) -> None:
    place = make_directory()
    backup = spaced.server.base_backup(options=[f"--tablespace-mapping={spaced.place}={place}"])
    try:
        where = ("--base", str(backup.data), "--lsn", spaced.go_on())
        assert rows_of("spaced", spaced.wal, capsys, *where) == ["1", "2", "3"]
        words = ["table-at", "spaced", "--path", str(spaced.wal), *where]
        link = spaced.link(backup.data)
        oid = spaced.server.sql("SELECT 'spaced'::regclass::oid")
        (file,) = place.glob(f"PG_*/*/{oid}")
        content = file.read_bytes()
        for changed in (content + bytes(8192), content[:-1] + b"x", None):
            if changed is None:
                file.unlink()
            else:
                file.write_bytes(changed)
            assert f"{link} leads to {place}" in refusal_of(words, capsys)
        file.write_bytes(content)
        assert rows_of("spaced", spaced.wal, capsys, *where) == ["1", "2", "3"]
        link.unlink()
        link.symlink_to(spaced.place)
        assert f"{link} leads to {spaced.place}" in refusal_of(words, capsys)
        (backup.data / "backup_manifest").unlink()
        assert f"{link} leads to {spaced.place}" in refusal_of(words, capsys)
    finally:
        backup.delete()
        shutil.rmtree(place)


def test_a_copy_of_a_stopped_server_does_not_read_the_servers_tablespaces(
    spaced: Spaced, tmp_path: Path, capsys: Output
) -> None:
    server, copy = spaced.server, tmp_path / "copy"
    server.stop()
    shutil.copytree(server.data, copy, symlinks=True)
    shutil.copytree(spaced.place, tmp_path / "copied")
    own(server.data)
    server.start()
    where = ("--base", str(copy), "--lsn", spaced.go_on())
    words = ["table-at", "spaced", "--path", str(spaced.wal), *where]
    assert f"{spaced.link(copy)} leads to {spaced.place}" in refusal_of(words, capsys)
    (copy / "postmaster.opts").unlink()
    assert f"{spaced.link(copy)} leads to {spaced.place}" in refusal_of(words, capsys)
    (copy / "tablespace_map").write_text(f"{spaced.oid} {tmp_path}/copied\n")
    assert rows_of("spaced", spaced.wal, capsys, *where) == ["1", "2", "3"]
    server.stop()
    assert rows_of("spaced", spaced.wal, capsys, "--base", str(server.data)) == ["1"]


def test_checksums_are_those_of_a_manifest(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"123456789")
    assert _checksum(file, "CRC32C") == "839206e3"  # as pg_basebackup prints 0xe3069283
    assert _checksum(file, "SHA224") == "9b3e61bf29f17c75572fae2e86e17809a4513d07c8a18152acf34521"
