"""The contract of the compiled classes."""

from collections.abc import Sequence
from typing import Any

from walkeeper_fastpath.ports import Answer, Disk, Expected, ExpectedFrames

class AppendPath:
    """The next WAL of one leader: from received bytes to the disk and the ack.

    `taken`: the bytes of frames whose WAL was written last, or could not be written.
    `end_lsn`: how far the log is durable and acknowledged."""

    taken: int
    end_lsn: int
    groups_written: int

    def __init__(self, expected: Expected, tail: Disk, answer: Answer, /) -> None: ...
    def take(self, memory: bytearray, size: int, /) -> int:
        """Make the WAL in the whole frames of `memory[:size]` durable, and acknowledge it.

        Return the number of their bytes. Return 0, with no effect, if the core has to decide.
        Raise StorageError if the WAL of the first `taken` bytes could not be made durable."""

    def settled(self) -> tuple[int, int, int] | None:
        """Return flush_lsn, commit_lsn and restart_lsn, if they moved since the last call."""

class StreamPath:
    """The stream of one leader: WAL to all members that keep up, and their acks.

    `feedback`: of all members, for the report to the primary."""

    end_lsn: int
    commit_lsn: int
    feedback: Any  # as it was expected

    def __init__(self, expected: ExpectedFrames, connections: Sequence[Answer], /) -> None: ...
    def send(self, begin_lsn: int, wal: memoryview, /) -> bool:
        """Send WAL to all members. Return False, with no effect, if the core has to do it."""

    def take(self, link: int, memory: bytearray, size: int, /) -> int | None:
        """Take the acks in `memory[:size]`; return the LSN to report, or 0.

        Return None, with no effect, if the core has to see them."""

    def settled(
        self,
    ) -> tuple[int, int, Sequence[tuple[memoryview, int]], Sequence[tuple[int, int, int]]] | None:
        """Return what StreamTaken has, if there is news since the last call."""
