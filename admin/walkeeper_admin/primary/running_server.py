"""The process of a server that runs on a data directory of this machine. Reads /proc.

await refuse_another(sql, data_directory)       is this connection to that server?
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from walkeeper_common.errors import Refused

if TYPE_CHECKING:  # a start of postgres has no time to import a library
    import asyncpg

LOCK_FILE = "postmaster.pid"
LOCK_FILE_OF = f"SELECT pg_read_file('{LOCK_FILE}')"
IDENTITY_LINES = 3  # the process, the data directory and the time of the start


def running_pid(data_directory: Path) -> int | None:
    """Return the pid of the server that runs on this directory, or None.

    Raise Refused if this user may not read postmaster.pid.
    """
    try:
        pid = int((data_directory / LOCK_FILE).read_text().split()[0])
    except (FileNotFoundError, IndexError, ValueError):
        return None
    except OSError as error:
        raise Refused(f"{error.filename}: {error.strerror}: run as the server's user") from error
    with suppress(OSError):
        if os.readlink(f"/proc/{pid}/cwd") == str(data_directory.resolve()):
            return pid
    return None


async def refuse_another(sql: asyncpg.Connection, data_directory: Path) -> None:
    """Raise Refused unless the connection is to the server of this data directory.

    A DSN may lead to a proxy, or to a neighbour's port. Servers on other machines may have the same
    directory and the same process number, but hardly the same second of their start.
    """
    ours = await asyncio.to_thread(_lock_file, data_directory)
    theirs: str = await sql.fetchval(LOCK_FILE_OF)
    if ours.splitlines()[:IDENTITY_LINES] != theirs.splitlines()[:IDENTITY_LINES]:
        where = theirs.splitlines()[1:2]
        raise Refused(
            f"--dsn leads to another server than that of {data_directory}, to that of "
            f"{''.join(where)}: name this server's own socket and port"
        )


def _lock_file(data_directory: Path) -> str:
    try:
        return (data_directory / LOCK_FILE).read_text()
    except FileNotFoundError as error:
        raise Refused(f"the server of {data_directory} does not run") from error
    except OSError as error:
        raise Refused(f"{error.filename}: {error.strerror}: run as the server's user") from error
