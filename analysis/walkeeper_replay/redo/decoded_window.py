"""The records of a few segments, decoded once and kept for several passes.

    rooms = Rooms(4)
    window = rooms.decoded(files, plan, last_lsn)    window.end_lsn, window.pass_over(consumers)

Contract: a pass gives each consumer what `pass_over` gives it, with CRCs checked. Segments are
decoded before the first pass, so damage is met before a consumer has changed. Damage is also a
first record that does not follow the one at `last_lsn`, unless that is 0. The records of a
window are valid until the next one is decoded. Memory is that of the segments, and of the rows of
their records.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from walkeeper_replay.redo.wal_pass import Consumer, Passed, pass_over
from walkeeper_wal.sources.loading import Room
from walkeeper_wal.sources.plan import Plan
from walkeeper_wal.sources.reading import Batch, SegmentReader
from walkeeper_wal.sources.record_chain import RecordChain
from walkeeper_wal.sources.threaded_reading import raise_fatal
from walkeeper_wal.sources.wal_files import WalFiles


@dataclass(slots=True)
class DecodedWindow:
    """The records of a window, or only its end where it has more segments than there are rooms."""

    files: WalFiles
    plan: Plan
    end_lsn: int = 0
    """The end of the last record, or 0 without one."""
    last_lsn: int = 0
    """The start of the last record, or that of the record before the window."""
    batches: list[Batch] | None = None

    def pass_over(self, consumers: list[Consumer]) -> Passed:
        """Give each batch to each consumer, in the order of the log."""
        if self.batches is None:
            return pass_over(self.files, self.plan, consumers, until=self.end_lsn, check_crc=False)
        for batch in self.batches:
            for consume in consumers:
                consume(batch)
        return Passed(self.end_lsn, True)


@dataclass(slots=True)
class Rooms:
    """Room for so many segments, which each window uses again."""

    count: int
    _rooms: list[Room] = field(default_factory=list)

    def decoded(self, files: WalFiles, window: Plan, last_lsn: int = 0) -> DecodedWindow:
        """Decode a window; raise DamagedWal if a segment is damaged."""
        found, chain = DecodedWindow(files, window), RecordChain(last_lsn or None)
        keeps = len(window.segments) <= self.count
        found.batches = [] if keeps else None
        reader = SegmentReader(files)
        for index in range(len(window.segments)):
            if keeps:
                reader.room = self._room(index)
            reading = reader.read(window.reachable, index)
            for batch in reading:
                if found.batches is not None:
                    # The reader uses its rows again.
                    rows = batch.records.copy(), batch.blocks.copy()
                    found.batches.append(replace(batch, records=rows[0], blocks=rows[1]))
            for problem in [*reading.problems, *chain.problems(reading.summary, files)]:
                raise_fatal(problem)
            found.end_lsn = reading.summary.end_lsn or found.end_lsn
        found.last_lsn = chain.last_lsn or 0
        return found

    def _room(self, index: int) -> Room:
        while len(self._rooms) <= index:
            self._rooms.append(Room())
        return self._rooms[index]
