"""The real directory: modes, descriptors, one process and one id, threads, and a full disk."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.safekeeper.test_wal_store import SEGMENT, facts_of, make_store, plain_wal, recover
from tests.support.fast import NEEDS_FAST_PATH
from tests.support.own_process import open_below
from tests.support.postgres_server import make_directory
from tests.support.waiting import LIMIT_S, wait_until
from walkeeper_common.errors import NoSpace, Refused, StorageError
from walkeeper_fastpath import switch
from walkeeper_safekeeper.disk import real_disk
from walkeeper_safekeeper.disk.real_disk import (
    RESERVE,
    RESERVE_BYTES,
    RealDisk,
    claim_data_directory,
)
from walkeeper_safekeeper.storage import wal_store
from walkeeper_safekeeper.storage.wal_store import SegmentNotAllocated


def test_modes_are_private(tmp_path: Path) -> None:
    disk = RealDisk(str(tmp_path / "a" / "wal"))
    disk.replace("control", b"x")
    disk.allocate("segment", 8192)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / "wal").stat().st_mode & 0o777 == 0o700
    for name in disk.names():
        assert (tmp_path / "a" / "wal" / name).stat().st_mode & 0o777 == 0o600


def test_descriptors_are_bounded_and_follow_their_names(tmp_path: Path) -> None:
    disk = RealDisk(str(tmp_path))
    before = open_below(tmp_path)
    for i in range(3 * real_disk.DESCRIPTORS_MAX):
        disk.replace(f"f{i}", b"%d" % i)
        assert disk.read_at(f"f{i}", 0, 1) == (b"%d" % i)[:1]
    assert 0 < open_below(tmp_path) - before <= real_disk.DESCRIPTORS_MAX
    disk.rename("f1", "f2")
    assert disk.read_at("f2", 0, 1) == b"1"
    disk.unlink("f2")
    disk.allocate("f2", 10)
    assert disk.read_at("f2", 0, 10) == bytes(10)
    disk.close()
    assert open_below(tmp_path) == before


def test_cached_bytes_are_those_of_the_file_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switch, "read_cached", lambda: None)
    disk = RealDisk(str(tmp_path))
    disk.allocate("f", 8192)
    disk.write_at("f", 4096, [b"ab", b"cd"])
    assert disk.read_at("f", 4096, 4) == b"abcd"  # it is open now
    assert disk.read_cached("f", 4096, 4) in (b"abcd", None)  # not every file system can say
    monkeypatch.setattr(os, "preadv", lambda file, buffers, at, flags: os.readv(file, buffers))
    assert disk.read_cached("f", 0, 8192) is not None
    assert disk.read_cached("f", 8190, 4) is None, "the file is shorter"
    assert disk.read_cached("closed", 0, 1) is None, "to open a file may take its time"

    def would_wait(file: int, buffers: list[bytearray], at: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", would_wait)
    assert disk.read_cached("f", 0, 4) is None


@NEEDS_FAST_PATH
def test_the_compiled_read_of_cached_bytes_gives_all_of_them_or_none(tmp_path: Path) -> None:
    read_cached = switch.read_cached()
    assert read_cached is not None
    (tmp_path / "f").write_bytes(b"abcdefgh" * 1024)
    with (tmp_path / "f").open("rb") as file:
        assert file.read(8192)[:2] == b"ab"  # it is in the page cache now
        for offset, size in ((0, 8192), (1, 3), (8190, 2), (8190, 4), (9000, 1)):
            wanted = os.pread(file.fileno(), size, offset)
            found = read_cached(file.fileno(), size, offset)
            assert found in ((wanted, None) if len(wanted) == size else (None,))
    assert read_cached(-1, 1, 0) is None


def test_a_data_directory_has_one_process_and_one_id(tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    claimed = claim_data_directory(path, 1)
    with pytest.raises(Refused, match=f"another safekeeper is running in {path}"):
        claim_data_directory(path, 1)
    code = f"from walkeeper_safekeeper.disk.real_disk import *; claim_data_directory({path!r}, 1)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert b"another safekeeper is running" in child.stderr
    claimed.release()
    with pytest.raises(Refused, match="belongs to safekeeper 1: start it with --id 1"):
        claim_data_directory(path, 2)
    claim_data_directory(path, 1).release()
    (tmp_path / "data" / "safekeeper").write_bytes(b"?")
    with pytest.raises(StorageError, match="whose directory"):
        claim_data_directory(path, 1)


def test_a_data_directory_that_is_a_link_to_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sk"
    path.symlink_to(tmp_path / "disk that is not mounted")
    with pytest.raises(StorageError, match=f"{path}: a link to what is not there"):
        claim_data_directory(str(path), 1)
    assert not path.exists()


def test_a_directory_of_another_user_is_refused_with_both_users() -> None:
    """As one that root has made for a container that runs as somebody else."""
    directory = make_directory()
    own_user, owner = os.geteuid(), directory.stat().st_uid
    directory.chmod(0o555)
    try:
        if own_user == 0:
            os.seteuid(10001)
        told = rf"user {os.geteuid()} may not .* {directory} \(of user {owner}, mode 555\)"
        with pytest.raises(Refused, match=told):
            claim_data_directory(str(directory), 1)
    finally:
        os.seteuid(own_user)
        directory.rmdir()


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a tmpfs here")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def fill(path: Path) -> None:
    with (path / "filler").open("ab", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(4096))


def test_the_control_file_can_be_written_on_a_full_disk(small_file_system: Path) -> None:
    disk = RealDisk(str(small_file_system), reserve_bytes=1 << 18)
    disk.replace("control", b"a" * 5000)
    fill(small_file_system)
    with pytest.raises(NoSpace, match="no space"):
        disk.allocate("segment", 1 << 16)
    for i in range(200):
        disk.replace("control", b"%d" % i * 3000)
        assert disk.read_at("control", 0, 3) == (b"%d" % i * 3)[:3]
        fill(small_file_system)  # another process takes the space that became free
    with pytest.raises(NoSpace):
        disk.allocate("segment", 1 << 16)
    assert "segment" not in disk.names()
    (small_file_system / "filler").unlink()
    disk.allocate("segment", 1 << 16)
    assert disk.size(RESERVE) == 1 << 18
    disk.close()


def test_another_process_may_win_what_the_reserve_gives(
    small_file_system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that was being filled took the whole reserve at once: a failed disk at the next."""
    disk = RealDisk(str(small_file_system))
    disk.replace("control", bytes(600))
    fill(small_file_system)
    for i in range(10):
        with monkeypatch.context() as meanwhile:
            for name in ("unlink", "truncate"):
                meanwhile.setattr(os, name, followed_by(getattr(os, name), 3, small_file_system))
            disk.replace("control", b"%d" % i * 600)
        assert disk.read_at("control", 0, 600) == b"%d" % i * 600
        fill(small_file_system)
    (small_file_system / "filler").unlink()
    disk.allocate("segment", 1 << 16)
    assert disk.size(RESERVE) == RESERVE_BYTES
    disk.close()


