"""Segments that were fetched ahead, in a folder of pg_wal. Files only; no sockets.

    pg_wal/.walkeeper_prefetch/KEY.PID/000000010000000000000003         whole and fsynced
    pg_wal/.walkeeper_prefetch/KEY.PID/000000010000000000000004.part    being fetched by PID
    pg_wal/.walkeeper_prefetch/KEY.PID/words                            for the script (ready_words)

KEY is a checksum of the options, so that no command line uses files of another one. The directory
is inside pg_wal for two reasons. A rename must not cross a file system, and pg_basebackup leaves
out all files of pg_wal. `take` imports only the smallest modules of the standard library, because
PostgreSQL waits for it. `restore` removes the directory when PostgreSQL requests another file than
the next one, and at the log's end. A prefetcher whose directory is gone ends.

A file is used only if its first page has the right cluster and position.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from struct import error as StructError
from struct import unpack

SPOOL = ".walkeeper_prefetch"
PART = ".part"
POLL_S = 0.002
STALLED_S = 5.0
PAGE_HEADER_BYTES = 40
XLP_LONG_HEADER = 2


def key_of(options: Sequence[str]) -> str:
    """Return the key of a command line without %f and %p, and of the environment's options."""
    return f"{zlib.crc32(repr((list(options), variables())).encode()):08x}"


def variables() -> list[tuple[str, str]]:
    """Return the environment's options."""
    return sorted(item for item in os.environ.items() if item[0].startswith("WALKEEPER_"))


def system_id() -> int | None:
    """Return the system identifier of the server in this directory, or None if there is none.

    It is pg_control's first field, in native byte order.
    """
    try:
        with open("global/pg_control", "rb") as file:
            (identifier,) = unpack("=Q", file.read(8))
    except (OSError, StructError):
        return None
    return int(identifier)


def folder_of(path: str, key: str) -> str:
    """Return the folder of segments that are fetched for `path`; its owner adds `.PID`."""
    return os.path.abspath(os.path.join(_root(path), key))


def _root(path: str) -> str:
    return os.path.join(os.path.dirname(path), SPOOL)


def take(name: str, path: str, key: str, system_id: int | None) -> bool:
    """Move the segment `name` to `path` and return True, or return False if it is not there.

    Wait while a prefetcher is fetching it.
    """
    for folder in _folders(_root(path), key):
        source = os.path.join(folder, name)
        if _wait_for(source, folder) and is_segment(source, name, system_id):
            os.rename(source, path)
            return True
    return False


def remove(path: str) -> None:
    """Remove the whole spool; a prefetcher that uses it ends at its next file."""
    root = _root(path)
    for folder in _folders(root):
        remove_folder(folder)
    _ignoring_absence(os.rmdir, root)


def remove_folder(folder: str) -> None:
    """Remove the files of one prefetcher."""
    for name in _names(folder):
        _ignoring_absence(os.unlink, os.path.join(folder, name))
    _ignoring_absence(os.rmdir, folder)


def _ignoring_absence(action: Callable[[str], None], path: str) -> None:
    try:
        action(path)
    except OSError:
        return  # another process has removed it, or still adds to it, and a later one removes it


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _folders(root: str, key: str = "") -> Iterator[str]:
    for name in _names(root):
        if not key or name.startswith(f"{key}."):
            yield os.path.join(root, name)


def _wait_for(source: str, folder: str) -> bool:
    """Wait for a file; return True when it is there, or False if its prefetcher has stopped."""
    pid = int(folder.rpartition(".")[2])
    written_at, deadline = -1, 0.0
    while not os.path.exists(source):
        try:
            now_at = os.stat(source + PART).st_mtime_ns  # The size is a whole segment's.
        except FileNotFoundError:
            return os.path.exists(source)  # its prefetcher may have renamed it in between
        if now_at != written_at:
            written_at, deadline = now_at, time.monotonic() + STALLED_S
        if time.monotonic() > deadline or not is_alive(pid):
            return False
        time.sleep(POLL_S)
    return True


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_segment(source: str, name: str, system_id: int | None) -> bool:
    """Return True if the long header of the first page fits the file's name and the server."""
    with open(source, "rb") as file:
        head, size = file.read(PAGE_HEADER_BYTES), os.fstat(file.fileno()).st_size
    try:
        _, info, _, address, _, identifier, segment_bytes, _ = unpack("=HHIQI4xQII", head)
    except StructError:
        return False
    log, number = int(name[8:16], 16), int(name[16:24], 16)
    return (
        bool(info & XLP_LONG_HEADER)
        and size == segment_bytes
        and address == (log << 32) + number * segment_bytes
        and system_id in (None, identifier)
    )
