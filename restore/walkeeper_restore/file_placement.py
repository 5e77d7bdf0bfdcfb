"""A file that is in place whole or not at all: a temporary name, fsync, rename. A shell.

    with placing(path) as temporary: write(temporary)      renamed when the block ends well

The next process removes the files of a killed one (`remove_leftovers`). A process whose server has
died must not rename anything any more. By then another server may wait for another segment under
the same name. `Orphaned` is raised instead.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from walkeeper_common.errors import WalkeeperError
from walkeeper_common.shell.files.sync_path import sync_path
from walkeeper_restore.spool import is_alive

SUFFIX = ".walkeeper-"
ANCESTORS = 3  # a shell, PostgreSQL's startup process, its postmaster


class Orphaned(WalkeeperError):
    """The server that waited for the answer is gone, so no file may be placed."""


def ancestors() -> tuple[int, ...]:
    """Return the pids of the processes that started this one, as far as the system shows them.

    The result changes when one of them dies.
    """
    pid = os.getppid()
    found: list[int] = []
    while pid > 1 and len(found) < ANCESTORS:
        found.append(pid)
        try:
            with open(f"/proc/{pid}/stat") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return tuple(found)


STARTED_BY = ancestors()


def check_wanted() -> None:
    """Raise Orphaned if the server is gone, even if it went before this process could look."""
    born_an_orphan = not STARTED_BY and os.path.exists("standby.signal")
    if born_an_orphan or ancestors() != STARTED_BY:
        raise Orphaned("the server that asked for this file is gone")


@contextlib.contextmanager
def placing(path: str) -> Iterator[str]:
    """Yield the name of an empty temporary file, and rename it to `path` when the block ends.

    If the block raises, remove the temporary file. Raise Orphaned if the server is gone.
    """
    temporary = f"{path}{SUFFIX}{os.getpid()}"
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield temporary
        sync_path(temporary)
        check_wanted()
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_path(os.path.dirname(path) or ".")


def remove_leftovers(path: str) -> None:
    """Remove the temporary files of `path` that belong to dead processes."""
    folder, name = os.path.split(path)
    with os.scandir(folder or ".") as entries:
        for entry in entries:
            stem, _, pid = entry.name.rpartition(SUFFIX)
            if stem == name and pid.isdigit() and not is_alive(int(pid)):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