def followed_by(call: Callable[..., None], times: int, path: Path) -> Callable[..., None]:
    """Return a call that leaves no free block behind, so many times."""
    left = [times]

    def filled(*arguments: object) -> None:
        call(*arguments)
        left[0] -= 1
        if left[0] >= 0:
            fill(path)

    return filled


def test_two_threads_replace_files_on_a_full_disk(small_file_system: Path) -> None:
    """The state of a log and its slots, in one folder: they shared the reserve without a lock."""
    disk = RealDisk(str(small_file_system))
    sizes = {"control": 600, "slots": 100}
    for name, size in sizes.items():
        disk.replace(name, bytes(size))
    fill(small_file_system)
    failures: list[StorageError] = []
    together = threading.Barrier(2)

    def replace(name: str) -> None:
        for _ in range(300):
            together.wait(LIMIT_S)
            try:
                disk.replace(name, bytes(sizes[name]))
            except StorageError as error:
                failures.append(error)

    threads = [threading.Thread(target=replace, args=(name,)) for name in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    disk.close()
    assert not failures, failures[0]


def test_a_log_on_a_full_disk_refuses_appends_and_goes_on_later(small_file_system: Path) -> None:
    wal = plain_wal(10, 150)
    disk = RealDisk(str(small_file_system), reserve_bytes=1 << 16)
    store = make_store(disk)
    store.create(wal.start_lsn)
    fill(small_file_system)
    with pytest.raises(SegmentNotAllocated) as full:
        store.append(wal.start_lsn, [wal.read(wal.start_lsn, wal.end_lsn)])
    lsn = full.value.flush_lsn
    assert lsn == wal.start_lsn + SEGMENT
    assert store.record_end(lsn).end_lsn == wal.end_before(lsn)[1]
    (small_file_system / "filler").unlink()
    store.append(lsn, [wal.read(lsn, wal.end_lsn)])
    disk.close()
    disk = RealDisk(str(small_file_system), reserve_bytes=1 << 16)
    assert recover(make_store(disk), facts_of(wal)).flush_lsn == wal.end_lsn
    disk.close()


def test_segments_are_prepared_by_another_thread_while_wal_is_appended(tmp_path: Path) -> None:
    wal = plain_wal(13, 1500)
    disk = RealDisk(str(tmp_path))
    store = make_store(disk)
    store.create(wal.start_lsn)
    written, stop, failures = [wal.start_lsn], threading.Event(), []

    def prepare() -> None:
        try:
            while not stop.is_set():
                store.prepare_ahead(written[0])
                store.read(wal.start_lsn, written[0])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=prepare) for _ in range(2)]
    for thread in threads:
        thread.start()
    while written[0] < wal.end_lsn:
        end = min(wal.end_lsn, written[0] + 5000)
        written[0] = store.append(written[0], [wal.read(written[0], end)])
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert store.read(wal.start_lsn, wal.end_lsn) == wal.read(wal.start_lsn, wal.end_lsn)
    disk.close()


