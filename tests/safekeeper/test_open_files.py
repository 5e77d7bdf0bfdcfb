"""The open files of many logs: one bound for all, none closed in use, and too few of them."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pytest

from tests.safekeeper.test_wal_store import SEGMENT, facts_of, make_store, plain_wal, recover
from tests.support.own_process import open_below, run_in_own_process
from walkeeper_common.errors import NoSpace, StorageError
from walkeeper_common.pace import Pace
from walkeeper_common.shell.process.descriptors import (
    DESCRIPTORS_MIN,
    connections_allowed,
    kept_files_allowed,
    waiting_allowed,
)
from walkeeper_safekeeper.disk.open_files import RESERVED, OpenFiles
from walkeeper_safekeeper.disk.real_disk import RealDisk
from walkeeper_safekeeper.hosting.log_catalog import LogCatalog
from walkeeper_safekeeper.safekeeper_daemon import PROPOSERS_MAX, line_limits
from walkeeper_safekeeper.safekeeper_settings import SafekeeperSettings
from walkeeper_safekeeper.storage.wal_store import SegmentNotAllocated

PIECE = 64


def disks_on(tmp_path: Path, files: OpenFiles, count: int) -> list[RealDisk]:
    return [
        RealDisk(str(tmp_path / f"log{i}"), files=files, reserve_bytes=4096) for i in range(count)
    ]


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let no more file be opened in this process, but in the place of a closed one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open("/dev/null", os.O_RDONLY)]
    try:
        limit = max(map(int, os.listdir("/proc/self/fd"))) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            while True:
                taken.append(os.dup(taken[0]))
        except OSError as error:
            assert error.errno == errno.EMFILE
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


@pytest.fixture(autouse=True)
def nothing_of_other_tests() -> None:
    gc.collect()  # it would make room where `no_descriptors` has left none
    gc.freeze()  # the next test need not look at all of it again, which took a second


# One bound


def test_all_logs_of_a_process_share_one_bound(tmp_path: Path) -> None:
    files = OpenFiles(10)
    disks = disks_on(tmp_path, files, 14)
    before = open_below(tmp_path)
    for i in range(20):
        for k, disk in enumerate(disks):
            disk.replace(f"f{i}", b"%02d %02d" % (k, i))
            assert disk.read_at(f"f{i}", 0, 5) == b"%02d %02d" % (k, i)
            assert open_below(tmp_path) - before <= 10
    for disk in disks:
        disk.close()
    assert (len(files), open_below(tmp_path)) == (0, before)


def test_a_file_in_frequent_use_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy log's tail stays, beside a reader that goes through all of its segments."""
    files, opened, open_file = OpenFiles(4), list[str](), os.open
    busy, other = disks_on(tmp_path, files, 2)
    busy.allocate("tail", PIECE)
    for i in range(50):
        other.replace(f"f{i}", b"x")

    def watched(path: str, *arguments: int) -> int:
        opened.append(os.path.basename(path))
        return open_file(path, *arguments)

    monkeypatch.setattr(os, "open", watched)
    tail = busy.writer("tail")
    for i in range(50):
        tail.write(b"%02d" % i, 0)
        tail.sync()
        if i % 4 == 3:  # something else has happened in its log
            tail.close()
            tail = busy.writer("tail")
        other.read_at(f"f{i}", 0, 1)
    assert opened == ["tail", *(f"f{i}" for i in range(50))]
    tail.close()
    for i in range(4):
        other.read_at(f"f{i}", 0, 1)
    assert busy.read_at("tail", 0, 2) == b"49" and opened[-1] == "tail", "nobody used it any more"


