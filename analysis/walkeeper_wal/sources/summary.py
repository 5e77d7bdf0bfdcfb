"""The result of reading one segment, whichever way it was read."""

from __future__ import annotations

from dataclasses import dataclass

from walkeeper_wal.records.versions import WalVersion
from walkeeper_wal.sources.plan import PlannedSegment


@dataclass(slots=True)
class Summary:
    """The result of reading a segment. LSNs are None without a record."""

    segment: PlannedSegment
    file_bytes: int = 0
    version: WalVersion | None = None
    record_count: int = 0
    record_bytes: int = 0
    fpi_bytes: int = 0
    start_lsn: int | None = None
    """The first record's start; `prev_lsn` is the one before it, `last_lsn` the last's start."""
    prev_lsn: int | None = None
    last_lsn: int | None = None
    end_lsn: int | None = None
    status: str = "complete"
    """complete, switched (by an XLOG_SWITCH), open (the log ends in it), damaged or foreign."""
