"""Segments of a plan, of which a thread begins the next one while the caller consumes this one.

    with ReadAhead(readers, plan) as ahead: reading, batches = ahead.of(0)

Contract: the caller asks for segments in ascending order, and consumes one before it asks for the
next. The batches are those of the segment's Reading, and its problems are complete after them. An
error of a segment is raised to the caller who asks for it. Two readers take turns, so memory is
twice that of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from types import TracebackType
from typing import TypeAlias

from walkeeper_wal.sources.plan import Plan
from walkeeper_wal.sources.reading import Batch, Reading, SegmentReader

Begun: TypeAlias = tuple[Reading, Iterator[Batch]]


class ReadAhead:
    """See the module. The caller decodes what follows a segment's first batch: its last record."""

    def __init__(
        self, readers: tuple[SegmentReader, SegmentReader], plan: Plan, until: int | None
    ) -> None:
        self._readers, self._plan, self._until = readers, plan, until
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="read_ahead")
        self._next: tuple[int, Future[Begun]] | None = None

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def of(self, index: int) -> Begun:
        """Return a segment's reading and its batches, and begin the next segment."""
        waiting, self._next = self._next, None
        if waiting is not None and waiting[0] == index:
            begun = waiting[1].result()
        else:
            begun = self._begin(index)
        if self._is_wanted(index + 1):
            self._next = index + 1, self._pool.submit(self._begin, index + 1)
        return begun

    def _is_wanted(self, index: int) -> bool:
        segments = self._plan.segments
        return index < len(segments) and (
            self._until is None or segments[index].first_lsn < self._until
        )

    def _begin(self, index: int) -> Begun:
        reading = self._readers[index % 2].read(self._plan.reachable, index)
        batches = iter(reading)
        return reading, chain([first for first in [next(batches, None)] if first], batches)
