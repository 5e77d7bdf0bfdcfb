"""`orphans/` on a real file system, by the `Shelf` port of orphans.

Contract: that of `orphans.Shelf`. A directory gets its name when all in it is durable. A name that
ends in HALF_MADE is left over from a crash; the next `put` removes it. Files are sparse, so
segments of full size take no more space than their tail. Modes are 0700 and 0600.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from walkeeper_common.errors import NoSpace, StorageError
from walkeeper_common.shell.files.sync_path import sync_path
from walkeeper_safekeeper.disk.real_disk import is_no_space, make_directory
from walkeeper_safekeeper.storage.disk_port import HALF_MADE
from walkeeper_safekeeper.storage.orphans import File

_STAT_BLOCK_BYTES = 512


class OrphanShelf:
    """The directory `path`, made if it is not there."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        make_directory(self.path)

    def names(self) -> list[str]:
        with self._failures("listing", ""):
            return sorted(n for n in os.listdir(self.path) if not n.endswith(HALF_MADE))

    def size(self, name: str) -> int:
        with self._failures("looking at", name):
            entries = list(os.scandir(self._path(name)))
            return sum(entry.stat().st_blocks * _STAT_BLOCK_BYTES for entry in entries)

    def room_bytes(self) -> int:
        with self._failures("looking at", ""):
            room = os.statvfs(self.path)
        return room.f_bavail * room.f_frsize

    def put(self, name: str, files: Iterable[File]) -> None:
        half_made = self._path(name + HALF_MADE)
        with self._failures("writing", name):
            self._remove_half_made()
            os.mkdir(half_made, 0o700)
            try:
                for file in files:
                    _write(half_made, file)
            except OSError:
                with suppress(OSError):
                    shutil.rmtree(half_made)
                raise
            sync_path(half_made)
            if os.path.exists(self._path(name)):
                shutil.rmtree(self._path(name))
            os.rename(half_made, self._path(name))
            sync_path(self.path)

    def remove(self, name: str) -> None:
        with self._failures("removing", name):
            shutil.rmtree(self._path(name))
            sync_path(self.path)

    def _remove_half_made(self) -> None:
        for name in os.listdir(self.path):
            if name.endswith(HALF_MADE):
                shutil.rmtree(self._path(name))

    def _path(self, name: str) -> str:
        return os.path.join(self.path, name) if name else self.path

    @contextmanager
    def _failures(self, doing: str, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            text = f"{doing} {self._path(name)}: {error.strerror}"
            raise (NoSpace(text) if is_no_space(error) else StorageError(text)) from error


def _write(directory: str, file: File) -> None:
    name, size, chunks = file
    path = os.path.join(directory, name)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
        for offset, data in chunks:
            target.seek(offset)
            target.write(data)
        target.truncate(size)
        target.flush()
        os.fsync(target.fileno())