def five_logs_share_a_quarter(directory: Path) -> None:
    async def body() -> None:
        settings = SafekeeperSettings(1, str(directory), ("127.0.0.1", 0))
        async with asyncio.TaskGroup() as group:
            catalog = LogCatalog(settings, group, lambda defect: None)
            before = open_below(directory)
            for k in range(5):
                catalog._folder(f"c{k}")
            for k in range(5):
                for number in range(kept_files_allowed() // 4):
                    folder = catalog._folder(f"c{k}")
                    name = f"{k} {number}"
                    (directory / f"c{k}" / "slots").write_bytes(name.encode())
                    assert folder.load_slots() == name.encode()
            opened = open_below(directory) - before
            assert opened == kept_files_allowed() < 5 * (kept_files_allowed() // 4)

    assert kept_files_allowed() == DESCRIPTORS_MIN // 4
    assert kept_files_allowed() + connections_allowed(1000) < DESCRIPTORS_MIN
    assert 2 * line_limits().network_max <= line_limits().line_max == connections_allowed(100)
    assert connections_allowed(PROPOSERS_MAX) < kept_files_allowed(), "each may hold a tail"
    asyncio.run(body())


def test_the_logs_of_a_safekeeper_have_a_quarter_of_its_descriptors(tmp_path: Path) -> None:
    run_in_own_process(five_logs_share_a_quarter, tmp_path, descriptors_max=DESCRIPTORS_MIN)


@pytest.mark.parametrize(("descriptors", "line_max"), [(2000, 100), (3000, 600), (4096, 1000)])
def test_new_connections_wait_on_descriptors_that_are_left(
    descriptors: int, line_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
    assert waiting_allowed() == line_limits().line_max == line_max
    assert connections_allowed(900) + waiting_allowed() <= descriptors // 2


# In use


def put_durably(disk: RealDisk, name: str, data: bytes) -> None:
    writer = disk.writer(name)
    try:
        assert writer.write(data, 0) == len(data)
        writer.sync()
    finally:
        writer.close()


def read(disk: RealDisk) -> None:
    assert disk.read_at("used", 0, PIECE) == bytes(PIECE)


def write(disk: RealDisk) -> None:
    disk.write_at("used", 0, [b"12", b"34"])


def write_durably(disk: RealDisk) -> None:
    put_durably(disk, "used", b"1234")


def sync(disk: RealDisk) -> None:
    disk.sync_data("used")


def drop_cached(disk: RealDisk) -> None:
    disk.drop_cached("used")


@pytest.mark.parametrize("ends", ["evicted", "unlinked", "replaced", "closed"])
@pytest.mark.parametrize("use", [read, write, write_durably, sync, drop_cached])
def test_a_descriptor_in_use_is_never_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[RealDisk], None], ends: str
) -> None:
    """At each system call another thread does all that closes descriptors, and opens files that
    would get the number."""
    files = OpenFiles(1)
    disk, other = disks_on(tmp_path, files, 2)
    disk.allocate("used", PIECE)
    other.replace("f", b"x")
    inode, calls = (tmp_path / "log0" / "used").stat().st_ino, list[str]()

    def meanwhile() -> None:
        with suppress(StorageError):  # it may be gone already
            if ends == "unlinked":
                disk.unlink("used")
            elif ends == "replaced":
                disk.replace("used", bytes(PIECE))
            elif ends == "closed":
                disk.close()
        for _ in range(3):
            other.replace("f", b"x")
            assert other.read_at("f", 0, 1) == b"x"

    def watched(name: str) -> Callable[..., object]:
        call = getattr(os, name)

        def checked(descriptor: int, *arguments: object) -> object:
            if os.fstat(descriptor).st_ino == inode and threading.current_thread() is main:
                calls.append(name)
                thread = threading.Thread(target=meanwhile)
                thread.start()
                thread.join()
                assert os.fstat(descriptor).st_ino == inode, f"{name} of another file"
            return call(descriptor, *arguments)

        return checked

    main = threading.current_thread()
    for name in ("pread", "pwrite", "pwritev", "fdatasync", "posix_fadvise"):
        monkeypatch.setattr(os, name, watched(name))
    before = open_below(tmp_path)
    use(disk)
    assert calls
    disk.close()
    other.close()
    assert open_below(tmp_path) <= before


def test_a_file_that_is_gone_is_closed_with_the_last_of_its_users(tmp_path: Path) -> None:
    files, key = OpenFiles(10), (object(), "f")
    file = files.add(key, os.open(tmp_path, os.O_RDONLY))
    inode = tmp_path.stat().st_ino
    assert files.hold(key) is file
    files.forget(key)
    assert files.hold(key) is None
    files.give_back(file)
    assert os.fstat(file.descriptor).st_ino == inode
    files.give_back(file)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file.descriptor)


