"""PostgreSQL's WAL pages and record boundaries, as far as a safekeeper needs them. Pure.

    record_end_before   where the last complete record below flush_lsn ends (docs/protocol.md R18)
    scan                how far WAL is valid after a crash (R9)
    whole_records       the records that lie whole and valid in one page

Contract: a record counts as complete when all of its bytes and the zeros that align it lie below
the limit. Its CRC-32C, its prev-link and every page header in it must be right. End LSNs are
PostgreSQL's EndRecPtr: aligned to 8, and the page boundary itself if the record ends exactly at a
page end. The walk reads no byte above the limit. A read is at most `CHUNK_BYTES` long and memory is
bounded by that, also for a record of 1 GB.

An XLOG_SWITCH ends where its own bytes do. The padding of its segment comes with the next record,
whose prev-link shows that it belongs there. The padding is not looked at, as in xlogreader.c
(XLogDecodeNextRecord). It is zeros. A recycled segment has older pages instead if the server died
while it wrote the zeros, and half of them cannot be distinguished from zeros.

The one walk of both functions is strict where PostgreSQL's own reader is (xlogreader.c:
XLogDecodeNextRecord, XLogReaderValidatePageHeader, ValidXLogRecordHeader). It is also strict where
PostgreSQL writes zeros that no CRC covers. Otherwise two safekeepers could keep different bytes for
the same log. It needs no de-paging: most records lie inside one page, and the others are checked
piece by piece. Formats 13 to 18 are the same here. So the page magic only has to stay that of the
first page read, and an unknown one is accepted. Layout: xlog_internal.h, xlogrecord.h. The rules
are in docs/protocol.md.

Stale bytes (an older page in a reused file) are refused by page address, timeline, prev-link and
CRC. Two ranges carry no check of PostgreSQL's own, and a caller that scans after a power cut must
know that they were durable:

* the first bytes of a log that starts inside a record;
* the bytes of a record that an XLP_FIRST_IS_OVERWRITE_CONTRECORD page has cut off.

wal_store sees to both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from struct import Struct

from crc32c import crc32c

from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import CorruptWal
from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn
from walkeeper_common.postgres.contrecords import (
    RECORD_HEADER_BYTES,
    RMGR_XLOG,
    XLOG_SWITCH,
    is_switch_tail,
)
from walkeeper_common.postgres.nonce_message import RMGR_LOGICAL_MESSAGE, is_nonce_message
from walkeeper_common.postgres.walpages import (
    FIRST_IS_CONTRECORD,
    LONG_HEADER,
    LONG_HEADER_BYTES,
    PAGE_HEADER,
    RECORD_BYTES_MAX,
    SHORT_HEADER_BYTES,
    PageHeader,
    WalBytes,
    aligned,
    header_bytes,
    header_error,
    page_header,
    skip_payload,
)

CHUNK_BYTES = 1 << 20
RMGR_TRANSACTION = 1
CHECKPOINT_INFOS = (0x00, 0x10)  # shutdown, online
COMMIT_INFOS = (0x00, 0x30)  # commit, commit prepared; under the mask 0x70
RECORD_HEADER = Struct("<IIQBB2xI")  # tot_len, xid, prev, info, rmid, crc
PREV_LINK = slice(8, 16)  # where a record has it


class InvalidWal(CorruptWal):
    """WAL that was durable is not valid at `lsn`."""

    def __init__(self, text: str, lsn: Lsn) -> None:
        super().__init__(text)
        self.lsn = lsn


@dataclass(frozen=True, slots=True)
class RecordEnd:
    """`end_lsn` ends a record that started at `start_lsn`, which is None if before the log.

    The next one starts at `next_lsn`: at `end_lsn`, or after the segment that a switch has ended.
    """

    start_lsn: Lsn | None
    end_lsn: Lsn
    switched_to: Lsn | None = field(default=None, compare=False)

    @property
    def next_lsn(self) -> Lsn:
        return self.end_lsn if self.switched_to is None else self.switched_to


@dataclass(frozen=True, slots=True)
class ScanEnd:
    """Valid WAL ends at `end_lsn`, for `reason`; its last record is as in RecordEnd."""

    end_lsn: Lsn
    reason: str
    start_lsn: Lsn | None
    switched_to: Lsn | None = None


def record_end_before(
    wal: WalBytes, *, first_lsn: Lsn, flush_lsn: Lsn, segment_bytes: int
) -> RecordEnd:
    """Return the last complete record at or below `flush_lsn`; a prefix of one record may follow.

    Enter at the last page in which a record starts and a complete one is found. So the function
    reads about two pages, or as much as the last records are long. Return `first_lsn` until a
    record after it is whole. It is the log's first segment, or where any record starts, and no byte
    before it is read. Raise InvalidWal if the bytes are anything else.
    """
    assert first_lsn <= flush_lsn, f"{first_lsn=} {flush_lsn=}"
    if flush_lsn == first_lsn:
        return RecordEnd(None, first_lsn)
    page_lsn = max(Lsn(flush_lsn - 1).round_down(WAL_PAGE_BYTES), first_lsn)
    while True:
        if page_lsn == first_lsn or _may_enter(wal, page_lsn, flush_lsn, segment_bytes):
            walk = _Walk(wal, page_lsn, flush_lsn, segment_bytes)
            stop = walk.run()
            found = walk.start_lsn is not None or page_lsn == first_lsn
            may_be_padding = page_lsn % segment_bytes != 0
            if not stop.is_cut and (found or not may_be_padding):
                raise InvalidWal(f"{stop.reason}; WAL was durable up to {flush_lsn}", stop.lsn)
            if found:
                return RecordEnd(walk.start_lsn, walk.end_lsn, walk.switched_to)
        page_lsn = max(page_lsn - WAL_PAGE_BYTES, first_lsn)


def _may_enter(wal: WalBytes, page_lsn: Lsn, flush_lsn: Lsn, segment_bytes: int) -> bool:
    """Return True if a record starts in this page below flush_lsn, going by the page's header.

    A page without a valid header may pad a segment after an XLOG_SWITCH. A walk from before the
    page decides that.
    """
    size = header_bytes(page_lsn, segment_bytes)
    if page_lsn + size >= flush_lsn:
        return False
    header = page_header(wal.read(page_lsn, page_lsn + size))
    reason = header_error(header, page_lsn, segment_bytes)
    if reason is not None:
        if page_lsn % segment_bytes:
            return False
        raise InvalidWal(f"{reason}; WAL was durable up to {flush_lsn}", page_lsn)
    if not header.continues_record:
        return True
    start = aligned(header.rem_len) + size
    return start < WAL_PAGE_BYTES and page_lsn + start < flush_lsn


def scan(
    wal: WalBytes,
    *,
    start_lsn: Lsn,
    limit_lsn: Lsn,
    segment_bytes: int,
    foreign: Callable[[PageHeader], str | None] | None = None,
) -> ScanEnd:
    """Walk from a record's, page's or segment's start to the first thing that is not valid WAL.

    At a page's start its header says where the first record is. Until a record starts, the end is
    `start_lsn`. `wal` must have everything below `limit_lsn`. A scan of 16 MiB takes about 0.1 s.
    `foreign(header)` returns why a page is another log's, and this ends the walk. No CRC covers
    headers.
    """
    assert start_lsn <= limit_lsn, f"{start_lsn=} {limit_lsn=}"
    walk = _Walk(wal, start_lsn, limit_lsn, segment_bytes, foreign)
    stop = walk.run()
    return ScanEnd(walk.end_lsn, stop.reason, walk.start_lsn, walk.switched_to)


def has_telling_record(page_lsn: Lsn, page: Buffer) -> bool:
    """Return True if a telling record lies whole and valid in this page. Never raises.

    A commit, a checkpoint and a message with a nonce tell (docs/protocol.md R22).
    """
    return any(
        (rmid == RMGR_XLOG and info & 0xF0 in CHECKPOINT_INFOS)
        or (rmid == RMGR_TRANSACTION and info & 0x70 in COMMIT_INFOS)
        or (rmid == RMGR_LOGICAL_MESSAGE and is_nonce_message(data))
        for rmid, info, data in whole_records(page_lsn, page)
    )


def whole_records(page_lsn: Lsn, page: Buffer) -> Iterator[tuple[int, int, memoryview]]:
    """Yield resource manager, info and data of each record that is whole and valid in this page."""
    view = memoryview(page)
    if len(view) < LONG_HEADER_BYTES or (header := page_header(view)).page_lsn != page_lsn:
        return
    offset = LONG_HEADER_BYTES if header.info & LONG_HEADER else SHORT_HEADER_BYTES
    offset += aligned(header.rem_len) if header.continues_record else 0
    while offset + RECORD_HEADER_BYTES <= len(view):
        tot_len, _, _, info, rmid, crc = RECORD_HEADER.unpack_from(view, offset)
        end = offset + tot_len
        if not offset + RECORD_HEADER_BYTES <= end <= len(view):
            return
        if crc32c(view[offset : offset + 20], crc32c(view[offset + 24 : end])) != crc:
            return
        yield rmid, info, view[offset + RECORD_HEADER_BYTES : end]
        offset = aligned(end)


class _Stop(Exception):
    """The reason why a walk ended, and where; never leaves this module.

    With `is_cut`, everything is valid, and the limit may cut a record. Without it, the bytes at
    `lsn` are not WAL that continues the bytes before them.
    """

    def __init__(self, lsn: Lsn, reason: str, *, is_cut: bool = False) -> None:
        super().__init__(reason)
        self.lsn, self.reason, self.is_cut = lsn, reason, is_cut


class _Walk:
    """One walk over records. `start_lsn` and `end_lsn` are those of the last complete one."""

    def __init__(
        self,
        wal: WalBytes,
        begin: Lsn,
        limit: Lsn,
        segment_bytes: int,
        foreign: Callable[[PageHeader], str | None] | None = None,
    ) -> None:
        self._foreign = foreign
        self._wal, self._limit, self._segment_bytes = wal, limit, segment_bytes
        self._begin = begin
        self._next = begin  # where the next record starts, or the boundary of the page it is in
        self._cut_off_at = begin  # the page at which a record before it may be cut off
        self._previous: Lsn | None = None  # the LSN that the next record's prev-link must have
        self._magic: int | None = None
        self._timeline = 0
        self._chunk, self._chunk_lsn = memoryview(b""), begin
        self.start_lsn: Lsn | None = None
        self.end_lsn = begin
        self.switched_to: Lsn | None = None

    def run(self) -> _Stop:
        try:
            if self._next % WAL_PAGE_BYTES == 0:
                self._enter_page()
            else:
                self._header(self._next.round_down(WAL_PAGE_BYTES), self._next, None)
            while True:
                self._records_inside_page()
                self._record_across_pages()
        except _Stop as stop:
            return stop

    def _enter_page(self) -> None:
        """Skip the continuation at the front of the first page; its record started before."""
        begin = self._next
        header = self._header(begin, begin, None)
        if not header.continues_record:
            return
        page_lsn, remaining = begin, header.rem_len
        while True:
            size = header_bytes(page_lsn, self._segment_bytes)
            held = WAL_PAGE_BYTES - size
            if aligned(remaining) <= held:
                break
            remaining -= held
            page_lsn = page_lsn + WAL_PAGE_BYTES
            header = self._header(page_lsn, begin, remaining)
            if header.overwrites_record:
                self._next = self._cut_off_at = page_lsn
                return
            self._check_continuation(header, page_lsn, remaining)
        end = page_lsn + size + aligned(remaining)
        self._check_alignment(
            begin, self._page(page_lsn)[size + remaining : size + aligned(remaining)]
        )
        if end > self._limit:
            raise self._at_limit(begin)
        self._next = self.end_lsn = end
        if page_lsn == begin and is_switch_tail(self._page(page_lsn), size, remaining):
            self._previous = begin - (RECORD_HEADER_BYTES - remaining)
            self._leave_segment()

    def _records_inside_page(self) -> None:
        """Take the fast path: records that start and end in the page of `_next`."""
        page_lsn = self._next.round_down(WAL_PAGE_BYTES)
        view, offset = self._page(page_lsn), self._next - page_lsn
        if offset == 0:
            self._check_starts_afresh(self._header(page_lsn, page_lsn, 0), page_lsn)
            offset = header_bytes(page_lsn, self._segment_bytes)
        size, unpack, previous = len(view), RECORD_HEADER.unpack_from, self._previous
        start: int | None = None
        while offset + RECORD_HEADER_BYTES <= size:
            tot_len, _, prev, info, rmid, crc = unpack(view, offset)
            end = offset + tot_len
            if tot_len < RECORD_HEADER_BYTES or (end + 7) & ~7 > size:
                break
            if prev != previous or (rmid == RMGR_XLOG and info & 0xF0 == XLOG_SWITCH):
                break
            if crc32c(view[offset : offset + 20], crc32c(view[offset + 24 : end])) != crc:
                break
            if end & 7 and any(view[end : (end + 7) & ~7]):
                break
            start, previous = offset, page_lsn + offset
            offset = (end + 7) & ~7
        if start is not None:
            self.start_lsn = self._previous = previous
            self._next = self.end_lsn = page_lsn + offset
            self.switched_to = None
        if self._next < page_lsn + offset < page_lsn + WAL_PAGE_BYTES:
            self._next = page_lsn + offset

    def _record_across_pages(self) -> None:
        """Check any one record piece by piece, and raise a _Stop with what is wrong with it."""
        start = self._next
        page_lsn = start.round_down(WAL_PAGE_BYTES)
        if start == page_lsn:
            return  # the last record ended with its page
        view = self._page(page_lsn)[start - page_lsn :]
        if len(view) < 4:
            raise self._at_limit(start)
        tot_len = int.from_bytes(view[:4], "little")
        if not RECORD_HEADER_BYTES <= tot_len <= RECORD_BYTES_MAX:
            wanted = "at least 24" if tot_len else "24"
            reason = f"invalid record length at {start}: wanted {wanted}, got {tot_len}"
            raise self._invalid(start, reason)
        head, crc, remaining = bytearray(), 0, tot_len
        while True:
            piece = view[:remaining]
            missing = RECORD_HEADER_BYTES - len(head)
            if missing > 0:
                head += piece[:missing]
                self._check_prev_link(start, head)
            crc = crc32c(piece[max(missing, 0) :], crc)
            remaining -= len(piece)
            if remaining == 0:
                padding = view[len(piece) : aligned(len(piece))]
                break
            if page_lsn + WAL_PAGE_BYTES >= self._limit:
                raise self._at_limit(start)
            page_lsn = page_lsn + WAL_PAGE_BYTES
            header = self._header(page_lsn, start, remaining)
            if header.overwrites_record:
                # No end yet: a cut here would take the page that says so.
                self._next = self._cut_off_at = page_lsn
                return
            self._check_continuation(header, page_lsn, remaining)
            view = self._page(page_lsn)[header_bytes(page_lsn, self._segment_bytes) :]
        self._finish_record(start, tot_len, bytes(head), crc, padding)

    def _finish_record(
        self, start: Lsn, tot_len: int, head: bytes, data_crc: int, padding: memoryview
    ) -> None:
        """Check a record, all of whose bytes are there, and move on to the next one."""
        _, _, _, info, rmid, crc = RECORD_HEADER.unpack(head)
        if crc32c(head[:20], data_crc) != crc:
            reason = f"incorrect resource manager data checksum in record at {start}"
            raise self._invalid(start, reason)
        self._check_alignment(start, padding)
        end = self._end_of(start, tot_len)
        is_switch = rmid == RMGR_XLOG and info & 0xF0 == XLOG_SWITCH
        if is_switch and tot_len != RECORD_HEADER_BYTES:  # or its tail could not show the switch
            raise self._invalid(start, f"the switch record at {start} has data in it")
        if end > self._limit:
            raise self._at_limit(start)
        self.start_lsn = self._previous = start
        self._next = self.end_lsn = end
        self.switched_to = None
        if is_switch:
            self._leave_segment()

    def _leave_segment(self) -> None:
        """Go on after a switch record at the next segment: the rest of its segment is no WAL."""
        self._next = self.switched_to = self.end_lsn.round_up(self._segment_bytes)

    def _end_of(self, start: Lsn, tot_len: int) -> Lsn:
        page_lsn = start.round_down(WAL_PAGE_BYTES)
        before = start - page_lsn - header_bytes(page_lsn, self._segment_bytes)
        return skip_payload(page_lsn, before + aligned(tot_len), self._segment_bytes)

    def _check_prev_link(self, start: Lsn, head: bytearray) -> None:
        """Check the prev-link as soon as it is there.

        The first record's is only known to point back.
        """
        if len(head) < PREV_LINK.stop:
            return
        prev = Lsn(int.from_bytes(head[PREV_LINK], "little"))
        if prev != self._previous and (self._previous is not None or prev >= start):
            raise self._invalid(start, f"record with incorrect prev-link {prev} at {start}")

    def _check_alignment(self, start: Lsn, padding: memoryview) -> None:
        """Check for zeros: PostgreSQL clears each page before it writes (AdvanceXLInsertBuffer)."""
        if any(padding):
            reason = f"there is data in the padding after the record at {start}"
            raise self._invalid(start, reason)

    def _check_starts_afresh(self, header: PageHeader, page_lsn: Lsn) -> None:
        if header.continues_record:
            raise self._invalid(page_lsn, f"contrecord is requested by the page at {page_lsn}")
        if header.overwrites_record and page_lsn != self._cut_off_at:
            reason = f"the page at {page_lsn} cuts off a record, but none goes on there"
            raise self._invalid(page_lsn, reason)

    def _check_continuation(self, header: PageHeader, page_lsn: Lsn, remaining: int) -> None:
        if not header.continues_record:
            raise self._invalid(page_lsn, f"there is no contrecord flag at {page_lsn}")
        if header.rem_len != remaining:
            reason = f"invalid contrecord length {header.rem_len} (expected {remaining})"
            raise self._invalid(page_lsn, f"{reason} at {page_lsn}")

    def _header(self, page_lsn: Lsn, start: Lsn, remaining: int | None) -> PageHeader:
        """Return the checked header of a page; end the walk if it is not there or not right.

        `start` is where the record started that may go on here. `remaining` is how many of its
        bytes are missing, or None if that is not known.
        """
        size = header_bytes(page_lsn, self._segment_bytes)
        view = self._page(page_lsn)
        if page_lsn + size > self._limit:
            self._check_cut_header(page_lsn, bytes(view), remaining)
            raise self._at_limit(start)
        if not any(view[:size]):
            raise self._invalid(page_lsn, f"no page header at {page_lsn}, only zeros")
        header = page_header(view)
        self._check_page(header, page_lsn)
        return header

    def _check_cut_header(self, page_lsn: Lsn, there: bytes, remaining: int | None) -> None:
        """Check a header that the limit cuts: its bytes must be the beginning of a valid one.

        The fields that must equal something are completed with it. The flags decide whether the
        record goes on or is cut off. The timeline may grow, so it is not checked.
        """
        info = FIRST_IS_CONTRECORD if remaining else 0
        magic, timeline = self._magic or 0xD100, self._timeline
        whole = PAGE_HEADER.pack(magic, info, timeline, page_lsn, remaining or 0, 0)
        data = bytearray(whole)
        data[: len(there)] = there[: len(whole)]
        header = page_header(bytes(data))
        wrong = header.magic == 0 or (self._magic is not None and header.magic != self._magic)
        wrong = wrong or header.page_lsn != page_lsn or header.padding != 0
        if remaining is not None and not header.overwrites_record:
            continues = header.info & FIRST_IS_CONTRECORD
            wrong = wrong or (continues, header.rem_len if continues else 0) != (info, remaining)
        if wrong:
            raise self._invalid(page_lsn, f"invalid beginning of a page header at {page_lsn}")

    def _check_page(self, header: PageHeader, page_lsn: Lsn) -> None:
        reason = header_error(header, page_lsn, self._segment_bytes)
        if reason is None and self._magic not in (None, header.magic):
            reason = f"page magic {header.magic:04X} after {self._magic:04X} at {page_lsn}"
        if reason is None and header.timeline < self._timeline:
            order = f"{header.timeline} (after {self._timeline})"
            reason = f"out-of-sequence timeline {order} in the page at {page_lsn}"
        if reason is None and self._foreign is not None:
            reason = self._foreign(header)
        if reason is not None:
            raise self._invalid(page_lsn, reason)
        self._magic, self._timeline = header.magic, header.timeline

    def _page(self, page_lsn: Lsn) -> memoryview:
        """Return the page's bytes below the limit: a slice of the chunk that was read last."""
        offset = page_lsn - self._chunk_lsn
        if not 0 <= offset < len(self._chunk):
            chunk_bytes = min(CHUNK_BYTES, self._segment_bytes)
            end = min(page_lsn.round_down(chunk_bytes) + chunk_bytes, self._limit)
            data = self._wal.read(page_lsn, end) if page_lsn < end else b""
            assert len(data) == max(end - page_lsn, 0), f"{len(data)=} {page_lsn=} {end=}"
            self._chunk, self._chunk_lsn, offset = memoryview(data), page_lsn, 0
        return self._chunk[offset : offset + WAL_PAGE_BYTES]

    def _at_limit(self, start: Lsn) -> _Stop:
        where = "" if start >= self._limit else f" inside what starts at {start}"
        return _Stop(start, f"WAL ends at {self._limit}{where}", is_cut=True)

    def _invalid(self, lsn: Lsn, reason: str) -> _Stop:
        return _Stop(lsn, reason)
