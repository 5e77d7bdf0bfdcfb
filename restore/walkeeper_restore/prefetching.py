"""The prefetcher: a process that fetches the segments that PostgreSQL needs next. A shell.

    start(options, path, name, source, log, ahead)      returns at once

`options` is the command line without %f and %p, and `name` is the segment just placed at `path`.

At most `ahead` segments wait in the spool. The process ends when the log's last committed whole
segment was taken, when no segment was taken for a while, or at the first error. It also ends when
its directory or the server is gone. `restore` itself then fetches the other segments on request.
The process is a fork, so that it imports next to nothing. It keeps its parent's connection to
`source`. A thread syncs a segment, checks it, and names it while the next one is fetched. As long
as the process runs, the script `walkeeper` can take its segments (ready_words.py).

The process always ends with 0. A postmaster that is process 1, as in a container, adopts this
process. The postmaster would take any other exit code for the crash of a server process.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

from walkeeper_common.errors import WalkeeperError
from walkeeper_common.lsn import Lsn, parse_segment_name, segment_name
from walkeeper_common.shell.files.sync_path import sync_path
from walkeeper_common.shell.safekeeper_links.committed_wal import Safekeeper
from walkeeper_common.wire.messages import AcceptorGreeting
from walkeeper_restore import spool
from walkeeper_restore.file_placement import STARTED_BY
from walkeeper_restore.guard import is_wal_name
from walkeeper_restore.ready_words import write_words
from walkeeper_restore.safekeeper_files import fetch
from walkeeper_restore.spool import PART, is_alive, is_segment, remove_folder
from walkeeper_restore.standby_check.proof import open_proven
from walkeeper_restore.verdict import holds

IDLE_S = 30.0
POLL_S = 0.01
DESCRIPTORS_MAX = 65536
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


def start(
    options: Sequence[str],
    path: str,
    name: str,
    source: Safekeeper,
    log: AcceptorGreeting,
    ahead: int,
) -> None:
    """Start a prefetcher, unless the log has no committed whole segment after `name`."""
    wanted = _Segments(name, log, spool.system_id())
    if not wanted.advance() or os.fork():
        return
    try:
        key = spool.key_of(options)
        owned = f"{spool.folder_of(path, key)}.{os.getpid()}"
        proven = open_proven(key)
        _leave_the_server(source, proven)
        os.makedirs(owned, 0o700)
        try:
            if proven is not None and wanted.system_id is not None:
                write_words(owned, options)
            _fetch_ahead(owned, wanted, source, ahead)
            source.close()
            _wait_for_room(owned, 1)  # until all are taken
        except BaseException:
            remove_folder(owned)
    finally:
        os._exit(0)


class Unfit(WalkeeperError):
    """A fetched file is not the segment that its name says."""


class _Segments:
    """The segments that follow, as far as they are whole and committed."""

    def __init__(self, name: str, log: AcceptorGreeting, system_id: int | None) -> None:
        assert log.configuration is not None, f"{log=}"
        self.system_id = system_id
        self._log, self.segment_bytes = log, log.configuration.segment_bytes
        self._timeline, self.begin_lsn = parse_segment_name(name, self.segment_bytes)

    @property
    def name(self) -> str:
        return segment_name(self._timeline, self.begin_lsn, self.segment_bytes)

    @property
    def end_lsn(self) -> Lsn:
        return self.begin_lsn + self.segment_bytes

    def advance(self) -> bool:
        """Advance to the next segment; return False if it is not whole and committed."""
        self.begin_lsn = self.end_lsn
        return holds(self._log, self._timeline, self.begin_lsn, self.end_lsn)


def _leave_the_server(source: Safekeeper, proven: int | None) -> None:
    """Leave the server's session, and close the sockets and the log that this process inherited.

    `proven` becomes the standard input, by which the script `walkeeper` knows the server's start.
    """
    for number in ENDING:
        signal.signal(number, lambda *_: os._exit(0))
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    if proven is not None:
        os.dup2(proven, 0)
    kept = source.fileno()
    os.closerange(3, kept)
    os.closerange(kept + 1, DESCRIPTORS_MAX)
    os.chdir("/")


def _fetch_ahead(folder: str, wanted: _Segments, source: Safekeeper, ahead: int) -> None:
    from concurrent.futures import Future, ThreadPoolExecutor

    path, has_more = os.path.join(folder, wanted.name), True
    _create(path + PART)
    with ThreadPoolExecutor(1) as disk:
        placed: Future[None] = disk.submit(lambda: None)
        while has_more and _wait_for_room(folder, ahead):
            fetch(source, wanted.begin_lsn, wanted.end_lsn, path + PART, wanted.segment_bytes)
            placed.result()
            # The next segment is announced before this one is in place, so that its request waits.
            done, has_more = path, wanted.advance()
            path = os.path.join(folder, wanted.name)
            if has_more:
                _create(path + PART)
            placed = disk.submit(_sync_and_name, done, wanted.system_id)
        placed.result()
    if has_more:
        remove_folder(folder)
    else:
        sync_path(folder)


def _sync_and_name(path: str, system_id: int | None) -> None:
    """Give a segment its name, once it is on disk. Raise Unfit if it is no such segment."""
    sync_path(path + PART)
    if not is_segment(path + PART, os.path.basename(path), system_id):
        raise Unfit(f"{path} is not that segment of this server")
    os.rename(path + PART, path)


def _wait_for_room(folder: str, ahead: int) -> bool:
    """Wait until fewer than `ahead` segments are in the spool, and return True.

    Return False if no segment is taken for a while, or if the server is gone. Raise
    FileNotFoundError when the directory is gone.
    """
    before, since_s = -1, time.monotonic()
    while (waiting := sum(map(is_wal_name, os.listdir(folder)))) >= ahead:
        if waiting != before:
            before, since_s = waiting, time.monotonic()
        if time.monotonic() - since_s > IDLE_S or not all(map(is_alive, STARTED_BY[1:2])):
            return False
        time.sleep(POLL_S)
    return True


def _create(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
