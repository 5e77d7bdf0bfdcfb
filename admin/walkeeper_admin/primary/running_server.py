"""The process of a server that runs on a data directory of this machine. Reads /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from walkeeper_common.errors import Refused


def running_pid(data_directory: Path) -> int | None:
    """Return the pid of the server that runs on this directory, or None.

    Raise Refused if this user may not read postmaster.pid.
    """
    try:
        pid = int((data_directory / "postmaster.pid").read_text().split()[0])
    except (FileNotFoundError, IndexError, ValueError):
        return None
    except OSError as error:
        raise Refused(f"{error.filename}: {error.strerror}: run as the server's user") from error
    with suppress(OSError):
        if os.readlink(f"/proc/{pid}/cwd") == str(data_directory.resolve()):
            return pid
    return None