def test_many_threads_with_few_descriptors_write_each_their_own_files(tmp_path: Path) -> None:
    files, failures = OpenFiles(2), list[BaseException]()
    disks = disks_on(tmp_path, files, 6)

    def run(disk: RealDisk, mark: bytes) -> None:
        random = Random(mark)
        try:
            for i in range(4):
                disk.allocate(f"s{i}", PIECE)
            for _ in range(300):
                name = f"s{random.randrange(4)}"
                if random.random() < 0.1:
                    disk.allocate(f"{name}.tmp", PIECE)
                    disk.rename(f"{name}.tmp", name)
                    disk.write_at(name, 0, [mark * PIECE])
                elif random.random() < 0.5:
                    disk.write_at(name, 0, [mark * PIECE])
                    disk.sync_data(name)
                else:
                    put_durably(disk, name, mark * PIECE)
                assert disk.read_at(name, 0, PIECE) == mark * PIECE
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=run, args=(disk, b"%c" % (65 + k))) for k, disk in enumerate(disks)
    ]
    before = open_below(tmp_path)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for disk in disks:
        disk.close()
    assert (len(files), open_below(tmp_path)) == (0, before)


def test_a_file_stays_open_between_its_write_and_its_sync(tmp_path: Path) -> None:
    """The kernel reports a failed write back on descriptors open then, perhaps on no others."""
    files = OpenFiles(1)
    disk, other = disks_on(tmp_path, files, 2)
    disk.allocate("segment", PIECE)
    other.replace("f", b"x")
    disk.write_at("segment", 0, [b"1"])
    key = disk._owner, "segment"
    written = files.hold(key)
    assert written is not None
    files.give_back(written)
    other.read_at("f", 0, 1)
    again = files.hold(key)
    assert again is written
    files.give_back(again)
    disk.sync_data("segment")
    other.read_at("f", 0, 1)
    assert files.hold(key) is None


# Too few


def test_idle_files_make_room_for_one_that_is_needed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = OpenFiles(100)
    busy, idle = disks_on(tmp_path, files, 2)
    busy.allocate("segment", PIECE)
    for i in range(8):
        idle.replace(f"f{i}", b"x")
        idle.read_at(f"f{i}", 0, 1)
    with no_descriptors():
        busy.write_at("segment", 0, [b"1"])
    assert len(files) == 1
    busy.sync_data("segment")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "Too many open files: " in caplog.text and "LimitNOFILE=" in caplog.text


DOINGS: dict[str, Callable[[RealDisk], object]] = {
    "allocate": lambda disk: disk.allocate("new", PIECE),
    "replace": lambda disk: disk.replace("control", b"x"),
    "names": lambda disk: disk.names(),
    "sync_directory": lambda disk: disk.sync_directory(),
    "read_at": lambda disk: disk.read_at("segment", 0, 1),
    "writer": lambda disk: put_durably(disk, "segment", b"1"),
}


@pytest.mark.parametrize("doing", DOINGS)
def test_every_opening_of_a_file_gets_room(tmp_path: Path, doing: str) -> None:
    files = OpenFiles(100)
    busy, idle = disks_on(tmp_path, files, 2)
    busy.allocate("segment", PIECE)
    idle.replace("f", b"x")
    idle.read_at("f", 0, 1)
    with no_descriptors():
        DOINGS[doing](busy)
    assert doing in ("read_at", "writer") or not len(files)


