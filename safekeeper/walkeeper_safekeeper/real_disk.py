"""The directories of a safekeeper on a real file system: the `Disk` port of wal_store, for real.

    RealDisk(path)            one directory: segments, or the control file and slots
    claim_data_directory      DIR is ours, for this process and for this acceptor id

Contract: what `wal_store.Disk` says. ENOSPC and EDQUOT are NoSpace in `allocate` only; every other
OSError is a StorageError with path and errno, and the caller never retries. Safe to use from
several threads; a file may be unlinked or replaced while another thread reads it. Modes are 0700
and 0600. Descriptors are kept open, `DESCRIPTORS_MAX` of them.

A full disk must not keep the control file from being written (PROTOCOL.md rule 16): votes go on.
So each directory keeps a reserve, a file of real blocks (and an inode) that `replace` gives up
when the new file finds no space, and makes again, if need be smaller, when it is done. No segment
is allocated while the reserve cannot be made whole, so the reserve never feeds the WAL.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Lock

from walkeeper_common.errors import NoSpace, Refused, StorageError
from walkeeper_common.sync_path import sync_path
from walkeeper_safekeeper.wal_store import HALF_MADE, Buffer

DESCRIPTORS_MAX = 64
RESERVE = "reserve"
RESERVE_BYTES = 1 << 20
IDENTITY = "safekeeper"

_SEGMENT_NAME = re.compile(r"[0-9A-F]{24}")
_ZEROS = bytes(1 << 20)
_BUFFERS_MAX = os.sysconf("SC_IOV_MAX")
_CANNOT_PREALLOCATE = (errno.EOPNOTSUPP, errno.EINVAL)


class _OpenFile:
    """A descriptor that is closed with the last reference to it: one that was evicted may be in use
    on another thread."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


