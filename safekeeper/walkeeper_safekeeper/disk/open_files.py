"""The open files of all the logs of a process: one bound for all, whatever the number of logs.

    hold / add / give_back    a descriptor, for as long as it is used
    forget / forget_all       a name means another file now, or none
    opening                   room is made once for a file that cannot be opened otherwise
    opening_at_any_rate       and a reserve of descriptors is given up for it

Contract: safe to use from several threads; its lock is held for bookkeeping only, never while a
disk is waited for. Beyond `files_max` the least recently used are closed that nobody uses at the
moment, whichever log they are of: a busy log's tail and what its readers are at stay open.

A descriptor that is in use is never closed. Its number would go to the next file that is opened,
and WAL would be written, or an fdatasync done, in the wrong file. So:
  1. A number is given out under the lock only, with `users` counted up, and by the table only.
  2. It is taken for closing under the lock only, when it has no users, and it leaves the table in
     that same moment: after that nobody can be given it. Only then it is closed.
  3. A file that is forgotten leaves the table at once, and is closed when its last user is done.
Nor is a file closed between a write to it and its sync, because what a disk has to say of a
failed write it says on the descriptors that were open then: `is_unsynced`.

A log's tail is in use as long as nothing but WAL comes, a second at the most. Such logs have a
proposer each, of which fewer may be connected than files may be kept.

WAL can wait for a descriptor; a control file or a look at the log cannot, a log whose control file
is not written has failed for good. So a few descriptors are kept in reserve for them, as space is
on the disk: votes go on.
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

logger = logging.getLogger("walkeeper.files")

RESERVED = 8

Key: TypeAlias = tuple[object, str]  # the directory's owner, and a name
Opened = TypeVar("Opened")


class OpenFile:
    """Who holds it may set `is_unsynced`; the rest is OpenFiles' own, under its lock."""

    __slots__ = ("descriptor", "is_forgotten", "is_unsynced", "users")

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.users = descriptor, 1
        self.is_unsynced = self.is_forgotten = False


class OpenFiles:
    """Of one process. More than `files_max` are open only while so many are in use."""

    def __init__(self, files_max: int) -> None:
        self._files_max = files_max
        self._lock = Lock()
        self._files: OrderedDict[Key, OpenFile] = OrderedDict()
        self._reserve_lock = Lock()
        self._reserve = list[int]()
        self._fill_reserve()

    def __del__(self) -> None:
        self._give_up_reserve()
        for file in self._files.values():  # nobody uses them: who does holds this object too
            os.close(file.descriptor)

    def __len__(self) -> int:
        return len(self._files)

    def hold(self, key: Key) -> OpenFile | None:
        """Not closed until `give_back`. None: it is not open."""
        with self._lock:
            file = self._files.get(key)
            if file is not None:
                file.users += 1
                self._files.move_to_end(key)
        return file

    def add(self, key: Key, descriptor: int) -> OpenFile:
        """Now open, which it was not, and held; others may be closed for it."""
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
        """Nobody is given these any more. Those in use are closed with their last user."""
        with self._lock:
            unused = self._forget(keys)
        _close(unused)

    def forget_all(self, owner: object) -> None:
        with self._lock:
            unused = self._forget([key for key in self._files if key[0] is owner])
        _close(unused)

    def _forget(self, keys: Iterable[Key]) -> list[OpenFile]:
        """Those that are to be closed at once. Under the lock."""
        found = [file for key in keys if (file := self._files.pop(key, None)) is not None]
        for file in found:
            file.is_forgotten = True
        return [file for file in found if file.users == 0]

    def _take_idle(self, count: int) -> list[OpenFile]:
        """Out of the table, so many at most, the least recently used first. Under the lock."""
        taken = list[OpenFile]()
        if count > 0:
            for key, file in list(self._files.items()):
                if file.users == 0 and not file.is_unsynced:
                    taken.append(self._files.pop(key))
                    if len(taken) == count:
                        break
        return taken

    def opening(self, open_it: Callable[[], Opened]) -> Opened:
        """What `open_it` returns, which opens a file before it does anything else.

        Without a descriptor for it, all that nobody uses are closed and it is tried once more.
        """
        try:
            return open_it()
        except OSError as error:
            if not is_no_descriptor(error):
                raise
            logger.warning(
                "%s: files of the logs that nobody uses at the moment are closed; raise %s",
                error.strerror,
                "LimitNOFILE= or ulimit -n" if error.errno == errno.EMFILE else "fs.file-max",
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
        """`opening`, for what cannot wait. The reserve is made whole again as soon as it can be."""
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
        """As far as it goes."""
        with suppress(OSError):
            while len(self._reserve) < RESERVED:
                self._reserve.append(os.open(os.devnull, os.O_RDONLY))

    def _give_up_reserve(self) -> None:
        while self._reserve:
            os.close(self._reserve.pop())


def _close(files: Iterable[OpenFile]) -> None:
    """They are in no table and have no users."""
    for file in files:
        os.close(file.descriptor)


def is_no_descriptor(error: BaseException | None) -> bool:
    """The process, or the machine, has too many open files. Only opening says so, so nothing of
    what was to be done with the file has happened."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
