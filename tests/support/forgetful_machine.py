"""A machine that forgets at a power cut all that no fsync made durable: POSIX at its strictest.

    machine = ForgetfulMachine(path)
    with machine.recording():        os.fsync and os.fdatasync are recorded, and done
        ...                          the code under test works below `path`
    machine.power_cut()              below `path` is what survived

A file keeps what it held at its last sync; a directory keeps the names that it had at its last
sync. A name whose file was never synced is an empty file. Real file systems keep more than that, so
code that passes here needs no kindness of theirs. It needs neither root nor a disk of its own.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

Survivors = dict[str, bytes | None]  # contents by relative path; None is a folder


class ForgetfulMachine:
    """One directory and all below it. `path` itself exists, and is durable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._contents: dict[int, bytes] = {}  # by inode number
        self._names: dict[int, dict[str, tuple[int, bool]]] = {}  # name: (inode, is a directory)
        self._kept_open: dict[int, int] = {}  # so that no inode's number is given to another file

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record each sync of this process until the block ends."""
        with (
            mock.patch.object(os, "fsync", self._recorded(os.fsync)),
            mock.patch.object(os, "fdatasync", self._recorded(os.fdatasync)),
        ):
            yield

    def _recorded(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def synced(descriptor: int) -> None:
            sync(descriptor)
            self._keep(descriptor)

        return synced

    def _keep(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        if found.st_ino not in self._kept_open:
            self._kept_open[found.st_ino] = os.dup(descriptor)
        if stat.S_ISDIR(found.st_mode):
            with os.scandir(descriptor) as entries:
                self._names[found.st_ino] = {e.name: (e.inode(), e.is_dir()) for e in entries}
        else:
            self._contents[found.st_ino] = os.pread(descriptor, found.st_size, 0)

    def settle(self) -> None:
        """Make all that is there durable, as a machine does that is left alone."""
        for folder, _, names in os.walk(self.path):
            for path in (folder, *(os.path.join(folder, name) for name in names)):
                descriptor = os.open(path, os.O_RDONLY)
                self._keep(descriptor)
                os.close(descriptor)

    def power_cut(self) -> None:
        """Leave what was durable. The files that were open must not be used any more."""
        survived = self._survivors(self.path.stat().st_ino, "")
        for descriptor in self._kept_open.values():
            os.close(descriptor)
        shutil.rmtree(self.path)
        self.path.mkdir()
        for name, content in survived.items():
            path = self.path / name
            if content is None:
                path.mkdir()
            else:
                path.write_bytes(content)
        for known in (self._contents, self._names, self._kept_open):
            known.clear()
        self.settle()

    def _survivors(self, inode: int, above: str) -> Survivors:
        """Return folders before what is in them."""
        found: Survivors = {}
        for name, (number, is_directory) in self._names.get(inode, {}).items():
            if is_directory:
                found[above + name] = None
                found |= self._survivors(number, f"{above}{name}/")
            else:
                found[above + name] = self._contents.get(number, b"")
        return found
