"""The number of files and sockets that a daemon may open, and how many of them are connections.

    take_descriptors        raises the limit of the process at its start, or raises Refused
    connections_allowed     a cap on one kind of connections, under this process' limit
    waiting_allowed         how many new connections may wait to be looked at
    kept_files_allowed      how many files of its logs a safekeeper keeps open, of all together
    limit_of                the limit that an operator raises when the kernel refuses one more

A log whose file cannot be opened takes no WAL meanwhile, or has failed for good. So a daemon
refuses connections long before descriptors run out, and files have half of the descriptors to
themselves. One quarter of all is for files that stay open because they may be used again. The
other quarter is for files in use: a few of each log at most, one or none most of the time.
"""

from __future__ import annotations

import errno
import resource
from contextlib import suppress

from walkeeper_common.errors import Refused

DESCRIPTORS = 8192
DESCRIPTORS_MIN = 512
# The caps of one daemon are at most 900 together without WAITING_MIN: half of the full caps' 2,000.
DESCRIPTORS_OF_FULL_CAPS = 2000
WAITING_MIN, WAITING_MAX = 100, 1000


def take_descriptors() -> None:
    """Raise the soft limit to what the hard one allows, at most DESCRIPTORS.

    Raise Refused if the process may open fewer than DESCRIPTORS_MIN files. The soft limit of 1,024
    is for programs that call select(2), as systemd.exec(5) says. Each hosted log has its files, and
    each standby has a socket.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError):  # forbidden: the daemon goes on with the limit that it has
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    allowed = _allowed()
    if allowed < DESCRIPTORS_MIN:
        raise Refused(
            f"this process may open {allowed} files, a daemon needs {DESCRIPTORS_MIN}: raise "
            "LimitNOFILE= of its systemd unit, or `ulimit -n` of its shell"
        )


def connections_allowed(cap: int) -> int:
    """Return `cap`, or less in proportion if the process has few descriptors; at least 1."""
    return -(-cap * min(_allowed(), DESCRIPTORS_OF_FULL_CAPS) // DESCRIPTORS_OF_FULL_CAPS)


def waiting_allowed() -> int:
    """Return how many connections may wait: WAITING_MAX, or what the other caps leave."""
    spare = (_allowed() - DESCRIPTORS_OF_FULL_CAPS) // 2 + WAITING_MIN
    return min(WAITING_MAX, max(connections_allowed(WAITING_MIN), spare))


def kept_files_allowed() -> int:
    return _allowed() // 4


def limit_of(error: OSError) -> str:
    """Return the limit that was reached when a file or a socket could not be opened."""
    limits = {errno.EMFILE: "LimitNOFILE= or ulimit -n", errno.ENFILE: "fs.file-max"}
    return limits.get(error.errno or 0, "net.ipv4.tcp_mem")


def _allowed() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
