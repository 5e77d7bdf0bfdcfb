"""Sums of whole segments by the compiled loop, from plain files, without numpy or a row.

    for part in stats_parts(files, plan, options): part.made, part.summary, part.problems

Contract: the parts are those of threaded_reading.read_each with Stats. `read_each` itself reads a
segment that is packed, cut off, damaged, of another cluster, or requested in part.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from walkeeper_history.rows.stats import Stats
from walkeeper_wal.records.versions import MAJORS, RMGR_IDS, WalVersion
from walkeeper_wal.sources.plan import Plan, PlannedSegment
from walkeeper_wal.sources.summary import Summary
from walkeeper_wal.sources.threaded_reading import Part, SweepOptions, in_order, reader_of
from walkeeper_wal.sources.wal_files import WalFiles
from walkeeper_wal.wal_errors import HistoryError

if TYPE_CHECKING:
    from walkeeper_wal.records._walk import SegmentSums
    from walkeeper_wal.sources.reading import Reading

ENGINES = ("auto", "compiled")  # --engine numpy is for the reader


def stats_of(reading: Reading) -> Stats:
    """Return the sums of one segment that the reader reads."""
    stats = Stats()
    for batch in reading:
        stats.add_batch(batch)
    return stats


def stats_parts(files: WalFiles, plan: Plan, options: SweepOptions) -> Iterator[Part[Stats]]:
    """Return every segment's sums, in the order of the log."""
    slower = reader_of(files, plan, stats_of, options)
    quick = _compiled(options) if options.engine_name in ENGINES else None
    if quick is None:
        return in_order(slower, plan, options)
    sums = quick

    def read(index: int) -> Part[Stats]:
        return _read(sums(), files, plan.reachable, index) or slower(index)

    return in_order(read, plan, options)


def _compiled(options: SweepOptions) -> Callable[[], SegmentSums] | None:
    """Return a function that returns the thread's sums, or None without the compiled module."""
    try:
        from walkeeper_wal.records._walk import SegmentSums
    except ImportError:
        return None
    masks = bytearray(256)
    for magic, layout in MAJORS.items():
        masks[magic & 0xFF] = WalVersion(magic, layout).image_compressed_mask
    own = threading.local()

    def of_thread() -> SegmentSums:
        if not hasattr(own, "sums"):
            own.sums = SegmentSums(bytes(masks), RMGR_IDS["Transaction"], options.check_crc)
        sums: SegmentSums = own.sums
        return sums

    return of_thread


def _read(
    sums: SegmentSums, files: WalFiles, segments: tuple[PlannedSegment, ...], index: int
) -> Part[Stats] | None:
    """Return the part of a segment, or None if the reader has to read it."""
    segment = segments[index]
    end_lsn = segment.first_lsn + segment.segment_bytes
    if segment.system_id is None or (segment.begin_lsn, segment.end_lsn) != (
        segment.first_lsn,
        end_lsn,
    ):
        return None
    following = segments[index + 1] if index + 1 < len(segments) else None
    if following is not None and following.first_lsn != end_lsn:
        following = None
    with ExitStack() as opened:
        descriptor = _open(files, segment, opened)
        if descriptor is None or os.fstat(descriptor).st_size != segment.segment_bytes:
            return None
        next_descriptor = _open(files, following, opened) if following else None
        found = sums.of(
            descriptor, segment, -1 if next_descriptor is None else next_descriptor, following
        )
    if found is None:
        return None
    facts, status, by_kind = found
    version = WalVersion(facts["magic"], MAJORS[facts["magic"]])
    stats = Stats()
    stats.add_sums(by_kind, version, facts["start_lsn"], facts["end_lsn"])
    summary = Summary(
        segment, segment.segment_bytes, version, facts["records"], facts["record_bytes"],
        facts["fpi_bytes"], facts["start_lsn"], facts["prev_lsn"], facts["last_lsn"],
        facts["end_lsn"], status,
    )  # fmt: skip
    return Part(stats, summary, list(segment.problems))


def _open(files: WalFiles, segment: PlannedSegment, opened: ExitStack) -> int | None:
    """Return a descriptor that `opened` closes, or None if the reader has to read the file."""
    try:
        descriptor = files.open_plain(segment.path)
    except HistoryError:
        return None
    if descriptor is not None:
        opened.callback(os.close, descriptor)
    return descriptor
