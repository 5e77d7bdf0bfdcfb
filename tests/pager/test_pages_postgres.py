"""Pages that the pager makes are those of the server, byte for byte, folded or not."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.pager.pages import compare_all, files_of, masked
from tests.replay.heap_workload import SETTINGS, fill
from tests.replay.schemas import Schemas
from tests.support.installations import binaries_or_skip
from tests.support.postgres_server import (
    PostgresServer,
    initialised_directory,
    installation,
)
from tests.support.seeds import drawn_seed
from tests.support.waiting import wait_until
from walkeeper_common.lsn import Lsn, parse_segment_name, segment_name
from walkeeper_lab.local.tcp_ports import free_port
from walkeeper_pager.base_pages import BasePages
from walkeeper_pager.following import Following
from walkeeper_pager.page_names import (
    FORKS,
    BeforeHorizon,
    NoSuchPage,
    NotApplied,
    NotReplayed,
    Place,
)
from walkeeper_pager.pager import Pager
from walkeeper_replay.redo.page import PAGE_BYTES
from walkeeper_wal.sources.opening import open_files

pytestmark = pytest.mark.postgres
DEBIANS = 15
SEGMENT = "--wal-segsize=1"
MB = 1 << 20


@dataclass(frozen=True)
class Made:
    """A stopped server, and the directory that it began as."""

    major: int
    data: Path
    base: Path
    seed: int


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest) -> Iterator[Made]:
    with ExitStack() as stack:
        if request.param != DEBIANS:
            stack.enter_context(installation(binaries_or_skip(request.param)))
        settings = {**SETTINGS, "wal_consistency_checking": ""}
        server = stack.enter_context(PostgresServer.create(settings, initdb_options=[SEGMENT]))
        seed = drawn_seed()
        with server.connect(options="-c statement_timeout=120s") as connection:
            fill(connection, seed, 400)
            connection.execute(b"SET search_path = public")
            work = Schemas(connection, seed)
            work.create()
            work.play(1, lambda: None)
        server.stop()
        yield Made(request.param, server.data, initialised_directory((SEGMENT,)), seed)


def segments(made: Made, begin: int) -> Iterator[tuple[int, bytes]]:
    """Yield the server's pg_wal from `begin` on, as long as segments are WAL of their place."""
    for file in sorted((made.data / "pg_wal").glob("0000*")):
        _, first = parse_segment_name(file.name, MB)
        data = file.read_bytes()
        if int(first) < begin:
            continue
        if int.from_bytes(data[8:16], "little") != int(first):
            return
        yield int(first), data


