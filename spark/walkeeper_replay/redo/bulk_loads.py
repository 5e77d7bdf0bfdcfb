"""Find where WAL lacks bulk loads: from a change to wal_level = minimal on.

    loads = BulkLoads(); loads.add(batch); loads.unlogged_since -> LSN, or None

A server that starts with other settings than before logs those that a standby depends on
(xl_parameter_change). With minimal, COPY into a table of the same transaction, CREATE TABLE AS and
similar commands write files and no WAL. PostgreSQL's own recovery refuses to go on there.
"""

from __future__ import annotations

import numpy as np

from walkeeper_history.wal.reading import Batch
from walkeeper_replay.redo.pass_over import xlog_records

_PARAMETER_CHANGE = 0x60
_WAL_LEVEL_OFFSET = 20  # after five other integers, in 13 to 18
_MINIMAL = 0


class BulkLoads:
    """A consumer of `pass_over`."""

    def __init__(self) -> None:
        self.unlogged_since: int | None = None

    def add(self, batch: Batch) -> None:
        if self.unlogged_since is not None:
            return
        for row in xlog_records(batch, _PARAMETER_CHANGE):
            begin = int(batch.records["main_offset"][row]) + _WAL_LEVEL_OFFSET
            if int(batch.payload[begin : begin + 4].view(np.uint32)[0]) == _MINIMAL:
                self.unlogged_since = int(batch.end_lsn()[row])
                return
