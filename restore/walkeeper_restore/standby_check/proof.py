"""A file in pg_wal which records that the server has proved its ancestry. Standard library alone.

    is_owed(key)        True if `walkeeper restore` has to check before it hands over a file
    remember(key)       record that this start of the server has proved its ancestry

One start of a server is one postmaster: its pid, its start time, and the inode of postmaster.pid. A
copy of a data directory, or the same one after pg_rewind, has another postmaster. So an old proof
counts for nothing there. `key` stands for the options, so another log needs another proof.

If no server runs in the working directory, no proof is owed. pg_rewind -c and users at a shell also
request WAL, and pg_rewind does so for another branch.
"""

from __future__ import annotations

import os

PROOF = os.path.join("pg_wal", ".walkeeper_ancestry")
START_TIME_LINE = 2


def is_owed(key: str) -> bool:
    """Return True if a server runs here and its proof under these options is missing."""
    start = _start_of_server()
    if start is None:
        return False
    try:
        with open(PROOF, encoding="utf-8", errors="replace") as file:
            return file.read() != _text(start, key)
    except OSError:
        return True


def remember(key: str) -> None:
    """Record the proof. If the file cannot be written, the next request proves it again."""
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
    """Return a text that is unique to this start, or None if no server runs in this directory."""
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
