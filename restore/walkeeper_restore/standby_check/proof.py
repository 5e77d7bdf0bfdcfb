"""A file in pg_wal which records that the server has proved its ancestry. Standard library alone.

    is_owed(key)        True if `walkeeper restore` has to check before it hands over a file
    remember(key)       record that this start of the server has proved its ancestry
    open_proven(key)    a descriptor that stands for a start which has proved it

One start of a server is one postmaster: its pid, its start time, and the inode of postmaster.pid. A
copy of a data directory, or the same one after pg_rewind, has another postmaster. So an old proof
counts for nothing there. `key` stands for the options, so another log needs another proof.

If no server runs in the working directory, no proof is owed. pg_rewind -c and users at a shell also
request WAL, and pg_rewind does so for another branch.
"""

from __future__ import annotations

import os

PROOF = os.path.join("pg_wal", ".walkeeper_ancestry")
POSTMASTER = "postmaster.pid"
START_TIME_LINE = 2


def is_owed(key: str) -> bool:
    """Return True if a server runs here and its proof under these options is missing."""
    start = _start_of_server(POSTMASTER)
    return start is not None and not _is_recorded(start, key)


def open_proven(key: str) -> int | None:
    """Return a descriptor of postmaster.pid if this start of the server has its proof, or None.

    No later start has a postmaster.pid of the same inode while the descriptor is open.
    """
    try:
        descriptor = os.open(POSTMASTER, os.O_RDONLY)
    except OSError:
        return None
    start = _start_of_server(descriptor)
    if start is not None and _is_recorded(start, key):
        return descriptor
    os.close(descriptor)
    return None


def remember(key: str) -> None:
    """Record the proof. If the file cannot be written, the next request proves it again."""
    start = _start_of_server(POSTMASTER)
    if start is None:
        return
    temporary = f"{PROOF}.{os.getpid()}"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(_text(start, key))
        os.rename(temporary, PROOF)
    except OSError:
        return


def _is_recorded(start: str, key: str) -> bool:
    try:
        with open(PROOF, encoding="utf-8", errors="replace") as file:
            return file.read() == _text(start, key)
    except OSError:
        return False


def _text(start: str, key: str) -> str:
    return f"{start} {key}\n"


def _start_of_server(postmaster: str | int) -> str | None:
    """Return a text that is unique to this start, or None if no server runs in this directory.

    `postmaster` is the name of postmaster.pid or its descriptor, which stays open.
    """
    is_name = isinstance(postmaster, str)
    try:
        with open(postmaster, encoding="utf-8", errors="replace", closefd=is_name) as file:
            lines = file.read().splitlines()
            inode = os.fstat(file.fileno()).st_ino
        pid = abs(int(lines[0]))  # a single-user server's is negative
        os.kill(pid, 0)
        return f"{pid} {lines[START_TIME_LINE]} {inode}"
    except PermissionError:  # another user's process: it is there
        return f"{pid} {lines[START_TIME_LINE]} {inode}"
    except (OSError, ValueError, IndexError):
        return None
