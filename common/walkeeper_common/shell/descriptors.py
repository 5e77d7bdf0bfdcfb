"""How many files and sockets a daemon may have open, and how many of them are connections.

    take_descriptors        at its start, or Refused
    connections_allowed     a cap on one kind of connections, under this process' limit
    kept_files_allowed      how many files of its logs a safekeeper keeps open, of all together

A log whose file cannot be opened takes no WAL meanwhile, or has failed for good. So whoever takes
connections refuses one too many long before, and files have half of the descriptors to themselves:
a quarter of all is for those that stay open because they may be used again, the other for those
that are in use, whatever is kept: a few of each log at most, one or none most of the time.
"""

from __future__ import annotations

import resource
from contextlib import suppress

from walkeeper_common.errors import Refused

DESCRIPTORS = 8192
DESCRIPTORS_MIN = 512
# The caps of one daemon are at most 1,000 together, which is half of this.
DESCRIPTORS_OF_FULL_CAPS = 2000


def take_descriptors() -> None:
    """The soft limit of 1,024 is for programs that call select(2), systemd.exec(5) says: a daemon
    should take what the hard one allows. Each hosted log has its files, each standby a socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError):  # forbidden: it goes on with what it has
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    allowed = _allowed()
    if allowed < DESCRIPTORS_MIN:
        raise Refused(
            f"this process may open {allowed} files, a daemon needs {DESCRIPTORS_MIN}: raise "
            "LimitNOFILE= of its systemd unit, or `ulimit -n` of its shell"
        )


def connections_allowed(cap: int) -> int:
    """`cap`, or less in proportion where descriptors are few; at least 1."""
    return -(-cap * min(_allowed(), DESCRIPTORS_OF_FULL_CAPS) // DESCRIPTORS_OF_FULL_CAPS)


def kept_files_allowed() -> int:
    return _allowed() // 4


def _allowed() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
