"""The directories of a safekeeper on a real file system, by the `Disk` port of the storage.

    RealDisk(path)            one directory: segments, or the control file and slots
    claim_data_directory      DIR is ours, for this process and for this acceptor id

Contract: that of `disk_port.Disk`. ENOSPC and EDQUOT are NoSpace in `allocate` only. EMFILE and
ENFILE are NoSpace there, and where a write cannot open its file. Every other OSError is a
StorageError with path and errno, and the caller never retries. It is safe to use from several
threads; a file may be unlinked or replaced while another thread reads it. Modes are 0700 and 0600.
Descriptors stay open, for all directories of the process as many as `OpenFiles` allows.

A full disk must not prevent the write of the control file (docs/protocol.md R16), so that votes go
on. So each directory has a reserve, a file of real blocks (and an inode). `replace` takes from its
end what the new file needs, and makes it whole again afterwards, as far as there is room. Another
process that fills the disk may win what was taken, and then `replace` takes more. No segment is
allocated while the reserve is not whole, so the reserve never feeds the WAL.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from threading import Lock
from typing import NoReturn

from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import NoSpace, Refused, StorageError
from walkeeper_common.shell.files.sync_path import sync_path
from walkeeper_fastpath import switch
from walkeeper_safekeeper.disk.disk_times import DiskTimes, now_s
from walkeeper_safekeeper.disk.open_files import OpenFile, OpenFiles, is_no_descriptor
from walkeeper_safekeeper.disk.zero_fill import StepTime, write_zeros
from walkeeper_safekeeper.storage.disk_port import HALF_MADE

DESCRIPTORS_MAX = 64  # for a directory with OpenFiles of its own
RESERVE = "reserve"
RESERVE_BYTES = 1 << 20
IDENTITY = "safekeeper"

_SEGMENT_NAME = re.compile(r"[0-9A-F]{24}")
_BLOCK = 4096
_BUFFERS_MAX = os.sysconf("SC_IOV_MAX")
_NEW = os.O_RDWR | os.O_CREAT | os.O_TRUNC


class RealDisk:
    """One directory; made, with mode 0700, if it is not there."""

    def __init__(
        self,
        path: str,
        *,
        files: OpenFiles | None = None,
        reserve_bytes: int = RESERVE_BYTES,
        bytes_max: int | None = None,
        times: DiskTimes | None = None,
    ) -> None:
        """Open a directory; `bytes_max` is a quota on its segments (--wal-size-max)."""
        self.times = times or DiskTimes()
        self.path, self._bytes_max = os.path.abspath(path), bytes_max
        self._reserve_bytes = reserve_bytes
        self._files = OpenFiles(DESCRIPTORS_MAX) if files is None else files
        self._step_time = StepTime()
        self._owner = object()  # not the path: what is there may be another directory later
        self._read_cached = switch.read_cached() or _read_cached
        self._lock = Lock()  # a name is opened, or comes to mean another file
        self._reserve_lock = (
            Lock()
        )  # it is made, or taken from for a file that replaces another one
        make_directory(self.path)
        self._make_reserve()

    def close(self) -> None:
        """Close every descriptor. The disk remains usable and opens files again."""
        with self._lock:
            self._files.forget_all(self._owner)

    def names(self) -> list[str]:
        with self._failures("listing", ""):
            return sorted(self._files.opening_at_any_rate(lambda: os.listdir(self.path)))

    def size(self, name: str) -> int:
        with self._failures("looking at", name):
            return os.stat(self._path(name)).st_size

    def read_at(self, name: str, offset: int, size: int) -> bytes:
        with self._failures("reading", name), self._held(name) as file:
            data = os.pread(file.descriptor, size, offset)
            while len(data) < size:
                more = os.pread(file.descriptor, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
        if len(data) < size:
            raise StorageError(
                f"reading {self._path(name)}: it ends {size - len(data)} bytes short of "
                f"{offset + size}"
            )
        return data

    def read_cached(self, name: str, offset: int, size: int) -> Buffer | None:
        """Return bytes of an open file, or None if the kernel would have to wait for the disk."""
        file = self._files.hold(self._key(name))
        if file is None:
            return None
        try:
            return self._read_cached(file.descriptor, size, offset)
        finally:
            self._files.give_back(file)

    def write_at(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        file = self._hold_to_write(name)
        started_s = now_s()
        try:
            file.is_unsynced = True
            with self._failures("writing", name):
                for first in range(0, len(buffers), _BUFFERS_MAX):
                    group = buffers[first : first + _BUFFERS_MAX]
                    size = sum(map(len, group))
                    self._whole(name, offset, os.pwritev(file.descriptor, group, offset), size)
                    offset += size
        finally:
            self._files.give_back(file)
        self.times.write.observe(now_s() - started_s)

    def _whole(self, name: str, offset: int, written: int, size: int) -> None:
        if written != size:
            raise _cut_short(self._path(name), offset, written, size)

    def writer(self, name: str) -> _Writer:
        return _Writer(self._files, self._hold_to_write(name), self._path(name), self.times)

    def sync_data(self, name: str) -> None:
        with self._failures("syncing", name), self._held(name) as file:
            file.is_unsynced = False  # held, so it stays open; and no fsync is ever tried again
            started_s = now_s()
            os.fdatasync(file.descriptor)
            self.times.fsync.observe(now_s() - started_s)

    def sync_directory(self) -> None:
        with self._failures("syncing", ""):
            self._files.opening_at_any_rate(lambda: sync_path(self.path))

    def allocate(self, name: str, size: int) -> None:
        path, steps_until_s = self._path(name), self._step_time.begin()
        try:
            self._keep_quota(size)
            with self._reserve_lock:
                has_reserve = self._make_reserve()
            if not has_reserve:
                text = f"no space in {self.path} for the reserve of {self._reserve_bytes} bytes"
                raise NoSpace(text)
            with self._failures("allocating", name):
                self._write_zeros(path, size, steps_until_s=steps_until_s)
        except StorageError as error:
            with suppress(OSError):
                os.unlink(path)
            if is_no_space(error.__cause__):
                raise NoSpace(f"no space for {size} bytes of {path}") from error
            if is_no_descriptor(error.__cause__):
                raise NoSpace(str(error)) from error
            raise

    def _keep_quota(self, size: int) -> None:
        """Raise NoSpace beyond the quota, as a file system's quota does; it is never a failure."""
        if self._bytes_max is None:
            return
        used = 0
        with self._failures("looking at", ""):
            for entry in self._files.opening(lambda: os.scandir(self.path)):
                if _SEGMENT_NAME.match(entry.name) and not entry.name.endswith(HALF_MADE):
                    used += entry.stat().st_size
        if used + size > self._bytes_max:
            raise NoSpace(
                f"--wal-size-max: {self.path} has {used >> 20} MB of WAL, {self._bytes_max >> 20} "
                "MB are allowed, and none of it may go yet; status says what holds it "
                "(archived_lsn, restart_lsn, slots, standbys)"
            )

    def _write_zeros(
        self, path: str, size: int, *, begin: int = 0, steps_until_s: float = 0.0
    ) -> None:
        """Write so many zeros from `begin` on, where the file ends, and sync them."""
        flags = _NEW & ~os.O_TRUNC if begin else _NEW
        descriptor = self._files.opening(lambda: os.open(path, flags, 0o600))
        try:
            write_zeros(descriptor, begin, size, steps_until_s=steps_until_s)
        finally:
            os.close(descriptor)

    def drop_cached(self, name: str) -> None:
        # Gone meanwhile, or a file system that knows no hints.
        with suppress(OSError), self._held(name) as file:
            os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def rename(self, old: str, new: str) -> None:
        # Under the lock, and forgotten first. Otherwise a user could hold the old file of a name,
        # and later writes to that name would go to a file that is gone.
        with self._failures("renaming", old), self._lock:
            self._files.forget(self._key(old), self._key(new))
            os.rename(self._path(old), self._path(new))

    def unlink(self, name: str) -> None:
        with self._failures("removing", name), self._lock:
            self._files.forget(self._key(name))
            os.unlink(self._path(name))

    def replace(self, name: str, data: bytes) -> None:
        """Replace a file; take from the reserve if there is no space. Raise StorageError.

        Only one thread replaces at a time, since the reserve is for one file. Another one that
        makes it again would take the space that it has just left.
        """
        half_made = name + HALF_MADE
        with self._reserve_lock, self._failures("replacing", name):
            self._replace(name, half_made, data)
            needed_bytes = 2 * len(data) if self._reserve_bytes else 0
            self._reserve_bytes = max(self._reserve_bytes, needed_bytes)
            with suppress(NoSpace):  # `allocate` makes it before anything else
                self._make_reserve()

    def _replace(self, name: str, half_made: str, data: bytes) -> None:
        while not self._is_written(half_made, data):
            pass  # another process took the space from which the reserve had shrunk
        with self._lock:
            self._files.forget(self._key(name))
            os.rename(self._path(half_made), self._path(name))
        self._files.opening_at_any_rate(lambda: sync_path(self.path))

    def _is_written(self, half_made: str, data: bytes) -> bool:
        """Write a new file. Without space shrink the reserve and return False, or raise OSError."""
        try:
            self._write_new(half_made, data)
        except OSError as error:
            # A new file that could not be written promises nothing: this is no retried fsync.
            with suppress(OSError):
                os.unlink(self._path(half_made))
            if not is_no_space(error) or not self._shrink_reserve(len(data)):
                raise
            return False
        return True

    def _write_new(self, name: str, data: bytes) -> None:
        path = self._path(name)
        descriptor = self._files.opening_at_any_rate(lambda: os.open(path, _NEW, 0o600))
        try:
            written = os.write(descriptor, data)
            if written != len(data):  # short: the next write says why
                os.write(descriptor, data[written:])
                raise StorageError(f"writing {self._path(name)}: {written} of {len(data)} bytes")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _make_reserve(self) -> bool:
        """Make the reserve as large as there is room for; return True if it is whole.

        It never gets smaller meanwhile. Raise NoSpace if its file cannot be opened."""
        path, wanted, present = self._path(RESERVE), self._reserve_bytes, self._reserved()
        step = wanted - present
        while present < wanted and step >= min(_BLOCK, wanted - present):
            try:
                with self._failures("allocating", RESERVE):
                    self._write_zeros(path, step, begin=present)
                present += step
                step = min(step, wanted - present)
            except StorageError as error:
                if is_no_descriptor(error.__cause__):
                    raise NoSpace(str(error)) from error
                if not is_no_space(error.__cause__):
                    raise
                self._cut_reserve(present)
                step //= 2
        return present >= wanted

    def _reserved(self) -> int:
        with self._failures("looking at", RESERVE):
            try:
                return os.stat(self._path(RESERVE)).st_size
            except FileNotFoundError:
                return 0

    def _shrink_reserve(self, size: int) -> bool:
        """Free the space for a file of this size; return False if the reserve has none left."""
        present = self._reserved()
        self._cut_reserve(max(0, present - size // _BLOCK * _BLOCK - 2 * _BLOCK))
        return present > 0

    def _cut_reserve(self, size: int) -> None:
        with suppress(FileNotFoundError):
            if size:
                os.truncate(self._path(RESERVE), size)
            else:
                os.unlink(self._path(RESERVE))  # its inode, too

    def _path(self, name: str) -> str:
        return os.path.join(self.path, name) if name else self.path

    @contextmanager
    def _failures(self, doing: str, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._failure(doing, name, error) from error

    def _failure(self, doing: str, name: str, error: OSError) -> StorageError:
        return StorageError(f"{doing} {self._path(name)}: {error.strerror}")

    def _key(self, name: str) -> tuple[object, str]:
        return self._owner, name

    @contextmanager
    def _held(self, name: str) -> Iterator[OpenFile]:
        """Hold an existing file open until the block ends; raise OSError."""
        opening = self._files.opening_at_any_rate
        file = self._files.hold(self._key(name)) or self._opened(name, opening)
        try:
            yield file
        finally:
            self._files.give_back(file)

    def _hold_to_write(self, name: str) -> OpenFile:
        """Hold an existing file; the caller gives it back.

        Raise NoSpace if there is no descriptor. No write has begun then, so a retry may work."""
        try:
            return self._files.hold(self._key(name)) or self._opened(name, self._files.opening)
        except OSError as error:
            failure = self._failure("writing", name, error)
            raise (NoSpace(str(failure)) if is_no_descriptor(error) else failure) from error

    def _opened(self, name: str, opening: Callable[[Callable[[], int]], int]) -> OpenFile:
        """Open a file and hold it, or hold the one that another thread has opened meanwhile."""
        with self._lock:
            file = self._files.hold(self._key(name))
            if file is None:
                path = self._path(name)
                descriptor = opening(lambda: os.open(path, os.O_RDWR))
                file = self._files.add(self._key(name), descriptor)
        return file


class _Writer:
    """One held file. Each write is synced at once, so the file is never unsynced.

    The fast path writes to `descriptor` itself; `write` and `sync` are the same for others."""

    __slots__ = ("_file", "_files", "_path", "descriptor", "observe", "sync", "write")

    def __init__(self, files: OpenFiles, file: OpenFile, path: str, times: DiskTimes) -> None:
        self.observe = times.observe
        self._files, self._path = files, path
        self._file: OpenFile | None = file
        self.descriptor = file.descriptor
        self.write: Callable[[Buffer, int], int] = partial(os.pwrite, file.descriptor)
        self.sync: Callable[[], object] = partial(os.fdatasync, file.descriptor)

    def failure(self, error: OSError) -> StorageError:
        return StorageError(f"writing {self._path}: {error.strerror}")

    def cut_short(self, offset: int, written: int, size: int) -> StorageError:
        return _cut_short(self._path, offset, written, size)

    def close(self) -> None:
        """Close the writer, once: the descriptor may be another file's after that."""
        assert self._file is not None, f"{self._path} is closed"
        self._files.give_back(self._file)
        self._file, self.descriptor = None, -1
        self.write = self.sync = partial(_closed, self._path)


def _read_cached(descriptor: int, size: int, offset: int) -> Buffer | None:
    """Return bytes of a file, or None if the kernel would have to wait for the disk."""
    data = bytearray(size)
    try:
        done = os.preadv(descriptor, [data], offset, os.RWF_NOWAIT)
    except OSError:  # EAGAIN, or the file system cannot say; a read that may wait tells more
        return None
    return data if done == size else None


def _closed(path: str, *_: object) -> NoReturn:
    raise AssertionError(f"{path} is closed")


def _cut_short(path: str, offset: int, written: int, size: int) -> StorageError:
    return StorageError(f"writing {path}: {written} of {size} bytes at {offset}")


def make_directory(path: str) -> None:
    """Make a directory with its parents, mode 0700, durable in the directory above."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_directory(parent)
    try:
        os.mkdir(path, 0o700)
        sync_path(parent)
    except OSError as error:
        if not os.path.isdir(path):  # else somebody has made it meanwhile
            why = "a link to what is not there" if os.path.islink(path) else error.strerror
            raise StorageError(f"making the directory {path}: {why}") from error


def is_no_space(error: BaseException | None) -> bool:
    """Return True if the error means no room, or a quota."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


class ClaimedDirectory:
    """Holds the lock on a data directory until `release`, or until the process ends."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor

    def release(self) -> None:
        os.close(self._descriptor)


def claim_data_directory(path: str, acceptor_id: int) -> ClaimedDirectory:
    """Make DIR if necessary, lock it, and write or check its owner; raise Refused if not ours.

    The lock is a flock on the directory itself: it dies with the process and cannot go stale. Only
    after that the identity is read, so two first starts with different ids cannot both win.
    """
    path = os.path.abspath(path)
    make_directory(path)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        found = os.stat(path)
        raise Refused(
            f"user {os.geteuid()} may not read and write {path} (of user {found.st_uid}, mode "
            f"{found.st_mode & 0o777:o}): run as its owner, or chown it with all that is in it"
        )
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise StorageError(f"opening the data directory {path}: {error.strerror}") from error
    try:
        _lock_directory(descriptor, path)
        _check_identity(path, acceptor_id)
    except BaseException:
        os.close(descriptor)
        raise
    return ClaimedDirectory(path, descriptor)


def _lock_directory(descriptor: int, path: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Refused(
            f"another safekeeper is running in {path}; stop it, or use another --data-dir"
        ) from error
    except OSError as error:
        raise StorageError(f"locking {path}: {error.strerror}") from error


def _check_identity(path: str, acceptor_id: int) -> None:
    disk = RealDisk(path, reserve_bytes=0)
    if IDENTITY not in disk.names():
        disk.replace(IDENTITY, f"walkeeper safekeeper {acceptor_id}\n".encode())
        return
    data = disk.read_at(IDENTITY, 0, min(disk.size(IDENTITY), 1000))
    disk.close()
    match = re.fullmatch(rb"walkeeper safekeeper (\d{1,20})\n", data)
    if match is None:
        raise StorageError(
            f"{path}/{IDENTITY} does not say whose directory this is: {data[:60]!r}. If no other "
            "safekeeper's data is in it, remove that file"
        )
    if int(match[1]) != acceptor_id:
        raise Refused(
            f"{path} belongs to safekeeper {int(match[1])}: start it with --id {int(match[1])}, or "
            f"give safekeeper {acceptor_id} a --data-dir of its own"
        )
