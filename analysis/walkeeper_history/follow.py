"""New rows of a log that is being written: a running server's pg_wal, or an archive that grows.

    follower = Follower(files, table, start_lsn); follower.new_rows()  # again and again

Contract: every record that starts at or after `start_lsn` gives its rows once, in the order of the
log, as soon as it is whole. The end of the written WAL is no damage. Each call lists the files and
reads the segments from the last one on, which takes milliseconds for 16 MiB. Files may be renamed
or finished between listing and reading, so an error is raised only if it repeats in the next call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from walkeeper_history.tables import Table
from walkeeper_wal.sources.plan import Plan, make_plan
from walkeeper_wal.sources.reading import SegmentReader
from walkeeper_wal.sources.record_chain import RecordChain
from walkeeper_wal.sources.threaded_reading import raise_fatal
from walkeeper_wal.sources.wal_files import WalFiles
from walkeeper_wal.wal_errors import DamagedWal, HistoryError


def log_end(files: WalFiles, plan: Plan) -> int:
    """Return the end of the last whole record; read the last segments for it."""
    reader = SegmentReader(files)
    for index in range(len(plan.segments) - 1, -1, -1):
        reading = reader.read(plan.reachable, index)
        for _ in reading:
            pass
        if reading.summary.end_lsn is not None:
            return reading.summary.end_lsn
    return plan.segments[0].first_lsn


class Follower:
    """A place in the log. Another follower can start from `next_lsn`."""

    def __init__(
        self, files: WalFiles, table: Table, start_lsn: int, timeline: int | None = None
    ) -> None:
        self._files, self._table, self._timeline = files, table, timeline
        self._reader = SegmentReader(files)
        self._failed: str | None = None
        self.next_lsn = start_lsn

    def new_rows(self) -> Iterator[Any]:
        """Yield the record batches of new rows, or none if no new record is whole.

        Raise HistoryError if the next WAL was removed, or if damage is there in two calls.
        """
        try:
            yield from self._read()
        except DamagedWal as error:
            if self._failed == str(error):
                raise
            self._failed = str(error)
        else:
            self._failed = None

    def _plan(self) -> Plan:
        # The last record's segment is there even if that of the next one is not yet.
        return make_plan(self._files, timeline=self._timeline, start_lsn=max(self.next_lsn - 1, 0))

    def _read(self) -> Iterator[Any]:
        plan = self._plan()
        if self.next_lsn < plan.segments[0].first_lsn and plan.segments[0].begin_lsn > 0:
            first = plan.segments[0]
            missing = (
                f"{self._files.shown(first.path)}: the WAL before this segment was removed before "
                "it was read: read an archive that has it, or begin at a later LSN"
            )
            raise HistoryError(missing)
        chain = RecordChain()
        for index in range(len(plan.segments)):
            reading = self._reader.read(plan.reachable, index)
            batches = list(self._table.batches(reading))
            end = reading.summary.end_lsn
            for problem in [*reading.problems, *chain.problems(reading.summary, self._files)]:
                # After a segment that is being written, another one may be there already.
                if problem.start_lsn is None or problem.start_lsn >= self.next_lsn:
                    raise_fatal(problem)
            yield from batches
            if end is not None:
                self.next_lsn = max(self.next_lsn, end)
