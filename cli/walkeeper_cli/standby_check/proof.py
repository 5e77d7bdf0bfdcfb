"""Which start of a server has proved its ancestry: a file in pg_wal. The standard library alone.

    is_owed(key)        whether `walkeeper restore` has to check before it hands over a file
    remember(key)       this start of the server has proved it

One start of a server is one postmaster: its pid, its start time, and the file that says so. A copy
of a data directory, or the same one after pg_rewind, is started by another postmaster, so an old
proof counts for nothing. `key` stands for the options, so another log needs another proof.

Where no server runs in the working directory nothing is owed: pg_rewind -c and people at a shell
ask for WAL as well, and pg_rewind does so for another branch.
"""

from __future__ import annotations

import os

PROOF = os.path.join("pg_wal", ".walkeeper_ancestry")
START_TIME_LINE = 2


def is_owed(key: str) -> bool:
    """Return whether a server runs here whose proof under these options is not there."""
    start = _start_of_server()
    if start is None:
        return False
    try:
        with open(PROOF, encoding="utf-8", errors="replace") as file:
            return file.read() != _text(start, key)
    except OSError:
        return True


def remember(key: str) -> None:
    """Write the proof. Without room for it the next request checks again."""
    start = _start_of_server()
    if start is None:
        return
    temporary = f"{PROOF}.{os.getpid()}"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(_text(start, key))
        os.rename(temporary, PROOF)
    except OSError:
        return


def _text(start: str, key: str) -> str:
    return f"{start} {key}\n"


def _start_of_server() -> str | None:
    """Return what is of this start alone, or None if no server runs in this directory."""
    try:
        with open("postmaster.pid", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
            inode = os.fstat(file.fileno()).st_ino
        pid = abs(int(lines[0]))  # a single-user server's is negative
        os.kill(pid, 0)
        return f"{pid} {lines[START_TIME_LINE]} {inode}"
    except PermissionError:  # another user's process: it is there
        return f"{pid} {lines[START_TIME_LINE]} {inode}"
    except (OSError, ValueError, IndexError):
        return None
