"""The rest of a record that starts in one segment and ends in those after it.

Contract: the first page of the next segment has the number of bytes to come. Exactly so many are
read, from as many segments as necessary (a record can be 1 GB). A missing segment, or a page that
is not WAL of its place, ends the spill early. The walk then finds the record incomplete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn
from walkeeper_common.postgres.walpages import FIRST_IS_CONTRECORD, LONG_HEADER_BYTES, page_header
from walkeeper_wal.records.segment import (
    Bytes,
    Pages,
    copy_payload,
    inspect_pages,
    page_at,
    page_headers,
    page_offset,
    payload_bytes,
    whole_pages,
)
from walkeeper_wal.records.versions import MAJORS, unknown_magic
from walkeeper_wal.sources.plan import PlannedSegment
from walkeeper_wal.sources.wal_files import WalFiles
from walkeeper_wal.wal_errors import HistoryError


@dataclass(frozen=True, slots=True)
class Spill:
    """`data` follows a segment's payload. `overwritten`: the record was never finished."""

    data: Bytes
    overwritten: bool
    reason: str
    """Why there is no more of it, if the record turns out to be longer."""
    complete: bool
    """True if the bytes are all there that the segments after it announce."""
    at_end: bool
    """True if there is no more of it because the log ends."""


def read_spill(
    files: WalFiles, segments: Sequence[PlannedSegment], index: int, magic: int
) -> Spill:
    """Return the part of `segments[index]`'s last record that is in the segments after it."""
    pieces: list[_Piece] = []
    try:
        pieces.extend(_pieces(files, segments, index, magic))
    except HistoryError as error:
        pieces.append(_Piece(reason=str(error)))
    last = pieces[-1]
    data = np.concatenate([piece.data for piece in pieces])
    return Spill(data, last.overwritten, last.reason, last.complete, last.at_end)


def is_followed(files: WalFiles, segments: Sequence[PlannedSegment], index: int) -> bool:
    """Return whether the record that `segments[index]` may end with is whole.

    The next segment is then being written or is whole, so this one no longer changes.
    """
    if index + 1 >= len(segments):
        return False
    pages = _first_page(files, segments[index + 1])
    return _is_good(pages) and read_spill(files, segments, index, pages.magic).complete


def is_torn(files: WalFiles, segment: PlannedSegment) -> bool:
    """Return whether a segment does not begin with a page of WAL of its place."""
    return not _is_good(_first_page(files, segment))


def _first_page(files: WalFiles, segment: PlannedSegment) -> Pages:
    front = _front(files, segment.path, WAL_PAGE_BYTES)
    return inspect_pages(page_headers(front), segment.first_lsn)


def _is_good(pages: Pages) -> bool:
    return bool(pages.count and pages.good[0])


@dataclass(frozen=True, slots=True)
class _Piece:
    """The part of the record in one segment."""

    data: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))
    overwritten: bool = False
    reason: str = ""
    complete: bool = False
    at_end: bool = False


def _front(files: WalFiles, path: str, size: int) -> Bytes:
    return np.frombuffer(files.read_front(path, size), np.uint8)


def _pieces(
    files: WalFiles, segments: Sequence[PlannedSegment], index: int, magic: int
) -> Iterator[_Piece]:
    """Yield a piece for each segment that the record reaches."""
    while True:
        before, index = segments[index], index + 1
        first_lsn = before.first_lsn + before.segment_bytes
        if index >= len(segments) or segments[index].first_lsn != first_lsn:
            yield _Piece(reason=f"the segment at {Lsn(first_lsn)} is missing")
            return
        path, is_last = segments[index].path, segments[index].is_last
        shown = files.shown(path)
        front = _front(files, path, WAL_PAGE_BYTES)
        pages = inspect_pages(page_headers(whole_pages(front)[0]), first_lsn)
        if len(front) < LONG_HEADER_BYTES and is_last:
            yield _Piece(reason=f"{shown} is cut off", at_end=True)
            return
        if not pages.count or not pages.good[0] or pages.magic != magic:
            is_known = not pages.count or not pages.good[0] or pages.magic in MAJORS
            why = " does not start with WAL of its place"
            yield _Piece(reason=shown + (why if is_known else f": {unknown_magic(pages.magic)}"))
            return
        if pages.overwrites[0]:
            yield _Piece(overwritten=True, complete=True)
            return
        header = page_header(front[:LONG_HEADER_BYTES].tobytes())
        if before.system_id is not None and header.system_id != before.system_id:
            yield _Piece(reason=f"{shown} is of another cluster, {header.system_id}")
            return
        if not header.info & FIRST_IS_CONTRECORD:
            yield _Piece(reason=f"{shown} does not continue the record", complete=True)
            return
        held = payload_bytes(before.segment_bytes)
        wanted = min(header.rem_len, held)
        if wanted > payload_bytes(WAL_PAGE_BYTES):
            front = _front(files, path, (page_at(wanted - 1) + 1) * WAL_PAGE_BYTES)
        piece = _good_part(front, first_lsn, wanted, shown)
        if piece.overwritten or piece.reason:
            yield replace(piece, at_end=piece.at_end and is_last)
            return
        all_there = header.rem_len <= held
        reason = f"the record is longer than {shown} says"
        yield replace(piece, reason=reason, complete=all_there)
        if all_there:
            return


def _good_part(front: Bytes, first_lsn: int, wanted: int, shown: str) -> _Piece:
    """Return the pages up to the first one that does not continue the one before."""
    filled, held = whole_pages(front)
    pages = inspect_pages(page_headers(filled), first_lsn)
    payload = np.empty(payload_bytes(len(filled)), np.uint8)
    copy_payload(filled, payload)
    for page in pages.breaks():
        limit = page_offset(page)
        if limit >= wanted:
            break
        if pages.overwrites[page]:
            return _Piece(payload[:limit], overwritten=True, complete=True)
        lsn = Lsn(first_lsn + page * WAL_PAGE_BYTES)
        return _Piece(payload[:limit], reason=f"{shown}: the page at {lsn} is not WAL of its place")
    if held < wanted:
        return _Piece(payload[:held], reason=f"{shown} is cut off", at_end=True)
    return _Piece(payload[:wanted])