class RealDisk:
    """One directory; made, with mode 0700, if it is not there."""

    def __init__(
        self, path: str, *, reserve_bytes: int = RESERVE_BYTES, bytes_max: int | None = None
    ) -> None:
        """`bytes_max`: a quota on what is allocated here (--wal-size-max)."""
        self.path, self._bytes_max = os.path.abspath(path), bytes_max
        self._reserve_bytes = reserve_bytes
        self._lock = Lock()
        self._open: OrderedDict[str, _OpenFile] = OrderedDict()
        make_directory(self.path)
        self._make_reserve()

    def close(self) -> None:
        """Closes every descriptor. The disk can be used again; it opens what it needs."""
        with self._lock:
            for name in list(self._open):
                self._evict(name)

    def names(self) -> list[str]:
        with self._failures("listing", ""):
            return sorted(os.listdir(self.path))

    def size(self, name: str) -> int:
        with self._failures("looking at", name):
            return os.stat(self._path(name)).st_size

    def read_at(self, name: str, offset: int, size: int) -> bytes:
        with self._failures("reading", name):
            file = self._file(name)
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

    def write_at(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        with self._failures("writing", name):
            file = self._file(name)
            for first in range(0, len(buffers), _BUFFERS_MAX):
                group = buffers[first : first + _BUFFERS_MAX]
                size = sum(map(len, group))
                self._whole(name, offset, os.pwritev(file.descriptor, group, offset), size)
                offset += size

    def _whole(self, name: str, offset: int, written: int, size: int) -> None:
        if written != size:
            raise StorageError(f"writing {self._path(name)}: {written} of {size} bytes at {offset}")

    def writer(self, name: str) -> Callable[[int, Buffer], None]:
        with self._failures("writing", name):
            file = self._file(name)

        def write_durably(offset: int, data: Buffer) -> None:
            try:
                written = os.pwrite(file.descriptor, data, offset)
                if written == len(data):
                    os.fdatasync(file.descriptor)
                    return
            except OSError as error:
                raise self._failure("writing", name, error) from error
            self._whole(name, offset, written, len(data))

        return write_durably

    def sync_data(self, name: str) -> None:
        with self._failures("syncing", name):
            os.fdatasync(self._file(name).descriptor)

    def sync_directory(self) -> None:
        with self._failures("syncing", ""):
            sync_path(self.path)

    def allocate(self, name: str, size: int) -> None:
        self._keep_quota(size)
        if not self._make_reserve():
            raise NoSpace(f"no space in {self.path} for the reserve of {self._reserve_bytes} bytes")
        path = self._path(name)
        try:
            with self._failures("allocating", name):
                self._write_zeros(path, size)
        except StorageError as error:
            with suppress(OSError):
                os.unlink(path)
            if is_no_space(error.__cause__):
                raise NoSpace(f"no space for {size} bytes of {path}") from error
            raise

    def _keep_quota(self, size: int) -> None:
        """As a file system's quota would: no space is an answer, never a failure."""
        if self._bytes_max is None:
            return
        used = 0
        with self._failures("looking at", ""):
            for entry in os.scandir(self.path):
                if _SEGMENT_NAME.match(entry.name) and not entry.name.endswith(HALF_MADE):
                    used += entry.stat().st_size
        if used + size > self._bytes_max:
            raise NoSpace(
                f"--wal-size-max: {self.path} has {used >> 20} MB of WAL, {self._bytes_max >> 20} "
                "MB are allowed, and none of it may go yet; status says what holds it "
                "(archived_lsn, restart_lsn, slots, standbys)"
            )

    def _write_zeros(self, path: str, size: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            try:
                # Asks for all the space at once: a disk is not filled to the brim by a try.
                os.posix_fallocate(descriptor, 0, size)
            except OSError as error:
                if error.errno not in _CANNOT_PREALLOCATE:
                    raise
            offset = 0
            while offset < size:
                offset += os.pwrite(descriptor, _ZEROS[: size - offset], offset)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def drop_cached(self, name: str) -> None:
        with suppress(OSError):  # gone meanwhile, or a file system that knows no hints
            os.posix_fadvise(self._file(name).descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def rename(self, old: str, new: str) -> None:
        # Under the lock: nobody may open a name between its change and the end of its descriptor,
        # or later writes to that name would go to a file that is gone.
        with self._failures("renaming", old), self._lock:
            os.rename(self._path(old), self._path(new))
            self._evict(old)
            self._evict(new)

    def unlink(self, name: str) -> None:
        with self._failures("removing", name), self._lock:
            os.unlink(self._path(name))
            self._evict(name)

    def replace(self, name: str, data: bytes) -> None:
        """Gives up the reserve if there is no space otherwise. Any failure is a StorageError."""
        half_made = name + HALF_MADE
        with self._failures("replacing", name):
            try:
                self._write_new(half_made, data)
            except OSError as error:
                if not is_no_space(error):
                    raise
                # A new file that could not be written promises nothing: this is no retried fsync.
                with suppress(OSError):
                    os.unlink(self._path(half_made))
                self._give_up_reserve()
                self._write_new(half_made, data)
            with self._lock:
                os.rename(self._path(half_made), self._path(name))
                self._evict(name)
            sync_path(self.path)
        self._reserve_bytes = max(self._reserve_bytes, 2 * len(data)) if self._reserve_bytes else 0
        self._make_reserve()

    def _write_new(self, name: str, data: bytes) -> None:
        descriptor = os.open(self._path(name), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            written = os.write(descriptor, data)
            if written != len(data):  # short: the next write says why
                os.write(descriptor, data[written:])
                raise StorageError(f"writing {self._path(name)}: {written} of {len(data)} bytes")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _make_reserve(self) -> bool:
        """Whole, or as much of it as there is room for; whether it is whole."""
        path, wanted = self._path(RESERVE), self._reserve_bytes
        if wanted == 0:
            return True
        with self._failures("looking at", RESERVE):
            try:
                if os.stat(path).st_size >= wanted:
                    return True
            except FileNotFoundError:
                pass
        size = wanted
        while size >= 4096:
            try:
                with self._failures("allocating", RESERVE):
                    self._write_zeros(path, size)
                return size == wanted
            except StorageError as error:
                if not is_no_space(error.__cause__):
                    raise
                self._give_up_reserve()
                size //= 2
        return False

    def _give_up_reserve(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path(RESERVE))

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

    def _file(self, name: str) -> _OpenFile:
        """An open descriptor of an existing file, not closed while it is held. OSError."""
        with self._lock:
            file = self._open.get(name)
            if file is None:
                self._open[name] = file = _OpenFile(os.open(self._path(name), os.O_RDWR))
            self._open.move_to_end(name)
            while len(self._open) > DESCRIPTORS_MAX:
                self._open.popitem(last=False)
        return file

    def _evict(self, name: str) -> None:
        """Forgets the descriptor: the name means another file now, or none. Under the lock."""
        self._open.pop(name, None)


def make_directory(path: str) -> None:
    """With its parents, mode 0700, durable in the directory above."""
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
    """No room, or a quota."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


class ClaimedDirectory:
    """Holds the lock on a data directory until `release`, or until the process ends."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor

    def release(self) -> None:
        os.close(self._descriptor)


def claim_data_directory(path: str, acceptor_id: int) -> ClaimedDirectory:
    """Makes DIR if needed, locks it, and writes or checks whose it is. Refused if not ours.

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