@pytest.mark.parametrize(("wanted", "kept"), [(None, 4), (9, 4), (5, 6), (1, 8)])
def test_wal_that_was_written_long_ago_takes_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: int | None, kept: int
) -> None:
    """A reader that lags finds its WAL in memory, up to a bound."""
    monkeypatch.setattr(wal_store, "CACHED_BYTES", 2 * SEGMENT)
    monkeypatch.setattr(wal_store, "CACHED_BYTES_MAX", 6 * SEGMENT)
    wal = plain_wal(14, 300)
    disk, dropped = RealDisk(str(tmp_path)), list[str]()
    drop_cached = disk.drop_cached

    def drop(name: str) -> None:
        dropped.append(name)
        drop_cached(name)

    monkeypatch.setattr(disk, "drop_cached", drop)
    store = make_store(disk)
    store.create(wal.start_lsn)
    at = wal.start_lsn
    wanted_lsn = None if wanted is None else at + wanted * SEGMENT
    while at < wal.end_lsn:
        at = store.append(at, [wal.read(at, min(wal.end_lsn, at + SEGMENT // 2))])
        store.prepare_ahead(at, wanted_lsn)
    names = [name for name in disk.names() if len(name) == 24]
    assert len(names) == 11 and dropped == names[:-kept]
    assert all(is_cached(tmp_path / name) for name in names[-kept:])
    if knows_hints(disk, tmp_path):  # tmpfs has nowhere else to keep it
        for name in dropped:
            wait_until(partial(is_dropped, disk, tmp_path / name))
    assert store.read(wal.start_lsn, wal.end_lsn) == wal.read(wal.start_lsn, wal.end_lsn)
    disk.close()


def knows_hints(disk: RealDisk, path: Path) -> bool:
    disk.replace("probe", b"x")
    disk.drop_cached("probe")
    return not is_cached(path / "probe")


def is_dropped(disk: RealDisk, path: Path) -> bool:
    """Return False if a file is cached, and drop it again: the kernel keeps pages in use.

    A look at a file that is not cached makes the kernel read it. So one look has to be enough."""
    if not is_cached(path):
        return True
    disk.drop_cached(path.name)
    return False


def is_cached(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def test_a_quota_answers_as_a_full_disk_does_and_counts_segments_alone(tmp_path: Path) -> None:
    disk = RealDisk(str(tmp_path / "wal"), bytes_max=3 * 8192)
    names = [f"0000000100000000{number:08X}" for number in range(4)]
    for name in names[:3]:
        disk.allocate(name + ".tmp", 8192)
        disk.rename(name + ".tmp", name)
    with pytest.raises(NoSpace, match="--wal-size-max"):
        disk.allocate(names[3] + ".tmp", 8192)
    assert sorted(name for name in disk.names() if name != "reserve") == names[:3]
    disk.replace("head.mark", bytes(100))
    disk.unlink(names[0])
    disk.allocate(names[3] + ".tmp", 8192)
