"""The contract of the compiled classes."""

from walkeeper_fastpath.ports import Answer, Disk, Expected

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
