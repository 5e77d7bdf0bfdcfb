"""Find where WAL lacks bulk loads: from a change to wal_level = minimal on.

    loads = BulkLoads(); loads.add(batch); loads.unlogged_since -> LSN, or None
    loads.unlogged_until -> where the server had another wal_level again, or None

A server that starts with other settings than before logs those that a standby depends on
(xl_parameter_change). With minimal, COPY into a table of the same transaction, CREATE TABLE AS and
similar commands write files and no WAL. PostgreSQL's own recovery refuses to go on there.
"""

from __future__ import annotations

import numpy as np

from walkeeper_replay.redo.wal_pass import xlog_records
from walkeeper_wal.sources.reading import Batch

_PARAMETER_CHANGE = 0x60
_WAL_LEVEL_OFFSET = 20  # after five other integers, in 13 to 18
_MINIMAL = 0


class BulkLoads:
    """A consumer of `pass_over`."""

    unlogged_until: int | None = None  # A state that an older version saved has none.

    def __init__(self, since: int | None = None, until: int | None = None) -> None:
        self.unlogged_since, self.unlogged_until = since, until

    def add(self, batch: Batch) -> None:
        for row in xlog_records(batch, _PARAMETER_CHANGE):
            begin = int(batch.records["main_offset"][row]) + _WAL_LEVEL_OFFSET
            end = int(batch.end_lsn()[row])
            if int(batch.payload[begin : begin + 4].view(np.uint32)[0]) == _MINIMAL:
                self.unlogged_since = end if self.unlogged_since is None else self.unlogged_since
                self.unlogged_until = None
            elif self.unlogged_since is not None and self.unlogged_until is None:
                self.unlogged_until = end
