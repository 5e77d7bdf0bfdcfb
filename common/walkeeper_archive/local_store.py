"""A directory as an object store. Unlike obstore's, it syncs an object before it reports it.

A new object is written under a temporary name, fsynced, and linked to its own name. The link fails
if the name is taken, so that an object is never replaced. Then its directory is fsynced. So a power
cut leaves the whole object, or none and at most a temporary file, which the next listing passes
over. Modes are 0700 and 0600, as pg_wal's are. If the archive's directory has the setgid bit, they
are 2750 and 0640. PostgreSQL's user may then read, as a member of its group. The directory of the
archive itself must be there. Otherwise an archive on a disk that is not mounted would fill the disk
below the mount point.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count

from walkeeper_archive.archive_errors import ArchiveUnavailable
from walkeeper_archive.object_store import StoredObject
from walkeeper_common.buffers import Buffer
from walkeeper_common.shell.files.sync_path import sync_path

HALF_MADE = ".tmp"
FOLDER, FILE = 0o700, 0o600
SHARED_FOLDER, SHARED_FILE = 0o2750, 0o640


class LocalStore:
    """`root` must be a directory when an object is put."""

    def __init__(self, root: str) -> None:
        self._root = os.path.abspath(os.path.expanduser(root))
        self._numbers = count()
        self._lasting: set[str] = set()  # folders whose own names are durable, as far as we know

    @property
    def url(self) -> str:
        return f"file://{self._root}"

    def put_new(self, path: str, data: Buffer) -> bool:
        full = self._full(path)
        with self._failures("writing", path):
            if os.path.lexists(full):
                self._sync_folders(os.path.dirname(path))
                return False
            self._make_folders(os.path.dirname(path))
            unique = f"{os.getpid()}.{threading.get_ident()}.{next(self._numbers)}"
            half_made = f"{full}.{unique}{HALF_MADE}"
            try:
                _write_synced(half_made, data, SHARED_FILE if self._is_shared() else FILE)
                os.link(half_made, full)
                is_new = True
            except FileExistsError:
                is_new = False
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(half_made)
            sync_path(os.path.dirname(full))
        return is_new

    def get(self, path: str) -> memoryview | None:
        with self._failures("reading", path):
            try:
                with open(self._full(path), "rb") as file:
                    return memoryview(file.read())
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                self._check_root()
                return None

    def digest(self, path: str) -> str | None:
        with self._failures("reading", path):
            try:
                with open(self._full(path), "rb") as file:
                    return hashlib.file_digest(file, "sha256").hexdigest()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                self._check_root()
                return None

    def list_from(self, folder: str, after: str = "") -> Iterator[StoredObject]:
        with self._failures("listing", folder):
            self._check_root()
            yield from self._walk(folder, after)

    def _walk(self, folder: str, after: str) -> Iterator[StoredObject]:
        try:
            entries = list(os.scandir(self._full(folder)))
        except FileNotFoundError:
            return
        # As an object store sorts: "a/b" comes after "a.x", since "/" is greater than ".".
        entries.sort(key=lambda e: e.name + "/" if e.is_dir() else e.name)
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir():
                yield from self._walk(path, after)
            elif path > after and not entry.name.endswith(HALF_MADE):
                with suppress(FileNotFoundError):  # pruned meanwhile
                    found = entry.stat()
                    yield StoredObject(path, found.st_size, found.st_mtime)

    def folders(self, folder: str) -> list[str]:
        with self._failures("listing", folder):
            self._check_root()
            try:
                return sorted(e.name for e in os.scandir(self._full(folder)) if e.is_dir())
            except FileNotFoundError:
                return []

    def sync(self, path: str) -> None:
        with self._failures("syncing", path):
            self._sync_folders(os.path.dirname(path))

    def delete(self, path: str) -> None:
        full = self._full(path)
        with self._failures("removing", path), suppress(FileNotFoundError):
            os.unlink(full)
            sync_path(os.path.dirname(full))

    def _full(self, path: str) -> str:
        return os.path.join(self._root, path) if path else self._root

    def _check_root(self) -> None:
        """Raise an error if the directory is missing: a missing mount must not read as empty."""
        if not os.path.isdir(self._root):
            raise FileNotFoundError(errno.ENOENT, "the archive's directory is not there")

    def _is_shared(self) -> bool:
        """Return True if the group of the archive's directory may read all that is put."""
        return bool(os.stat(self._root).st_mode & stat.S_ISGID)

    def _make_folders(self, folder: str) -> None:
        self._check_root()
        made = self._root
        for part in folder.split("/"):
            made = os.path.join(made, part)
            try:
                os.mkdir(made, FOLDER)
                if self._is_shared():
                    os.chmod(made, SHARED_FOLDER)  # the umask has cut it
            except FileExistsError:
                if made in self._lasting:
                    continue  # else its maker may have been killed before it could sync
            sync_path(os.path.dirname(made))
            self._lasting.add(made)

    def _sync_folders(self, folder: str) -> None:
        self._make_folders(folder)
        sync_path(self._full(folder))

    @contextmanager
    def _failures(self, doing: str, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = self._full(path)
            raise ArchiveUnavailable(f"{doing} {where}: {error.strerror or error}") from error


def _write_synced(path: str, data: Buffer, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE)
    try:
        if mode != FILE:
            os.fchmod(descriptor, mode)
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
