"""WAL of two histories is no WAL: each reader of segments names the record that is wrong."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.history.parted_histories import SETTINGS, Parted
from tests.support.postgres_server import PostgresServer, own
from walkeeper_cli.program import run
from walkeeper_pager.base_pages import BasePages
from walkeeper_pager.pager import Pager
from walkeeper_replay.redo.parallel_pass import CatalogFiles, pass_in_parallel, taken_of
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan
from walkeeper_wal.sources.threaded_reading import read_each
from walkeeper_wal.wal_errors import DamagedWal, HistoryError

pytestmark = pytest.mark.postgres
Output = pytest.CaptureFixture[str]
WRONG = "record with incorrect prev-link at 0/"


@pytest.fixture(scope="module")
def parted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parted]:
    folder = tmp_path_factory.mktemp("parted")
    made = Parted.make(folder, "SELECT txid_current()", "DELETE FROM t WHERE id < 50")
    made.mixed(folder / "mixed")
    yield made


@pytest.mark.parametrize(
    "words",
    [
        ("changes", "--database", "postgres"),
        ("table-at", "t", "--database", "postgres"),
        ("undo", "--table", "t", "--database", "postgres"),
        ("find", "delete"),
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("index", [False, True], ids=["all", "index"])
def test_a_segment_of_another_history_is_named(
    parted: Parted, tmp_path: Path, capsys: Output, words: tuple[str, ...], index: bool
) -> None:
    """It was taken for the segment that it replaced, and the answer was called complete."""
    more = ("--index", str(tmp_path / "index")) if index else ()
    path = ("--base", str(parted.base)) if words[0] != "find" else ()
    assert run(["history", *words, "--path", str(parted.second), *path, *more]) == 0
    capsys.readouterr()
    mixed = parted.second.parent / "mixed"
    assert run(["history", *words, "--path", str(mixed), *path, *more]) == 1
    assert WRONG in capsys.readouterr().err


def test_a_segment_that_an_index_stands_for_is_part_of_the_chain(
    parted: Parted, tmp_path: Path, capsys: Output
) -> None:
    """The index has rows of segments that were there one after the other."""
    wal, index = tmp_path / "wal", str(tmp_path / "index")
    shutil.copytree(parted.first, wal)
    later = [each for each in wal.glob("0*") if each.name > parted.segment]
    for segment in later:
        segment.unlink()
    assert run(["history", "index", "--path", str(wal), "--output", index]) == 0
    for segment in later:
        shutil.copy(parted.second / segment.name, wal)
    assert run(["history", "index", "--path", str(wal), "--output", index]) == 0
    words = ["table-at", "quiet", "--database", "postgres", "--index", index]
    assert run(["history", *words, "--path", str(wal)]) == 1
    assert WRONG in capsys.readouterr().err


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A copy of a server that was shut down, and WAL of another one that went on from before it."""
    folder = tmp_path_factory.mktemp("foreign")
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        server.sql("CREATE TABLE t (a int)", "CREATE TABLE u (a int)", "SELECT pg_switch_wal()")
        server.sql("INSERT INTO t SELECT generate_series(1, 3000)")
        server.stop()
        shutil.copytree(server.data, folder / "copy")
        server.start()
        server.sql("INSERT INTO t SELECT 7 FROM generate_series(1, 1000)")
        server.stop()
        shutil.copytree(server.data, folder / "base")
        shutil.rmtree(server.data)
        shutil.copytree(folder / "copy", server.data)
        own(server.data)
        server.start()
        server.sql("INSERT INTO u SELECT 5 FROM generate_series(1, 20000)")
        server.stop()
        shutil.copytree(server.data / "pg_wal", folder / "wal")
    yield folder / "base", folder / "wal"


@pytest.mark.parametrize("words", [("table-at", "t"), ("changes",), ("undo", "--all-tables")],
                         ids=lambda words: words[0])  # fmt: skip
def test_a_backup_of_another_history_is_refused(
    foreign: tuple[Path, Path], capsys: Output, words: tuple[str, ...]
) -> None:
    """Its 4000 rows were called complete. PostgreSQL finds no valid checkpoint record."""
    base, wal = foreign
    assert run(["history", *words, "--path", str(wal), "--base", str(base)]) == 1
    said = capsys.readouterr().err
    assert "begins with the checkpoint at 0/" in said and "another history" in said
    before = base.parent / "copy"
    assert run(["history", *words, "--path", str(wal), "--base", str(before)]) == 0


def test_a_pager_refuses_a_backup_of_another_history(
    foreign: tuple[Path, Path], tmp_path: Path
) -> None:
    base, wal = foreign
    with closing(Pager(tmp_path, BasePages(str(base)), history_bytes=1 << 30)) as pager:
        first = pager.start_lsn
        for segment in sorted(wal.glob("0*")):
            begin = int(segment.name[16:], 16) << 20
            if begin >= first:
                pager.wal.write(1, begin, segment.read_bytes())
        with pytest.raises(HistoryError, match="begins with the checkpoint at 0/"):
            pager.apply()


def test_segments_that_others_decode_are_one_chain(parted: Parted) -> None:
    files = open_files(str(parted.second.parent / "mixed"))
    plan, wanted = make_plan(files), CatalogFiles((1259,), [])
    parts = read_each(files, plan, lambda reading: taken_of(reading, None, wanted.choose))
    with pytest.raises(DamagedWal, match=WRONG):
        pass_in_parallel(parts, files, plan, [])


def test_a_stream_that_goes_on_in_another_history_ends(
    parted: Parted, tmp_path: Path, capsys: Output
) -> None:
    """Its state has the place of the last record that it took."""
    wal = tmp_path / "wal"
    shutil.copytree(parted.first, wal)
    for segment in wal.glob("0*"):
        if segment.name > parted.segment:
            segment.unlink()
    words = ["history", "stream", "--path", str(wal), "--base", str(parted.base), "--once"]
    words += ["--to", str(tmp_path / "to"), "--state", str(tmp_path / "state")]
    assert run(words) == 0
    capsys.readouterr()
    shutil.rmtree(wal)
    shutil.copytree(parted.second, wal)
    assert run(words) == 1
    assert WRONG in capsys.readouterr().err
