"""The removal of a log's folder in a crash-safe order (docs/protocol.md M7). Blocking.

1. The tombstone is durable in `.dropped`.
2. The folder gets the name `.dropped-UUID`, which names no cluster, and that is durable.
3. Its files go.

A start that finds a folder of step 2 or 3 goes on. A folder whose log has a tombstone is one of
step 1. Names that begin with a dot are no cluster's.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from walkeeper_common.errors import StorageError
from walkeeper_common.shell.files.sync_path import sync_path
from walkeeper_safekeeper.disk.real_disk import RealDisk
from walkeeper_safekeeper.storage.tombstones import Tombstone, Tombstones, decode, encode

FILE = ".dropped"
PREFIX = ".dropped-"


class DroppedLogs:
    """The tombstones of one data directory; `open` reads them."""

    def __init__(self, data_dir: str) -> None:
        self._data_dir = data_dir
        self.tombstones = Tombstones()

    def open(self) -> None:
        """Read the file, and finish removals that a crash interrupted."""
        disk = RealDisk(self._data_dir, reserve_bytes=0)
        names = disk.names()
        if FILE in names:
            data = disk.read_at(FILE, 0, disk.size(FILE))
            self.tombstones = decode(data, f"{self._data_dir}/{FILE}")
        disk.close()
        for name in names:
            if name.startswith(PREFIX):
                self._remove(name)

    def bury(self, tombstone: Tombstone) -> None:
        """Make the tombstone durable."""
        following = self.tombstones.with_log(tombstone)
        if following is not self.tombstones:
            disk = RealDisk(self._data_dir, reserve_bytes=0)
            disk.replace(FILE, encode(following))
            disk.close()
            self.tombstones = following

    def remove(self, tombstone: Tombstone, on_renamed: Callable[[], None]) -> None:
        """Remove the folder of a log that is buried; call `on_renamed` before its files go."""
        assert self.tombstones.find(tombstone.log_uuid) is not None, f"{tombstone=}"
        name = f"{PREFIX}{tombstone.log_uuid.hex()}"
        path = os.path.join(self._data_dir, tombstone.cluster)
        try:
            os.rename(path, os.path.join(self._data_dir, name))
            sync_path(self._data_dir)
        except OSError as error:
            raise StorageError(f"renaming {path}: {error.strerror}") from error
        on_renamed()
        self._remove(name)

    def _remove(self, name: str) -> None:
        path = os.path.join(self._data_dir, name)
        try:
            shutil.rmtree(path)
        except OSError as error:
            raise StorageError(f"removing {path}: {error.strerror}") from error
