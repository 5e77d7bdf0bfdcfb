"""WAL that a cut takes is in orphans/ before the cut is announced; no error there stops a cut."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.safekeeper.test_safekeeper_driver import SEGMENT_BYTES, START, Bench, made_wal
from tests.support.faulty_disk import FaultyDisk, PowerCut
from tests.support.faulty_shelf import FaultyShelf, holds_tail
from tests.support.postgres_server import program
from tests.support.wal_maker import SYSTEM_ID, WalMaker
from walkeeper_common.errors import StorageError
from walkeeper_common.history import NO_BALLOT, Ballot, Fragment
from walkeeper_common.lsn import Lsn
from walkeeper_common.timelines import Timelines
from walkeeper_common.wire.messages import ProposerElected
from walkeeper_safekeeper.disk.orphan_shelf import OrphanShelf
from walkeeper_safekeeper.storage import orphans
from walkeeper_safekeeper.storage.disk_port import HALF_MADE
from walkeeper_safekeeper.storage.orphans import Orphans, Shelf, orphan_name
from walkeeper_safekeeper.storage.wal_store import WalStore
from walkeeper_wal.records.versions import MAJORS

MEMBERS = ("1#i",)
OLD, NEW = Ballot(3, b"\xab" * 16), Ballot(4, b"q" * 16)
HISTORY = (
    Fragment(NO_BALLOT, START, 1, False, MEMBERS, 1),
    Fragment(OLD, START, 1, False, MEMBERS, 1),
)
MARGIN = orphans.SEGMENTS_LEFT_MIN * SEGMENT_BYTES


def shelf_in_memory(_: Path) -> Shelf:
    return FaultyShelf(FaultyDisk(Random(1)))


def shelf_on_disk(path: Path) -> Shelf:
    return OrphanShelf(str(path / "orphans"))


@pytest.fixture(params=[shelf_in_memory, shelf_on_disk])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Shelf:
    made: Shelf = request.param(tmp_path)
    return made


def store_with(maker: WalMaker, disk: FaultyDisk | None = None) -> WalStore:
    disk = FaultyDisk(Random(2)) if disk is None else disk
    store = WalStore(
        disk, segment_bytes=SEGMENT_BYTES, timelines=Timelines(HISTORY), system_id=SYSTEM_ID
    )
    store.create(START)
    store.append(START, [maker.read(START, maker.end_lsn)])
    return store


def files_of(shelf: Shelf, name: str) -> dict[str, bytes]:
    if isinstance(shelf, FaultyShelf):
        return shelf.files(name)
    assert isinstance(shelf, OrphanShelf)
    return {path.name: path.read_bytes() for path in (Path(shelf.path) / name).iterdir()}


def test_a_shelf_has_whole_directories_with_zeros_where_nothing_was_given(shelf: Shelf) -> None:
    shelf.put("b", [("one", 40960, [(8192, b"x" * 10)]), ("two", 3, [])])
    shelf.put("a", [("one", 10, [(0, b"old")])])
    shelf.put("a", [("one", 10, [(5, b"new")])])
    assert shelf.names() == ["a", "b"]
    assert files_of(shelf, "b") == {"one": bytes(8192) + b"x" * 10 + bytes(32758), "two": bytes(3)}
    assert files_of(shelf, "a") == {"one": bytes(5) + b"new" + bytes(2)}
    assert shelf.size("b") <= 16384, "what was not given takes nothing"
    assert shelf.room_bytes() > 0
    shelf.remove("b")
    assert shelf.names() == ["a"]


def test_a_folder_that_a_crash_left_half_made_is_no_orphan_and_goes(tmp_path: Path) -> None:
    shelf = OrphanShelf(str(tmp_path / "orphans"))
    left = tmp_path / "orphans" / ("b" + HALF_MADE)
    left.mkdir()
    (left / "one").write_bytes(b"x")
    assert shelf.names() == []
    shelf.put("a", [("one", 3, [(0, b"abc")])])
    assert [path.name for path in (tmp_path / "orphans").iterdir()] == ["a"]
    assert (tmp_path / "orphans" / "a").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "orphans" / "a" / "one").stat().st_mode & 0o777 == 0o600


def test_a_tail_is_kept_as_segments_under_a_name_that_says_what_it_is(shelf: Shelf) -> None:
    maker = made_wal(3 * SEGMENT_BYTES)
    store, begin = store_with(maker), maker.records[5].end_lsn
    said = Orphans(shelf).keep(store, HISTORY, begin)
    end = maker.records[-1].end_lsn
    name = f"timeline-1_0-{int(begin):X}_0-{int(end):X}_term-3_abababab"
    assert shelf.names() == [name] == [orphan_name(HISTORY, begin, end)]
    files = files_of(shelf, name)
    assert holds_tail(files, store, begin, maker.read(begin, end))
    assert {len(data) for data in files.values()} == {SEGMENT_BYTES}
    assert said is not None and f"-s {begin} -e {end}" in said and name in said, said


def magic_of(tool: str) -> int:
    """Return the magic of the WAL that the installed tool reads."""
    said = subprocess.run([program(tool), "--version"], capture_output=True, text=True).stdout
    major = int(re.findall(r"\d+", said)[0])
    return next(magic for magic, known in MAJORS.items() if known == major)


def test_pg_waldump_reads_an_orphan_as_its_note_says(tmp_path: Path) -> None:
    shelf, maker = (
        OrphanShelf(str(tmp_path / "orphans")),
        WalMaker(
            Random(3), segment_bytes=1 << 20, start_lsn=Lsn(1 << 20), magic=magic_of("pg_waldump")
        ),
    )
    while maker.end_lsn < 3 << 20:
        maker.record(30_000)
    store = WalStore(
        FaultyDisk(Random(2)),
        segment_bytes=1 << 20,
        timelines=Timelines(HISTORY),
        system_id=SYSTEM_ID,
    )
    store.create(Lsn(1 << 20))
    store.append(Lsn(1 << 20), [maker.read(maker.start_lsn, maker.end_lsn)])
    behind = [record for record in maker.records if record.start_lsn > 3 << 19]
    said = Orphans(shelf).keep(store, HISTORY, behind[0].start_lsn)
    assert said is not None
    arguments = said.partition("pg_waldump ")[2].split()
    ran = subprocess.run(
        [program("pg_waldump"), *arguments], cwd=tmp_path, capture_output=True, text=True
    )
    assert len(ran.stdout.splitlines()) == len(behind), ran.stdout[-500:] + ran.stderr


def test_half_a_record_is_not_kept(shelf: Shelf) -> None:
    maker = made_wal(8000)
    whole, half = maker.records[-2].end_lsn, maker.records[-1].end_lsn - 8
    store = WalStore(
        FaultyDisk(Random(2)),
        segment_bytes=SEGMENT_BYTES,
        timelines=Timelines(HISTORY),
        system_id=SYSTEM_ID,
    )
    store.create(START)
    store.append(START, [maker.read(START, half)])
    assert Orphans(shelf).keep(store, HISTORY, whole) is None
    assert shelf.names() == []


def test_tails_of_the_oldest_terms_make_way_and_strangers_stay(shelf: Shelf) -> None:
    maker = made_wal(8 * 8192)
    store = store_with(maker)
    shelf.put("somebody's notes", [("a", 1, [])])
    kept = Orphans(shelf, kept_bytes_max=5 * 8192)
    for term in (9, 10, 11):
        ballot = Ballot(term, bytes(16))
        history = (HISTORY[0], Fragment(ballot, START, 1, False, MEMBERS, 1))
        # Two pages each, and on a real disk the first page of the segment.
        at = next(r.end_lsn for r in maker.records if r.end_lsn > maker.end_lsn - 8000)
        kept.keep(store, history, at)
    terms = [name.split("_term-")[1][:2] for name in shelf.names() if "_term-" in name]
    assert "11" in terms and "9_" not in terms, terms
    assert "somebody's notes" in shelf.names()


def test_the_beginning_of_a_tail_without_end_is_kept(shelf: Shelf) -> None:
    maker = made_wal(2 * SEGMENT_BYTES)
    store, begin = store_with(maker), maker.records[2].end_lsn
    said = Orphans(shelf, tail_bytes_max=20_000).keep(store, HISTORY, begin)
    assert said is not None and f"after it up to {maker.records[-1].end_lsn} is not" in said
    assert f"_{begin + 20_000}_".replace("/", "-") in shelf.names()[0]


def test_wal_comes_first_where_room_is_short() -> None:
    maker, shelf = made_wal(8000), FaultyShelf(FaultyDisk(Random(1)))
    store, begin = store_with(maker), maker.records[2].end_lsn
    shelf.disk.capacity_bytes = MARGIN + (maker.records[-1].end_lsn - begin) - 1
    said = Orphans(shelf).keep(store, HISTORY, begin)
    assert said is not None and said.startswith("WARNING") and "room" in said
    assert shelf.names() == []
    shelf.disk.capacity_bytes += 1
    Orphans(shelf).keep(store, HISTORY, begin)
    assert len(shelf.names()) == 1


def elect_past_the_tail(bench: Bench, maker: WalMaker) -> Lsn:
    """Elect a leader that has only the first records; return where it cuts."""
    at = maker.records[3].end_lsn
    creation, first = bench.driver.acceptor.durable.history
    entry = Fragment(NEW, at, 1, False, creation.members, 1)
    bench.receive(ProposerElected(1, NEW, at, (creation, first, entry)))
    return at


def cut_with(shelf: Shelf) -> tuple[Bench, WalMaker, Lsn]:
    bench, maker = Bench(), made_wal(2 * SEGMENT_BYTES)
    bench.append(START, maker.read(START, START + SEGMENT_BYTES))
    bench.append(START + SEGMENT_BYTES, maker.read(START + SEGMENT_BYTES, maker.end_lsn))
    bench.writer.run_all()
    bench.driver.orphans = Orphans(shelf)
    return bench, maker, elect_past_the_tail(bench, maker)


def test_a_disk_that_fails_keeps_no_cut_from_going_on() -> None:
    class Failing(FaultyShelf):
        def room_bytes(self) -> int:
            raise StorageError("looking at orphans: Input/output error")

    bench, _, at = cut_with(Failing(FaultyDisk(Random(5))))
    bench.writer.run_all()
    acceptor = bench.driver.acceptor
    assert acceptor.failure is None and acceptor.flush_lsn == at == acceptor.write_lsn
    assert acceptor.durable.history[-1].ballot == NEW
    assert any("not kept in orphans/: looking at" in text for text in bench.heard.notes)


def test_the_copy_is_durable_before_the_mark_whenever_the_power_is_cut() -> None:
    """After every operation of the cut: the log is whole, or the orphan is."""
    operations, was_whole, was_kept = 0, 0, 0
    while True:
        bench, maker, at = cut_with(FaultyShelf(FaultyDisk(Random(operations))))
        assert isinstance(bench.driver.orphans, Orphans)
        shelf = bench.driver.orphans._shelf
        assert isinstance(shelf, FaultyShelf)
        disks = [shelf.disk, bench.folder_disk, bench.disk]
        tail = maker.read(at, maker.records[-1].end_lsn)
        store = bench.driver.store
        try:
            share_budget(disks, operations)
            bench.writer.run_all()
        except PowerCut:
            pass
        else:
            break
        kept, folder, _ = (disk.crash() for disk in disks)
        survivors = FaultyShelf(kept)
        is_kept = any(
            holds_tail(survivors.files(name), store, at, tail) for name in survivors.names()
        )
        is_marked = bench.load_from(folder).truncating_to is not None or (
            bench.load_from(folder).history[-1].ballot == NEW
        )
        assert is_kept or not is_marked, f"{operations=}: cut, and nothing kept"
        was_whole, was_kept = was_whole + (not is_marked), was_kept + is_kept
        operations += 1
    assert was_whole > 2 and was_kept > 5, f"{was_whole=} {was_kept=}"


def share_budget(disks: list[FaultyDisk], operations: int) -> None:
    """Cut the power after so many operations of all the disks together."""
    left = operations

    def spend(disk: FaultyDisk) -> Callable[[], None]:
        def operation() -> None:
            nonlocal left
            if left == 0:
                raise PowerCut(f"after {operations} operations")
            left -= 1
            disk.operations += 1

        return operation

    for disk in disks:
        disk._operation = spend(disk)  # type: ignore[method-assign]  # a spy
