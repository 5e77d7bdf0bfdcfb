"""The switch of the compiled fast path: it is on where it was built and not turned off.

    append_path()      the class for a safekeeper's appends, or None
    stream_path()      the class for a proposer's stream, or None
    primary_path()     the class for a proposer's stream from its primary, or None
    commit_clock()     the class that samples the times of commits for the former, or None
    feed()             the class that hands it what a connection of both receives, or None
    read_cached()      the read of a page cache for a safekeeper's readers, or None
    state()            "on", or "off" with the reason, for people

It is optional. Without a compiler at the installation, or with WALKEEPER_FAST_PATH=off, all
daemons work by the slow path alone. The variable is read once, when a daemon starts.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from walkeeper_fastpath._fastpath import (
        AppendPath,
        CommitClock,
        Feed,
        PrimaryPath,
        StreamPath,
    )
    from walkeeper_fastpath.ports import ReadCached

VARIABLE = "WALKEEPER_FAST_PATH"


def _why_off() -> str:
    """Return why the fast path is off, or nothing if it is on."""
    if os.environ.get(VARIABLE, "on").lower() in ("off", "0", "no", "false"):
        return f"{VARIABLE} says so"
    try:
        import walkeeper_fastpath._fastpath  # noqa: F401
    except ModuleNotFoundError:
        return "it was not compiled"
    except ImportError as error:
        return f"it cannot be loaded: {error}"
    return ""


_WHY_OFF = _why_off()


def append_path() -> type[AppendPath] | None:
    """Return the class of a safekeeper's fast path, or None if it is off."""
    if not is_on():
        return None
    from walkeeper_fastpath._fastpath import AppendPath

    return AppendPath


def stream_path() -> type[StreamPath] | None:
    """Return the class of a proposer's fast path, or None if it is off."""
    if not is_on():
        return None
    from walkeeper_fastpath._fastpath import StreamPath

    return StreamPath


def primary_path() -> type[PrimaryPath] | None:
    """Return the class of the stream from a primary, or None if it is off."""
    if not is_on():
        return None
    from walkeeper_fastpath._fastpath import PrimaryPath

    return PrimaryPath


def commit_clock() -> type[CommitClock] | None:
    """Return the class that samples the times of commits, or None if it is off."""
    if not is_on():
        return None
    from walkeeper_fastpath._fastpath import CommitClock

    return CommitClock


def feed() -> type[Feed] | None:
    """Return the class that hands received bytes to the former, or None if it is off."""
    if not is_on():
        return None
    from walkeeper_fastpath._fastpath import Feed

    return Feed


def read_cached() -> ReadCached | None:
    """Return the compiled read of the page cache, or None if it is off.

    Python's own would fill the memory with zeros before the read.
    """
    if not is_on():
        return None
    from walkeeper_fastpath import _fastpath

    return _fastpath.read_cached


def is_on() -> bool:
    """Return True if the daemons of this process use the compiled fast path."""
    return not _WHY_OFF


def state() -> str:
    """Return "on", or "off" with the reason."""
    return "on" if is_on() else f"off ({_WHY_OFF})"
