"""A prefetcher of `walkeeper restore` that makes its WAL itself, for the server in this directory.

    python -m tests.support.ready_prefetcher SYSTEM_ID proven|owed WORD... %f %p

It fetches FETCHED, which follow PLACED. `proven` records the proof of R23 before.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator
from typing import cast

from walkeeper_common.history import NO_BALLOT, Ballot, Fragment
from walkeeper_common.lsn import Lsn, segment_name
from walkeeper_common.quorum import Configuration, LogKind
from walkeeper_common.shell.safekeeper_links.committed_wal import Safekeeper
from walkeeper_common.wire.messages import AcceptorGreeting
from walkeeper_restore import prefetching, spool
from walkeeper_restore.standby_check import proof

MB = 1 << 20
PLACED, *FETCHED = (segment_name(1, Lsn(number * MB), MB) for number in range(3, 8))
BEGIN, END = Lsn(3 * MB), Lsn(8 * MB)
MEMBERS = tuple(f"{number}#{number:032x}" for number in (1, 2, 3))
XLP_LONG_HEADER = 2


def segment(begin_lsn: int, system_id: int) -> bytes:
    """Return a segment that has a first page's header alone."""
    pages = (begin_lsn, 0, system_id, MB, 8192)
    header = struct.pack("=HHIQI4xQII", 0xD110, XLP_LONG_HEADER, 1, *pages)
    return header.ljust(MB, b"\0")


class Source:
    """A safekeeper that has all WAL."""

    def __init__(self, system_id: int) -> None:
        self._system_id = system_id
        self._socket = socket.socket()

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> Iterator[tuple[Lsn, memoryview]]:
        yield begin_lsn, memoryview(segment(begin_lsn, self._system_id))

    def close(self) -> None:
        self._socket.close()


def greeting(system_id: int) -> AcceptorGreeting:
    """Return the greeting of a safekeeper with all segments up to END, committed."""
    first = (NO_BALLOT, Ballot(1, b"p" * 16))
    return AcceptorGreeting(
        acceptor_id=1,
        incarnation=b"i" * 16,
        log_uuid=b"u" * 16,
        configuration=Configuration(
            1, b"u" * 16, system_id, MB, "15.18", LogKind.PHYSICAL, BEGIN, 1, MEMBERS, 2
        ),
        ballot=first[-1],
        history=tuple(Fragment(ballot, BEGIN, 1, False, MEMBERS, 2) for ballot in first),
        oldest_lsn=BEGIN,
        flush_lsn=END,
        record_lsn=END,
        commit_lsn=END,
        live=None,
    )


def main() -> None:
    system_id, given = int(sys.argv[1]), sys.argv[2]
    *options, name, path = sys.argv[3:]
    if given == "proven":
        proof.remember(spool.key_of(options))
    source = cast(Safekeeper, Source(system_id))
    prefetching.start(options, path, name, source, greeting(system_id), len(FETCHED))


if __name__ == "__main__":
    main()
