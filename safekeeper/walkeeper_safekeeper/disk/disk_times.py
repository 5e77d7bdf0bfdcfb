"""The times of a log's writes and fsyncs, for /metrics. Its clock is never set back."""

from __future__ import annotations

from time import perf_counter

from walkeeper_common.metrics import Times

now_s = perf_counter


class DiskTimes:
    """The histograms of one disk; the thread that writes the log is the only caller."""

    __slots__ = ("fsync", "write")

    def __init__(self) -> None:
        self.write, self.fsync = Times(), Times()

    def observe(self, write_s: float, fsync_s: float) -> None:
        """Count one write and the fsync that followed it. For the hot path."""
        self.write.observe(write_s)
        self.fsync.observe(fsync_s)
