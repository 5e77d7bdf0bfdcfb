"""Every segment of a plan, read by several threads, returned in the order of the log.

    for made, summary in sweep(files, plan, make, on_problem=…): ...

`make` gets a segment's Reading, iterates it and returns the result for the segment. Contract: at
most two segments a thread are in memory. Each problem goes to `on_problem`, in order, before its
segment's result. The first segment that needs numpy imports it. The sweep checks that the segments'
records are one chain, since no segment knows the one before it. `raise_fatal` is the on_problem of
a caller that wants all or nothing.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from walkeeper_wal.sources.plan import Plan, Problem
from walkeeper_wal.sources.record_chain import RecordChain
from walkeeper_wal.sources.summary import Summary
from walkeeper_wal.sources.wal_files import WalFiles
from walkeeper_wal.wal_errors import DamagedWal

if TYPE_CHECKING:
    from concurrent.futures import Future

    from walkeeper_wal.sources.reading import Reading, SegmentReader

Made = TypeVar("Made")
OnProblem = Callable[[Problem], None]
ReadEach = Callable[..., Iterable[Any]]  # read_each, or a function with the same results


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """How to read. With `threads` None, there is one for each CPU that this process may use."""

    engine_name: str = "auto"
    check_crc: bool = True
    threads: int | None = None
    records_max: int | None = None
    """The records of a batch, or None for walk.RECORDS_MAX. Few stay in the processor's cache, and
    many make few batches."""
    skipped: frozenset[int] = frozenset()
    """Segments by their first LSN that are not read, since the caller has had them."""


DEFAULT = SweepOptions()


def raise_fatal(problem: Problem) -> None:
    """Raise DamagedWal for a fatal problem: the caller wants the whole answer or none."""
    if problem.fatal:
        raise DamagedWal(f"{problem.file}: {problem.reason}")


@dataclass(frozen=True, slots=True)
class Part(Generic[Made]):
    """The result of one segment, with its summary and its problems."""

    made: Made
    summary: Summary
    problems: list[Problem]


def sweep(
    files: WalFiles,
    plan: Plan,
    make: Callable[[Reading], Made],
    *,
    on_problem: OnProblem = raise_fatal,
    options: SweepOptions = DEFAULT,
) -> Iterator[tuple[Made, Summary]]:
    """See the module."""
    return in_one_chain(read_each(files, plan, make, options), files, on_problem)


def read_each(
    files: WalFiles, plan: Plan, make: Callable[[Reading], Made], options: SweepOptions = DEFAULT
) -> Iterator[Part[Made]]:
    """Read every segment of a plan, or of a part: the first half of a sweep, for any machine."""
    return in_order(reader_of(files, plan, make, options), plan, options)


def reader_of(
    files: WalFiles, plan: Plan, make: Callable[[Reading], Made], options: SweepOptions
) -> Callable[[int], Part[Made]]:
    """Return a function that reads the plan's segment of a number, in any thread."""
    own = threading.local()

    def read(index: int) -> Part[Made]:
        if not hasattr(own, "reader"):
            own.reader = _reader(files, options)
        reading: Reading = own.reader.read(plan.reachable, index)
        return Part(make(reading), reading.summary, reading.problems)

    return read


def in_order(
    read: Callable[[int], Part[Made]], plan: Plan, options: SweepOptions
) -> Iterator[Part[Made]]:
    """Read the wanted segments by threads, and return their parts in the order of the log."""
    wanted = [i for i, s in enumerate(plan.segments) if s.first_lsn not in options.skipped]
    return _in_order(read, wanted, options.threads or _usable_cpus())


def summaries_before(files: WalFiles, plan: Plan, options: SweepOptions) -> list[Summary]:
    """Return the summaries of the segments before a part, whose records its first one follows.

    Read one segment, or as many as the last record before covers. Read none if the part begins
    within a segment.
    """
    if not plan.before or plan.segments[0].begin_lsn != plan.segments[0].first_lsn:
        return []
    reader = _reader(files, options)
    segments, found = (*plan.before, *plan.reachable), list[Summary]()
    for index in range(len(plan.before) - 1, -1, -1):
        reading = reader.read(segments, index)
        for _ in reading:
            pass
        found.insert(0, reading.summary)
        if reading.summary.start_lsn is not None or reading.problems:
            break
    return found


def in_one_chain(
    parts: Iterable[Part[Made]],
    files: WalFiles,
    on_problem: OnProblem,
    before: Iterable[Summary] = (),
) -> Iterator[tuple[Made, Summary]]:
    """Check the segments' order: the second half of a sweep.

    Report a segment's problems before its result. The segments `before` them report none.
    """
    chain = RecordChain()
    for summary in before:
        chain.problems(summary, files)
    for done in parts:
        for problem in [*done.problems, *chain.problems(done.summary, files)]:
            on_problem(problem)
        yield done.made, done.summary


_of_thread = threading.local()


def _reader(files: WalFiles, options: SweepOptions) -> SegmentReader:
    """Return a reader with this thread's buffers, since a worker of Spark has task after task."""
    from walkeeper_wal.records.walk import RECORDS_MAX, Buffers
    from walkeeper_wal.sources.loading import Room
    from walkeeper_wal.sources.reading import SegmentReader

    records_max = options.records_max or RECORDS_MAX
    if getattr(_of_thread, "records_max", None) != records_max:
        _of_thread.records_max, _of_thread.room = records_max, Room()
        _of_thread.buffers = Buffers(records_max, 2 * records_max)
    return SegmentReader(
        files,
        engine_name=options.engine_name,
        check_crc=options.check_crc,
        buffers=_of_thread.buffers,
        room=_of_thread.room,
    )


def _in_order(
    read: Callable[[int], Part[Made]], wanted: list[int], threads: int
) -> Iterator[Part[Made]]:
    if threads == 1 or len(wanted) <= 1:
        yield from map(read, wanted)
        return
    from concurrent.futures import ThreadPoolExecutor

    waiting: deque[Future[Part[Made]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="segments") as pool:
        try:
            for index in wanted:
                waiting.append(pool.submit(read, index))
                if len(waiting) == 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _usable_cpus() -> int:
    return len(os.sched_getaffinity(0))
