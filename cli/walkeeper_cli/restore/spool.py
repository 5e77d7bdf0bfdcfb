"""Segments that were fetched ahead, beside where PostgreSQL wants them. Files only; no sockets.

    pg_wal/.walkeeper_prefetch/KEY.PID/000000010000000000000003         whole and fsynced
    pg_wal/.walkeeper_prefetch/KEY.PID/000000010000000000000004.part    being fetched by PID

KEY is a checksum of the options, so that another command line uses nothing of an older one's. The
directory is pg_wal's own, for a rename must not cross a file system and pg_basebackup leaves out
all that is in there. `take` needs the standard library's smallest modules alone: it is the way on
which PostgreSQL waits. The directory goes when the order of requests breaks and at the log's end;
a prefetcher whose directory has gone ends.

A file is used only if its first page says what it should be: this cluster, this position.
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
    """Of the command line without %f and %p, and of the options in the environment."""
    ours = sorted(item for item in os.environ.items() if item[0].startswith("WALKEEPER_"))
    return f"{zlib.crc32(repr((list(options), ours)).encode()):08x}"


def system_id() -> int | None:
    """Of the server whose data directory this is: pg_control's first field, in native order."""
    try:
        with open("global/pg_control", "rb") as file:
            (identifier,) = unpack("=Q", file.read(8))
    except (OSError, StructError):
        return None
    return int(identifier)


def folder_of(path: str, key: str) -> str:
    """Where segments for `path` are fetched to; its owner adds `.PID`."""
    return os.path.abspath(os.path.join(_root(path), key))


def _root(path: str) -> str:
    return os.path.join(os.path.dirname(path), SPOOL)


def take(name: str, path: str, key: str, system_id: int | None) -> bool:
    """Whether `path` is now the segment `name`; waits while it is being fetched."""
    for folder in _folders(_root(path), key):
        source = os.path.join(folder, name)
        if _wait_for(source, folder) and _is_segment(source, name, system_id):
            os.rename(source, path)
            return True
    return False


def remove(path: str) -> None:
    """All of the spool; whoever fetches into it ends at its next file."""
    root = _root(path)
    for folder in _folders(root):
        remove_folder(folder)
    _ignoring_absence(os.rmdir, root)


def remove_folder(folder: str) -> None:
    """What one prefetcher fetched."""
    for name in _names(folder):
        _ignoring_absence(os.unlink, os.path.join(folder, name))
    _ignoring_absence(os.rmdir, folder)


def _ignoring_absence(action: Callable[[str], None], path: str) -> None:
    try:
        action(path)
    except OSError:
        return  # somebody else removes it, or still adds to it: the next one will


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
    """True when it is there, False when nobody brings it."""
    pid = int(folder.rpartition(".")[2])
    size, deadline = -1, 0.0
    while not os.path.exists(source):
        try:
            now_size = os.stat(source + PART).st_size
        except FileNotFoundError:
            return os.path.exists(source)  # it may have got its name in between
        if now_size != size:
            size, deadline = now_size, time.monotonic() + STALLED_S
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


def _is_segment(source: str, name: str, system_id: int | None) -> bool:
    """By the long header of its first page, which PostgreSQL would check as well."""
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
