"""Records of a planned archive, segment by segment, whatever state its files are in.

    reader = SegmentReader(files)
    for batch in (reading := reader.read(plan.segments, index)): ...
    reading.problems, reading.summary

Contract: a record is read with the segment in which it starts. A damaged part is left out and
named. Reading goes on at the next page that is WAL of its place, where its header says that a
record starts. A record that a crash left unfinished (an OVERWRITE_CONTRECORD page follows) is no
damage. The end of the log in the last segment is none either, if nothing tells of more. A batch is
valid until the next one is requested. One reader serves one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn
from walkeeper_common.postgres.walpages import aligned, page_header
from walkeeper_wal.records.engines import engine
from walkeeper_wal.records.log_end import later_record
from walkeeper_wal.records.segment import (
    LONG_HEADER_EXCESS,
    PAGE_PAYLOAD_BYTES,
    Bytes,
    Column,
    Pages,
    end_lsn_at,
    inspect_pages,
    lsn_at,
    lsn_of,
    offset_of,
    page_at,
    page_offset,
    payload_bytes,
)
from walkeeper_wal.records.stops import Stop
from walkeeper_wal.records.versions import WalVersion, foreign, unknown_magic, version_of
from walkeeper_wal.records.walk import (
    RMGR_XLOG,
    XLOG_SWITCH,
    Buffers,
    Walk,
    Walked,
    WalkRequest,
)
from walkeeper_wal.sources.loading import Loaded, Room
from walkeeper_wal.sources.plan import PlannedSegment, Problem
from walkeeper_wal.sources.spill import read_spill
from walkeeper_wal.sources.summary import Summary
from walkeeper_wal.sources.wal_files import WalFiles
from walkeeper_wal.wal_errors import HistoryError

_REASONS = {
    Stop.ZERO: "invalid record length at {lsn}: wanted 24, got 0",
    Stop.LENGTH: "invalid record length at {lsn}",
    Stop.PREV_LINK: "record with incorrect prev-link at {lsn}",
    Stop.CRC: "incorrect resource manager data checksum in record at {lsn}",
    Stop.HEADERS: "block headers that do not add up in record at {lsn}",
    Stop.INCOMPLETE: "the record at {lsn} is not all there",
}

_RECORD_HEADER_BYTES = 24


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one segment with their block references; offsets are into `payload`."""

    segment: PlannedSegment
    version: WalVersion
    payload: Bytes
    records: Column
    blocks: Column
    page_timelines: Column

    def start_lsn(self) -> Column:
        """Return the records' starts, int64 as are all LSNs in columns."""
        segment = self.segment
        return lsn_at(self.records["offset"], segment.first_lsn, segment.segment_bytes)

    def end_lsn(self) -> Column:
        """Return the records' ends.

        An XLOG_SWITCH, which is the last of its batch, ends at the end of its last segment.
        """
        ends = self.records["offset"].astype(np.int64) + self.records["length"] + 7 & ~7
        size = self.segment.segment_bytes
        lsns = end_lsn_at(ends, self.segment.first_lsn, size)
        last = self.records[-1:]
        if len(last) and _is_switch(int(last["info"][0]), int(last["rmid"][0])):
            lsns[-1] = -(-lsns[-1] // size) * size
        return lsns

    def span(self) -> tuple[int, int]:
        """Return where the first record starts and the last one ends."""
        segment, first, last = self.segment, self.records[0], self.records[-1]
        size = segment.segment_bytes
        start = lsn_of(int(first["offset"]), segment.first_lsn, size)
        end = lsn_of(
            aligned(int(last["offset"]) + int(last["length"])) - 8, segment.first_lsn, size
        )
        if _is_switch(int(last["info"]), int(last["rmid"])):
            return start, -(-(end + 8) // size) * size
        return start, end + 8

    def head(self, count: int) -> Batch:
        """Return the first records, with their blocks."""
        blocks = self.blocks[: np.searchsorted(self.blocks["record"], count)]
        return replace(self, records=self.records[:count], blocks=blocks)

    def timeline(self) -> Column:
        """Return the timeline of the page in which each record starts."""
        offsets = self.records["offset"].astype(np.int64)
        pages = (offsets + LONG_HEADER_EXCESS) // PAGE_PAYLOAD_BYTES
        timelines: Column = self.page_timelines[pages]
        return timelines


def _is_switch(info: int, rmid: int) -> bool:
    return rmid == RMGR_XLOG and info & 0xF0 == XLOG_SWITCH


class SegmentReader:
    """A reader with its buffers: about 64 MB for segments of 16 MiB."""

    def __init__(
        self,
        files: WalFiles,
        *,
        engine_name: str = "auto",
        check_crc: bool = True,
        buffers: Buffers | None = None,
        room: Room | None = None,
    ) -> None:
        self.files, self.check_crc = files, check_crc
        self.walk: Walk = engine(engine_name)
        self.buffers = buffers or Buffers()
        self.room = room or Room()

    def read(self, segments: Sequence[PlannedSegment], index: int) -> Reading:
        """Return a pass over `segments[index]`; the next ones have the rest of its last record."""
        return Reading(self, segments, index)


class Reading:
    """One pass over one segment. Iterate it once; then problems and summary are complete."""

    def __init__(
        self, reader: SegmentReader, segments: Sequence[PlannedSegment], index: int
    ) -> None:
        self._reader, self._segments, self._index = reader, segments, index
        self.segment = segments[index]
        self.shown = reader.files.shown(self.segment.path)
        self.problems: list[Problem] = list(self.segment.problems)
        self.summary = Summary(self.segment)
        self._spilled = self._ends_behind = False
        self._held = 0

    def __iter__(self) -> Iterator[Batch]:
        segment = self.segment
        try:
            loaded = self._reader.room.load(self._reader.files, segment.path, segment.segment_bytes)
        except HistoryError as error:
            reason = error.reason if error.file == self.shown else str(error)
            self._report(segment.first_lsn, self._behind(), reason)
            return
        self.summary.file_bytes = loaded.size
        self._check_size(loaded.size)
        pages = self._pages(loaded)
        if pages is None:
            return
        version = version_of(pages.magic)
        if version is None:
            self._report(segment.first_lsn, self._behind(), unknown_magic(pages.magic))
            return
        self._version = self.summary.version = version
        self._held = loaded.held
        self._end = self._held
        if segment.end_lsn < segment.first_lsn + segment.segment_bytes:
            self._end = min(self._held, offset_of(segment.end_lsn - segment.first_lsn))
        self._breaks = [*pages.breaks(), pages.count]
        self._available = self._held
        yield from self._runs(pages)

    def _check_size(self, size: int) -> None:
        segment = self.segment
        if size == segment.segment_bytes or (size < segment.segment_bytes and segment.is_partial):
            return
        text = f"{size} bytes, but segments are {segment.segment_bytes} bytes long"
        self._report(None, None, text, fatal=not segment.is_last)

    def _pages(self, loaded: Loaded) -> Pages | None:
        """Return the page headers, or None if nothing of the file can be read."""
        segment = self.segment
        pages = inspect_pages(loaded.headers, segment.first_lsn)
        pages.good[:] &= pages.timeline <= segment.timeline
        if pages.count and pages.good[0]:
            header = page_header(loaded.front)
            if segment.system_id is not None and header.system_id != segment.system_id:
                self.summary.status = "foreign"
                text = foreign(header.system_id, header.magic, segment.system_id)
                self._report(segment.first_lsn, self._behind(), text)
                return None
            if header.segment_bytes != segment.segment_bytes:
                text = f"a segment of {header.segment_bytes} bytes by its header"
                self._report(segment.first_lsn, None, text)
        if not pages.good.any():
            reason, is_cut = "no page is WAL of this place", not pages.count
            self._stopped(segment.first_lsn, reason, 0, pages, torn=False, is_cut=is_cut)
            return None
        return pages

    def _runs(self, pages: Pages) -> Iterator[Batch]:
        """Read the runs of pages that continue each other, one after the other."""
        page: int | None = 0
        previous: int | None = None
        while page is not None and page < pages.count and page_offset(page) < self._end:
            if not pages.good[page]:
                lsn = self.segment.first_lsn + page * WAL_PAGE_BYTES
                reason = f"the page at {Lsn(lsn)} is not WAL of its place"
                page, previous = self._stopped(lsn, reason, page, pages, torn=False), None
                continue
            next_break = next(number for number in self._breaks if number > page)
            run = _Run(page_offset(next_break) if next_break < pages.count else self._held)
            run.at = pages.entry_offset(page)
            run.previous = previous if pages.overwrites[page] else None
            yield from self._run(run, pages)
            previous = run.previous
            if run.stop is Stop.SWITCH or self._begins_with_switch(run, pages):
                self.summary.status = "switched"
                return
            if run.stop is Stop.END:
                page = next_break
                continue
            if run.stop is Stop.INCOMPLETE and next_break < pages.count:
                page = next_break
                if not pages.good[page]:
                    lsn, reason = self._describe(run)
                    page = self._stopped(lsn, reason, page, pages, torn=True)
                continue
            if run.stop is Stop.INCOMPLETE and run.overwritten:
                return
            lsn, reason = self._describe(run)
            behind = min(page_at(run.at) + 1, pages.count)
            if behind < pages.count and pages.entry_offset(behind) >= self._held:
                behind = pages.count  # they are good, and all of them this record's
            torn, is_cut = run.stop is not Stop.ZERO, run.stop is Stop.INCOMPLETE
            page = self._stopped(lsn, reason, behind, pages, torn=torn, is_cut=is_cut)
            previous = None

    def _begins_with_switch(self, run: _Run, pages: Pages) -> bool:
        """Return whether the segment has only the end of an XLOG_SWITCH.

        That record is a bare header of 24 bytes. Then 8 or 16 of them are here, after the page's
        header.
        """
        rest = int(pages.rem_len[0])
        if run.stop is not Stop.ZERO or rest not in (8, 16) or run.at != rest:
            return False
        info, rmid = self._reader.room.payload(rest)[rest - 8 : rest - 6].tolist()
        return bool(pages.good[0]) and _is_switch(info, rmid)

    def _run(self, run: _Run, pages: Pages) -> Iterator[Batch]:
        """Read the records of one run, in as many batches as the buffers need."""
        while run.at < min(run.end, self._end):
            available = self._available if run.end == self._held else run.end
            walked = self._walk(run, available)
            run.stop, run.at = walked.stop, walked.stop_offset
            if batch := self._batch(walked, pages):
                yield batch
            if len(walked.records):
                run.previous = self._lsn(int(walked.records["offset"][-1]))
            if run.stop is Stop.INCOMPLETE and run.end == self._held and self._is_whole():
                if not self._spilled:
                    self._read_spill(run, pages.magic)
                    continue
                run.overwritten, run.why = self._spill_overwritten, self._spill_reason
            if run.stop is not Stop.FULL:
                return
        run.stop = run.stop if run.stop is Stop.SWITCH else Stop.END

    def _walk(self, run: _Run, available: int) -> Walked:
        segment = self.segment
        request = WalkRequest(
            payload=self._reader.room.payload(available),
            begin=run.at,
            end=min(run.end, self._end),
            available=available,
            first_lsn=segment.first_lsn,
            segment_bytes=segment.segment_bytes,
            prev_lsn=run.previous,
            check_crc=self._reader.check_crc,
            image_compressed_mask=self._version.image_compressed_mask,
        )
        return self._reader.walk(request, self._reader.buffers)

    def _is_whole(self) -> bool:
        return self._held == payload_bytes(self.segment.segment_bytes)

    def _read_spill(self, run: _Run, magic: int) -> None:
        spill = read_spill(self._reader.files, self._segments, self._index, magic)
        self._available = self._held + len(spill.data)
        self._reader.room.payload(self._available)[self._held : self._available] = spill.data
        self._spilled = True
        self._spill_overwritten, self._spill_reason = spill.overwritten, spill.reason
        self._ends_behind = spill.at_end

    def _batch(self, walked: Walked, pages: Pages) -> Batch | None:
        """Return the walked records in the range, or None if there are none, and count them."""
        records, blocks = walked.records, walked.blocks
        segment = self.segment
        if len(records) and segment.begin_lsn > segment.first_lsn:
            before = offset_of(segment.begin_lsn - segment.first_lsn)
            skipped = int(np.searchsorted(records["offset"], before))
            if skipped:
                blocks = blocks[np.searchsorted(blocks["record"], skipped) :]
                blocks["record"] -= skipped
                records = records[skipped:]
        if not len(records):
            return None
        payload = self._reader.room.payload(self._available)
        batch = Batch(segment, self._version, payload, records, blocks, pages.timeline)
        summary = self.summary
        start, summary.end_lsn = batch.span()
        if summary.start_lsn is None:
            summary.start_lsn, summary.prev_lsn = start, int(records["prev_lsn"][0])
        summary.last_lsn = self._lsn(int(records["offset"][-1]))
        summary.record_count += len(records)
        summary.record_bytes += int(records["length"].sum(dtype=np.int64))
        summary.fpi_bytes += int(records["fpi_length"].sum(dtype=np.int64))
        return batch

    def _describe(self, run: _Run) -> tuple[int, str]:
        """Return the LSN at which a run went wrong, and the reason."""
        lsn = self._lsn(run.at)
        reason = _REASONS[run.stop].format(lsn=Lsn(lsn))
        return lsn, f"{reason}: {run.why}" if run.why else reason

    def _stopped(
        self, lsn: int, reason: str, page: int, pages: Pages, *, torn: bool, is_cut: bool = False
    ) -> int | None:
        """Report that records end at `lsn`; return the first good page from `page` on, or None.

        In the last segment of the log, that is the log's end if no good page comes after it and
        nothing else tells of more. `torn` is True if there is more than zeros, and `is_cut` if the
        record there may go on after the file's end.
        """
        later = page + np.flatnonzero(pages.good[page:])
        is_last = self.segment.is_last
        if is_last and len(later) and self._has_grown(lsn, torn=torn, is_cut=is_cut):
            self.summary.status = "open"
            return None
        if len(later):
            resumed = int(later[0])
            self._report(lsn, self.segment.first_lsn + resumed * WAL_PAGE_BYTES, reason)
            return resumed
        self.summary.status = "open"
        if not is_last and not self._ends_behind:
            self._report(lsn, self._behind(), f"{reason}; the log goes on in later segments")
        elif (
            evidence := self._evidence_of_more(lsn, torn=torn, is_cut=is_cut)
        ) and not self._has_grown(lsn, torn=torn, is_cut=is_cut):
            self._report(lsn, None, f"{reason}; it is damaged and not the log's end: {evidence}")
        elif torn:
            self._report(lsn, None, f"{reason}; the log is taken to end there", fatal=False)
        return None

    def _has_grown(self, lsn: int, *, torn: bool, is_cut: bool) -> bool:
        """Return whether the record at `lsn` has other bytes by now: a server writes this file.

        This reader read that place before the server wrote there, and later pages after that."""
        begin, room = offset_of(lsn - self.segment.first_lsn), self._reader.room
        held = room.payload(self._held)
        size = int.from_bytes(held[begin : begin + 4], "little")
        end = begin + _RECORD_HEADER_BYTES
        if is_cut:
            end = self._available + PAGE_PAYLOAD_BYTES
        elif torn and size <= self._available - begin:
            end = begin + size
        now = Room()
        try:
            loaded = now.load(self._reader.files, self.segment.path, self.segment.segment_bytes)
        except HistoryError:
            return False
        end = min(end, self._held, loaded.held)
        return bool((held[begin:end] != now.payload(end)[begin:end]).any())

    def _evidence_of_more(self, lsn: int, *, torn: bool, is_cut: bool) -> str | None:
        """Return the evidence that the log goes on after `lsn`, or None without any."""
        segment = self.segment
        if segment.known_end_lsn > lsn and not is_cut:
            return (
                f"its name or receipt says that the log is here up to {Lsn(segment.known_end_lsn)}"
            )
        payload = self._reader.room.payload(self._held)[: self._held]
        later = later_record(
            payload,
            lsn,
            first_lsn=segment.first_lsn,
            segment_bytes=segment.segment_bytes,
            torn=torn,
        )
        return None if later is None else f"the log goes on after it, with a record at {Lsn(later)}"

    def _lsn(self, offset: int) -> int:
        return lsn_of(offset, self.segment.first_lsn, self.segment.segment_bytes)

    def _behind(self) -> int:
        return self.segment.first_lsn + self.segment.segment_bytes

    def _report(self, start: int | None, end: int | None, text: str, *, fatal: bool = True) -> None:
        if fatal and self.summary.status != "foreign":
            self.summary.status = "damaged"
        self.problems.append(Problem(self.shown, start, end, text, fatal))


class _Run:
    """The place of a walk in a run."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.at = 0
        self.previous: int | None = None
        self.stop = Stop.END
        self.overwritten = False
        self.why = ""
