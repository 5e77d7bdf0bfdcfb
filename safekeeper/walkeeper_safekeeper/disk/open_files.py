"""The open files of all the logs of a process: one bound for all, whatever the number of logs.

    hold / add / give_back    a descriptor, while it is in use
    forget / forget_all       a name means another file now, or none
    opening                   room is made once for a file that cannot be opened otherwise
    opening_at_any_rate       and a reserve of descriptors is given up for it

Contract: safe to use from several threads. Its lock is for bookkeeping only; no thread holds it
while it waits for a disk. Beyond `files_max` it closes the least recently used files without a
user, of any log. A busy log's tail and the segments of its readers stay open.

A descriptor that is in use is never closed. Its number would go to the next file that is opened,
and WAL would be written, or an fdatasync done, in the wrong file. So:
  1. A number is given out under the lock only, with `users` counted up, and by the table only.
  2. It is taken for closing under the lock only, when it has no users. It leaves the table in that
     same moment, so that no further user can get it. Only then it is closed.
  3. A file that is forgotten leaves the table at once, and is closed when its last user is done.
Nor is a file closed between a write to it and its sync (`is_unsynced`). The kernel reports a failed
write only on the descriptors that were open then.

A log's tail is in use as long as nothing but WAL comes, a second at the most. Such logs have a
proposer each, of which fewer may be connected than files may be kept.

WAL can wait for a descriptor. A control file or a look at the log cannot, since a log whose control
file is not written has failed for good. So a few descriptors are in reserve for them, like space on
the disk. Votes go on.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from threading import Lock
from typing import TypeAlias, TypeVar

from walkeeper_common.shell.process.descriptors import limit_of

logger = logging.getLogger("walkeeper.files")

RESERVED = 8

Key: TypeAlias = tuple[object, str]  # the directory's owner, and a name
Opened = TypeVar("Opened")


class OpenFile:
    """One descriptor. Its holder may set `is_unsynced`; OpenFiles owns the rest, under its lock."""

    __slots__ = ("descriptor", "is_forgotten", "is_unsynced", "users")

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.users = descriptor, 1
        self.is_unsynced = self.is_forgotten = False


class OpenFiles:
    """The open files of one process, at most `files_max` unless more are in use."""

    def __init__(self, files_max: int) -> None:
        self._files_max = files_max
        self._lock = Lock()
        self._files: OrderedDict[Key, OpenFile] = OrderedDict()
        self._reserve_lock = Lock()
        self._reserve = list[int]()
        self._fill_reserve()

    def __del__(self) -> None:
        self._give_up_reserve()
        for file in self._files.values():  # they have no users, which would hold this object too
            os.close(file.descriptor)

    def __len__(self) -> int:
        return len(self._files)

    def hold(self, key: Key) -> OpenFile | None:
        """Return an open file, held until `give_back`, or None if it is not open."""
        with self._lock:
            file = self._files.get(key)
            if file is not None:
                file.users += 1
                self._files.move_to_end(key)
        return file

    def add(self, key: Key, descriptor: int) -> OpenFile:
        """Add a newly opened file, held; close others for it if necessary."""
        with self._lock:
            assert key not in self._files, f"{key=}"
            file = self._files[key] = OpenFile(descriptor)
            surplus = self._take_idle(len(self._files) - self._files_max)
        _close(surplus)
        return file

    def give_back(self, file: OpenFile) -> None:
        with self._lock:
            file.users -= 1
            unused = [file] if file.is_forgotten and file.users == 0 else []
            if len(self._files) > self._files_max:  # so many were in use
                unused += self._take_idle(len(self._files) - self._files_max)
        _close(unused)

    def forget(self, *keys: Key) -> None:
        """Forget these files; those in use are closed after their last user."""
        with self._lock:
            unused = self._forget(keys)
        _close(unused)

    def forget_all(self, owner: object) -> None:
        with self._lock:
            unused = self._forget([key for key in self._files if key[0] is owner])
        _close(unused)

    def _forget(self, keys: Iterable[Key]) -> list[OpenFile]:
        """Forget files, under the lock; return those to close at once."""
        found = [file for key in keys if (file := self._files.pop(key, None)) is not None]
        for file in found:
            file.is_forgotten = True
        return [file for file in found if file.users == 0]

    def _take_idle(self, count: int) -> list[OpenFile]:
        """Take up to `count` idle files out of the table, oldest use first, under the lock."""
        taken = list[OpenFile]()
        if count > 0:
            for key, file in list(self._files.items()):
                if file.users == 0 and not file.is_unsynced:
                    taken.append(self._files.pop(key))
                    if len(taken) == count:
                        break
        return taken

    def opening(self, open_it: Callable[[], Opened]) -> Opened:
        """Call `open_it`, which opens a file before it does anything else; return its result.

        Without a free descriptor, close all files without a user and call it once more.
        """
        try:
            return open_it()
        except OSError as error:
            if not is_no_descriptor(error):
                raise
            logger.warning(
                "%s: files of the logs that are not in use are closed; raise %s",
                error.strerror,
                limit_of(error),
            )
        with self._lock:
            idle = self._take_idle(len(self._files))
        _close(idle)
        try:
            return open_it()
        except OSError as error:
            if is_no_descriptor(error):
                logger.warning("%s, also after that", error.strerror)
            raise

    def opening_at_any_rate(self, open_it: Callable[[], Opened]) -> Opened:
        """Do as `opening`, and give up the reserve for it. The reserve is refilled soon."""
        try:
            opened = self.opening(open_it)
        except OSError as error:
            if not is_no_descriptor(error):
                raise
        else:
            if len(self._reserve) < RESERVED:
                with self._reserve_lock:
                    self._fill_reserve()
            return opened
        with self._reserve_lock:
            self._give_up_reserve()
            try:
                return open_it()
            finally:
                self._fill_reserve()

    def _fill_reserve(self) -> None:
        """Refill the reserve as far as possible."""
        with suppress(OSError):
            while len(self._reserve) < RESERVED:
                self._reserve.append(os.open(os.devnull, os.O_RDONLY))

    def _give_up_reserve(self) -> None:
        while self._reserve:
            os.close(self._reserve.pop())


def _close(files: Iterable[OpenFile]) -> None:
    """Close files that are in no table and have no users."""
    for file in files:
        os.close(file.descriptor)


def is_no_descriptor(error: BaseException | None) -> bool:
    """Return True if the process, or the machine, has too many open files.

    Only an open fails in this way, so the work on the file has not begun."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