def feed(pager: Pager, made: Made, piece: int = MB, limit: int | None = None) -> None:
    """Feed all WAL there piece by piece; trim now and then, which costs an fsync."""
    for first, data in segments(made, pager.start_lsn // MB * MB):
        while (at := pager.start_lsn - first) < MB:
            pager.wal.write(1, first + at, data[at : at + piece])
            pager.apply()
            if limit is not None and first + at >= limit:
                trim(pager)
                return
        if first // MB % 6 == 0:
            trim(pager)
    trim(pager)


def trim(pager: Pager) -> None:
    while pager.trim():
        pass


def opened(made: Made, state: Path, history_bytes: int) -> Pager:
    return Pager(state, BasePages(str(made.base)), history_bytes=history_bytes)


@pytest.mark.parametrize("made", [13, DEBIANS, 18], indirect=True)
def test_every_page_is_that_of_the_server(made: Made, tmp_path: Path) -> None:
    """Redo of single records is compared on every version in tests/replay."""
    pager = opened(made, tmp_path, MB)
    feed(pager, made)
    assert pager.horizon_lsn > pager.applied_lsn - 4 * MB
    counts = compare_all(pager, made.data)
    assert counts["heap"] > 1000, counts
    assert counts["other"] > 10 * counts["refused"], counts
    files = list((tmp_path / "wal").iterdir())
    assert len(files) < 6, files
    pager.close()


@pytest.mark.parametrize("made", [DEBIANS], indirect=True)
def test_pages_of_the_past_are_the_same_before_and_after_the_horizon_moved(
    made: Made, tmp_path: Path
) -> None:
    whole, stopped = opened(made, tmp_path / "a", 1 << 40), opened(made, tmp_path / "b", 0)
    feed(whole, made)
    draw = random.Random(made.seed)
    last = whole.applied_lsn // MB * MB - MB  # it is fed whole segments, that of `limit` too
    limit = draw.randrange(whole.base.redo_lsn + 2 * MB, last)
    feed(stopped, made, limit=limit)
    lsn = stopped.applied_lsn
    assert lsn < whole.applied_lsn
    compared = 0
    for place, pages in files_of(made.data):
        for block in range(len(pages)):
            answers = []
            for pager, at in ((whole, lsn), (stopped, None)):
                try:
                    answers.append(masked(pager.page(place, block, at)[0], block))
                except (NoSuchPage, NotReplayed) as refused:
                    answers.append(type(refused).__name__.encode())
            assert answers[0] == answers[1], f"{place} {block} at {Lsn(lsn)}"
            compared += 1
    assert compared > 1000
    with pytest.raises(BeforeHorizon, match="before the history that is kept"):
        stopped.page(Place.parse("global/1262"), 0, stopped.horizon_lsn - 8)
    with pytest.raises(NotApplied, match="still to come"):
        stopped.page(Place.parse("global/1262"), 0, lsn + 8)
    whole.close()
    stopped.close()


@pytest.mark.parametrize("made", [DEBIANS], indirect=True)
def test_a_pager_that_is_killed_anywhere_goes_on_without_gap_or_repeat(
    made: Made, tmp_path: Path
) -> None:
    """Each life takes another odd piece; the end of its last one is torn off or bent."""
    state, draw = tmp_path / "state", random.Random(made.seed)
    end = max(first for first, _ in segments(made, 0)) + MB
    lives, torn = 0, 0
    while True:
        pager = opened(made, state, 2 * MB)
        begin = pager.start_lsn
        applied = pager.applied_lsn
        assert begin in (applied, applied // MB * MB), f"{Lsn(begin)} {Lsn(applied)}"
        feed(pager, made, piece=8192 * 29 + 8, limit=begin + draw.randrange(2 * MB))
        received = pager.wal.end_lsn
        pager.close()  # bytes that are not durable are lost below, as in a crash
        lives += 1
        if received is None or received >= end:
            break
        last = sorted((state / "wal").glob("0000*"))[-1]
        size = last.stat().st_size
        cut = draw.randrange(max(size - 50_000, 0), size)
        data = bytearray(last.read_bytes())
        data[cut:] = bytes(len(data) - cut) if lives % 2 else b""
        last.write_bytes(data)
        torn += 1
    assert lives > 5
    pager = opened(made, state, 2 * MB)
    assert compare_all(pager, made.data)["heap"] > 1000
    pager.close()


@pytest.mark.parametrize("made", [DEBIANS], indirect=True)
def test_wal_that_no_safekeeper_has_comes_from_an_archive(made: Made, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    for first, data in segments(made, 0):
        (archive / segment_name(1, Lsn(first), MB)).write_bytes(data)
    pager, stop = opened(made, tmp_path / "state", 4 * MB), threading.Event()
    nobody = [f"127.0.0.1:{free_port()}"]
    following = Following(pager, nobody, "main", lambda: None, open_files(str(archive)))
    thread = threading.Thread(target=following.run, args=(stop,))
    thread.start()
    end = max(first for first, _ in segments(made, 0)) + MB
    try:
        wait_until(lambda: (pager.wal.end_lsn or 0) >= end)
    finally:
        stop.set()
        thread.join()
    pager.apply()
    trim(pager)
    assert "refused" in following.problem, following.problem
    assert compare_all(pager, made.data)["heap"] > 1000
    pager.close()


@pytest.mark.parametrize("option", ["--data-checksums", "--allow-group-access"])
def test_a_damaged_page_of_the_base_backup_is_no_page(option: str, tmp_path: Path) -> None:
    """The server may be of version 18, which has checksums without the option."""
    base = tmp_path / "base"
    shutil.copytree(initialised_directory((SEGMENT, option)), base)
    file = base / "base" / "1" / "1255"
    whole = file.read_bytes()
    upper = PAGE_BYTES + 14
    free = PAGE_BYTES + int.from_bytes(whole[upper - 2 : upper], "little")
    has_checksums = BasePages(str(base)).directory.has_checksums
    assert has_checksums or option != "--data-checksums"
    for at, is_seen in ((upper + 1, True), (free, has_checksums)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        pager = Pager(tmp_path / f"state{at}", BasePages(str(base)), history_bytes=0)
        place, found = Place.parse("base/1/1255"), []
        for block in range(3):
            try:
                found.append(pager.page(place, block)[0])
            except NotReplayed as error:
                assert "damaged in the base backup" in str(error)
                found.append(b"")
        pager.close()
        assert [bool(page) for page in found] == [True, not is_seen, True]


def test_a_page_of_an_unlogged_table_is_refused(tmp_path: Path) -> None:
    """A stopped server's directory has it, and a server that runs on does not log its changes."""
    with PostgresServer.create(initdb_options=[SEGMENT]) as server:
        server.sql(
            "CREATE UNLOGGED TABLE swift (id int PRIMARY KEY)", "INSERT INTO swift VALUES (1)"
        )
        table, index = (
            Place.parse(str(server.sql(f"SELECT pg_relation_filepath('{name}')")))
            for name in ("swift", "swift_pkey")
        )
        server.stop()
        pager = Pager(tmp_path, BasePages(str(server.data)), history_bytes=0)
        for place in (table, index):
            with pytest.raises(NotReplayed, match="unlogged"):
                pager.page(place, 0)
        assert pager.page(replace(index, fork=FORKS["init"]), 0)
        pager.close()
