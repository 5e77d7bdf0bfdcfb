"""The log as its archive alone shows it, for the day without a quorum of safekeepers. A shell.

Contract: it fences no proposer, and reads only archived WAL. It takes the newest timeline that has
WAL in the archive for the log's. The log ends at the end of the last tail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from walkeeper_common.ancestry.ancestry_facts import Log
from walkeeper_common.history import NO_BALLOT, Fragment
from walkeeper_common.lsn import LSN_MAX, ZERO_LSN, Lsn, segment_name
from walkeeper_common.timelines import Timelines, parse_timeline_file
from walkeeper_restore.verdict import Unknown

if TYPE_CHECKING:
    from walkeeper_archive.archive import Archive
    from walkeeper_common.buffers import Buffer


class ArchiveReader:
    """One look at an archive; segments are read one at a time."""

    def __init__(self, archive: Archive, segment_bytes: int) -> None:
        self._archive, self._segment_bytes = archive, segment_bytes
        self._timelines = Timelines(())
        self._read: tuple[str, Buffer | None] = ("", None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._read = ("", None)

    def ask(self) -> Log | Unknown:
        """Return the log, or Unknown if the archive has no WAL."""
        from walkeeper_archive.layout import Kind, history_file
        from walkeeper_archive.timeline_extent import extent_of

        archive, last = self._archive, 0
        for timeline in archive.timelines():
            files = (found.file for found in archive.objects(timeline) if found.is_receipt)
            if any(file.kind is not Kind.HISTORY for file in files):
                last = timeline
        if not last:
            return Unknown(f"{archive.url} has no WAL")
        content = bytes(archive.read(history_file(last)) or b"") if last > 1 else b""
        history = _history(last, content)
        self._timelines = Timelines(history)
        from_segment = segment_name(last, history[-1].start_lsn, self._segment_bytes)
        end_lsn = extent_of(archive, last, from_segment, self._segment_bytes).end_lsn
        return Log(
            system_id=archive.system_id,
            segment_bytes=self._segment_bytes,
            history=history,
            oldest_lsn=ZERO_LSN,
            end_lsn=end_lsn,
            record_lsn=end_lsn,
        )

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes | None:
        """Return [begin_lsn, end_lsn), or None if the archive lacks a part of it."""
        parts = []
        while begin_lsn < end_lsn:
            segment_lsn = begin_lsn.round_down(self._segment_bytes)
            until_lsn = min(end_lsn, segment_lsn + self._segment_bytes)
            timeline = self._timelines.shown_by(begin_lsn, self._segment_bytes)
            segment = self._segment(segment_name(timeline, segment_lsn, self._segment_bytes))
            if segment is None or len(segment) < until_lsn - segment_lsn:
                return None
            parts.append(bytes(segment[begin_lsn - segment_lsn : until_lsn - segment_lsn]))
            begin_lsn = until_lsn
        return b"".join(parts)

    def _segment(self, name: str) -> Buffer | None:
        from walkeeper_archive.layout import file_named

        if self._read[0] != name:
            file = file_named(name)
            assert file is not None, name
            content = self._archive.read(file)
            if content is None:
                partial = self._archive.newest_partial(name)
                content = None if partial is None else self._archive.read(partial)
            self._read = name, content
        return self._read[1]


def _history(last: int, content: bytes) -> tuple[Fragment, ...]:
    """Return the timelines as fragments without ballots, which an archive does not have."""
    begin_lsn, fragments = ZERO_LSN, []
    for timeline, end_lsn in (*parse_timeline_file(content), (last, LSN_MAX)):
        file = content if timeline == last else b""
        fragments.append(Fragment(NO_BALLOT, begin_lsn, timeline, False, (), 0, file))
        begin_lsn = end_lsn
    return tuple(fragments)
