"""A check that the first record of each segment follows the last one of the segment before. Pure.

    chain = RecordChain(); chain.problems(summary, files)          of a segment that was read
    for batch in chain.checked(reading, batches, files, on_problem): …      while it is read

A segment's reading checks the links between its own records, and knows no other segment. Contract:
a record that names another one as its predecessor is a problem, as it ends a recovery. It is none
behind a gap or damage, which is a problem by itself. Each reader of several segments has a chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from walkeeper_common.lsn import Lsn
from walkeeper_wal.sources.plan import Problem
from walkeeper_wal.sources.summary import Summary
from walkeeper_wal.sources.wal_files import WalFiles

if TYPE_CHECKING:
    from walkeeper_wal.sources.reading import Batch, Reading

_ENDS_THE_CHAIN = ("damaged", "open")


class RecordChain:
    """See the module. `last_lsn` is the start of the record before the first segment, if known."""

    def __init__(self, last_lsn: int | None = None) -> None:
        self.last_lsn = last_lsn
        self._next_first_lsn: int | None = None
        self._broken = False

    def problems(self, summary: Summary, files: WalFiles) -> list[Problem]:
        """Take a segment that was read to its end, and return the problem of its first record."""
        found = self.begins(summary, files)
        self.ends(summary)
        return found

    def checked(
        self,
        reading: Reading,
        batches: Iterator[Batch],
        files: WalFiles,
        on_problem: Callable[[Problem], None],
    ) -> Iterator[Batch]:
        """Yield the batches of a segment, and give the problem of its first record before them."""
        is_first = True
        for batch in batches:
            if is_first and not reading.problems:
                for problem in self.begins(reading.summary, files):
                    on_problem(problem)
            is_first = False
            yield batch
        self.ends(reading.summary)

    def begins(self, summary: Summary, files: WalFiles) -> list[Problem]:
        """Return the problem of a segment's first record, which was read, or of no record."""
        self._look_for_gap(summary)
        if summary.start_lsn is None or self.last_lsn is None or self._broken:
            return []
        if summary.prev_lsn == self.last_lsn:
            return []
        text = (
            f"record with incorrect prev-link at {Lsn(summary.start_lsn)}: it follows "
            f"{Lsn(summary.prev_lsn or 0)}, but the record before is at {Lsn(self.last_lsn)}"
        )
        path = files.shown(summary.segment.path)
        return [Problem(path, summary.start_lsn, summary.start_lsn, text)]

    def ends(self, summary: Summary) -> None:
        """Take a segment whose records were read, after `begins`."""
        self._look_for_gap(summary)
        segment, is_end = summary.segment, summary.status in _ENDS_THE_CHAIN
        self._next_first_lsn = segment.first_lsn + segment.segment_bytes
        if summary.start_lsn is None:
            self._broken |= is_end or summary.status == "foreign"
        else:
            self.last_lsn, self._broken = summary.last_lsn, is_end

    def _look_for_gap(self, summary: Summary) -> None:
        if self._next_first_lsn not in (None, summary.segment.first_lsn):
            self._broken = True
