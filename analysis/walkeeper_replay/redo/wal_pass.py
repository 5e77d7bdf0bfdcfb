"""One pass over planned WAL, batch by batch in the order of the log, up to an LSN.

With a `Shortcut`, an index stands for segments of which the consumers need no record.

Contract: records that *end* at or below `until` are taken, those after it are not. A recovery to
recovery_target_lsn = until, inclusive, does the same. Damage is reported to `on_problem`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn
from walkeeper_common.postgres.walpages import aligned, header_bytes
from walkeeper_history.segment_index import Facts, ProvenIndex
from walkeeper_replay.redo.read_ahead import Begun, ReadAhead
from walkeeper_wal.records.versions import RMGR_IDS
from walkeeper_wal.sources.plan import Plan, PlannedSegment
from walkeeper_wal.sources.reading import Batch, SegmentReader
from walkeeper_wal.sources.record_chain import RecordChain
from walkeeper_wal.sources.summary import Summary
from walkeeper_wal.sources.threaded_reading import OnProblem, raise_fatal
from walkeeper_wal.sources.wal_files import WalFiles

Consumer = Callable[[Batch], None]
_XLOG = RMGR_IDS["XLOG"]


class Passed(NamedTuple):
    """The end of a pass.

    `end_lsn` is the end of the last record taken (0 without one). `is_reached` is True if the WAL
    goes on up to `until`, so that it lacks nothing below it.
    """

    end_lsn: int
    is_reached: bool


def takes_nothing(facts: Facts) -> None:
    """Take no fact of a segment that is passed over."""


@dataclass(frozen=True, slots=True)
class Shortcut:
    """The segments that a pass may leave out, and what it takes of their facts instead."""

    index: ProvenIndex
    is_needed: Callable[[Facts], bool]
    take: Callable[[Facts], None] = takes_nothing

    def left_out(self, segment: PlannedSegment, until: int | None) -> Summary | None:
        """Return the summary of a segment that the pass may leave out, else None."""
        facts = self.index.facts(segment)
        if facts is None or (until is not None and facts.end_lsn > until) or self.is_needed(facts):
            return None
        self.take(facts)
        return facts.summary(segment)


def pass_over(
    files: WalFiles,
    plan: Plan,
    consumers: list[Consumer],
    *,
    until: int | None = None,
    engine_name: str = "auto",
    check_crc: bool = True,
    on_problem: OnProblem = raise_fatal,
    shortcut: Shortcut | None = None,
    reads_ahead: bool = False,
) -> Passed:
    """Give each batch to each consumer; return how far the pass went.

    A segment whose first record does not follow the last one before it is a problem.

    It reads the first segment in any case, which says the WAL's version. With `reads_ahead`, a
    thread decodes the next segment meanwhile. That is not so with a `shortcut`: the consumers may
    say only after a segment whether the next one is needed.
    """

    def reader() -> SegmentReader:
        return SegmentReader(files, engine_name=engine_name, check_crc=check_crc)

    if reads_ahead and shortcut is None:
        with ReadAhead((reader(), reader()), plan, until) as ahead:
            return _passed(ahead.of, files, plan, consumers, until, on_problem, None)
    one = reader()

    def of(index: int) -> Begun:
        reading = one.read(plan.reachable, index)
        return reading, iter(reading)

    return _passed(of, files, plan, consumers, until, on_problem, shortcut)


def _passed(
    of: Callable[[int], Begun],
    files: WalFiles,
    plan: Plan,
    consumers: list[Consumer],
    until: int | None,
    on_problem: OnProblem,
    shortcut: Shortcut | None,
) -> Passed:
    end, chain = 0, RecordChain()
    for index, segment in enumerate(plan.segments):
        if until is not None and segment.first_lsn >= until:
            return Passed(end, True)
        left_out = shortcut.left_out(segment, until) if shortcut and index else None
        if left_out is not None:
            for problem in chain.problems(left_out, files):
                on_problem(problem)
            end = left_out.end_lsn or end
            continue
        reading, batches = of(index)
        for batch in chain.checked(reading, batches, files, on_problem):
            taken = up_to(batch, until)
            if taken is None:
                return Passed(end, True)
            for consume in consumers:
                consume(taken)
            end = taken.span()[1]
            if taken is not batch:
                return Passed(end, True)
        for problem in reading.problems:
            on_problem(problem)
    return Passed(end, until is not None and until <= next_record_lsn(end, plan.segment_bytes))


def xlog_records(batch: Batch, kind: int) -> list[int]:
    """Return the rows of `batch.records` of resource manager XLOG and this kind, such as 0x50."""
    records = batch.records
    found = (records["rmid"] == _XLOG) & (records["info"] & 0xF0 == kind)
    return [int(row) for row in np.flatnonzero(found)]


def next_record_lsn(end: int, segment_bytes: int) -> int:
    """Return the start of the record after one that ends at `end`.

    It is aligned, and after the header where it begins a page.
    """
    begin = Lsn(aligned(end))
    return begin + (0 if begin % WAL_PAGE_BYTES else header_bytes(begin, segment_bytes))


def up_to(batch: Batch, until: int | None) -> Batch | None:
    """Return the records of a batch that end at or below an LSN, or None if none does.

    Return the batch itself if all do.
    """
    if until is None or batch.span()[1] <= until:
        return batch
    count = int(np.searchsorted(batch.end_lsn(), until, "right"))
    if not count:
        return None
    return batch.head(count)