@pytest.mark.parametrize("doing", DOINGS)
def test_without_any_descriptor_wal_waits_and_what_cannot_wait_has_a_reserve(
    tmp_path: Path, doing: str, caplog: pytest.LogCaptureFixture
) -> None:
    (disk,) = disks_on(tmp_path, OpenFiles(100), 1)
    disk.allocate("segment", PIECE)
    with no_descriptors():
        for _ in range(2 * RESERVED):
            if doing not in ("allocate", "writer"):
                DOINGS[doing](disk)
                continue
            with pytest.raises(NoSpace, match="Too many open files"):
                DOINGS[doing](disk)
    assert "new" not in disk.names()
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert "also after that" in caplog.text
    DOINGS[doing](disk)


def reserve_is_made_whole_again(directory: Path) -> None:
    def open_count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = open_count()
    files = OpenFiles(100)
    assert open_count() == before + RESERVED
    (disk,) = disks_on(directory, files, 1)
    with no_descriptors():
        spent = [files.opening_at_any_rate(lambda: os.dup(0)) for _ in range(3)]
    assert open_count() == before + RESERVED
    for descriptor in spent:
        os.close(descriptor)
    assert open_count() == before + RESERVED - len(spent)
    disk.names()
    assert open_count() == before + RESERVED


def test_a_reserve_that_was_given_up_is_made_whole_again(tmp_path: Path) -> None:
    run_in_own_process(reserve_is_made_whole_again, tmp_path, descriptors_max=DESCRIPTORS_MIN)


def test_a_log_without_descriptors_refuses_appends_and_goes_on_later(tmp_path: Path) -> None:
    """At each append: in a segment that is there, and in one that would have to be allocated."""
    wal = plain_wal(21, 150)
    (disk,) = disks_on(tmp_path, OpenFiles(100), 1)
    store = make_store(disk)
    store.create(wal.start_lsn)
    at = wal.start_lsn
    while at < wal.end_lsn:
        end = min(wal.end_lsn, at + SEGMENT // 2)
        disk.close()
        with no_descriptors():
            for _ in range(2):
                with pytest.raises(SegmentNotAllocated, match="Too many open files") as error:
                    store.append(at, [wal.read(at, end)])
                assert error.value.flush_lsn == at
        at = store.append(at, [wal.read(at, end)])
    assert store.read(wal.start_lsn, wal.end_lsn) == wal.read(wal.start_lsn, wal.end_lsn)
    disk.close()
    assert recover(make_store(disk), facts_of(wal)).flush_lsn == wal.end_lsn


def test_the_short_way_to_the_tail_has_a_descriptor_or_is_not_there(tmp_path: Path) -> None:
    wal = plain_wal(22, 20)
    (disk,) = disks_on(tmp_path, OpenFiles(100), 1)
    store = make_store(disk)
    store.create(wal.start_lsn)
    half, later, pace = wal.start_lsn + 5000, wal.start_lsn + 5100, Pace(lambda: 0.0)
    store.append(wal.start_lsn, [wal.read(wal.start_lsn, half)])
    tail = store.tail(half, pace)
    assert tail is not None
    disk.close()
    with no_descriptors():
        data = wal.read(half, later)
        assert tail.write(data, half - tail.begin_lsn) == len(data), "it kept its own"
        tail.sync()
    tail.close()
    with no_descriptors():
        assert store.tail(later, pace) is None
        with pytest.raises(SegmentNotAllocated):
            store.append(later, [wal.read(later, wal.end_lsn)])
    tail = store.tail(later, pace)
    assert tail is not None
    tail.write(wal.read(later, wal.end_lsn), later - tail.begin_lsn)
    tail.sync()
    tail.close()
    assert store.read(wal.start_lsn, wal.end_lsn) == wal.read(wal.start_lsn, wal.end_lsn)
