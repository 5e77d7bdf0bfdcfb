"""The engine without a compiler: Python follows the lengths, numpy takes the headers apart.

Contract: that of `walk`, with the compiled walk's rows and stops. First the chain is followed by
lengths alone. Then prev-links, CRCs and headers are each checked over all records, and the first
wrong one ends the walk. Headers are taken off in rounds. In each round, every record with headers
left loses one. It takes about twice pg_waldump's time per byte, and half a microsecond more a
record for its CRC.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from walkeeper_common.postgres.walpages import RECORD_BYTES_MAX
from walkeeper_wal.records.segment import Bytes, Column, lsn_at
from walkeeper_wal.records.stops import Stop
from walkeeper_wal.records.walk import (
    BLOCK_ID_MAX,
    BLOCK_ROW,
    BLOCKS_PER_RECORD_MAX,
    HAS_DATA,
    HAS_IMAGE,
    ID_LONG_DATA,
    ID_ORIGIN,
    ID_SHORT_DATA,
    ID_TOPLEVEL_XID,
    IMAGE_HAS_HOLE,
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    RMGR_XLOG,
    SAME_REL,
    XLOG_SWITCH,
    Buffers,
    Walked,
    WalkRequest,
)

Numbers = npt.NDArray[np.int64]


def _chain(request: WalkRequest, records_max: int) -> tuple[Numbers, Stop, int]:
    """Return the starts of records, by their lengths alone, with the stop and its offset."""
    starts: list[int] = []
    usable = len(request.payload) & ~3
    words = request.payload[:usable].data.cast("B").cast("I")
    offset, end = request.begin, min(request.end, request.available)
    stop = Stop.END
    while offset < end:
        if len(starts) == records_max:
            stop = Stop.FULL
            break
        length = words[offset >> 2]
        if not RECORD_HEADER_BYTES <= length <= RECORD_BYTES_MAX:
            stop = Stop.LENGTH if length else Stop.ZERO
            break
        if length > request.available - offset:
            stop = Stop.INCOMPLETE
            break
        starts.append(offset)
        offset = (offset + length + 7) & ~7
    return np.array(starts, np.int64), stop, offset


def _integers(payload: Bytes, places: Numbers, size: int) -> Numbers:
    """Return the little-endian integers of `size` bytes at any places, with zeros past the end."""
    value = np.zeros(len(places), np.int64)
    for k in range(size):
        value |= payload[np.minimum(places + k, len(payload) - 1)].astype(np.int64) << (8 * k)
    return value


class _Peel:
    """The headers of records, all records at once. `wrong` marks records that do not add up."""

    def __init__(self, payload: Bytes, starts: Numbers, stops: Numbers, mask: int) -> None:
        self.payload, self.mask, self.stops = payload, mask, stops
        count = len(starts)
        self.place = starts + RECORD_HEADER_BYTES
        self.wrong = np.zeros(count, bool)
        self.total, self.fpi, self.main = (np.zeros(count, np.int64) for _ in range(3))
        self.top, self.origin, self.blocks = (np.zeros(count, np.int64) for _ in range(3))
        self.last_id = np.full(count, -1, np.int64)
        self.relation = np.zeros((count, 3), np.int64)
        self.rounds: list[Column] = []
        active = np.flatnonzero(stops - self.place > 0)
        while len(active):
            ids = payload[self.place[active]].astype(np.int64)
            self._take_blocks(active[ids <= BLOCK_ID_MAX])
            done = self._take_others(active, ids)
            active = active[~done & ~self.wrong[active]]
            active = active[(stops - self.place > self.total)[active]]
        self.wrong |= self.stops - self.place != self.total

    def _fails(self, rows: Numbers, bad: npt.NDArray[np.bool_]) -> Numbers:
        self.wrong[rows[bad]] = True
        return rows

    def _take_others(self, active: Numbers, ids: Numbers) -> npt.NDArray[np.bool_]:
        """Read headers that are not blocks'; return a mask of records with their last one read."""
        done = np.zeros(len(active), bool)
        known = ids <= BLOCK_ID_MAX
        for kind, size in (
            (ID_SHORT_DATA, 2),
            (ID_LONG_DATA, 5),
            (ID_ORIGIN, 3),
            (ID_TOPLEVEL_XID, 5),
        ):
            here = ids == kind
            known |= here
            rows = active[here]
            if not len(rows):
                continue
            self._fails(rows, self.stops[rows] - self.place[rows] < size)
            value = _integers(self.payload, self.place[rows] + 1, size - 1)
            if kind in (ID_SHORT_DATA, ID_LONG_DATA):
                self.main[rows] = value
                self.total[rows] += value
                done |= here
            elif kind == ID_ORIGIN:
                self.origin[rows] = value
            else:
                self.top[rows] = value
            self.place[rows] += size
        self.wrong[active[~known]] = True
        return done

    def _take_blocks(self, rows: Numbers) -> None:
        if not len(rows):
            return
        payload, place, stop = self.payload, self.place[rows], self.stops[rows]
        ids, flags = (_integers(payload, place + k, 1) for k in range(2))
        data_length = _integers(payload, place + 2, 2)
        bad = (stop - place < 4) | (ids <= self.last_id[rows])
        bad |= ((flags & HAS_DATA) != 0) != (data_length != 0)
        self.last_id[rows] = ids
        place = place + 4
        image = self._images(place, stop, (flags & HAS_IMAGE) != 0, bad)
        image_length, hole, info, hole_length, place = image
        own = (flags & SAME_REL) == 0
        bad |= ~own & (self.blocks[rows] == 0)
        bad |= own & (stop - place < 12)
        for part in range(3):
            self.relation[rows[own], part] = _integers(payload, place[own] + 4 * part, 4)
        place = place + 12 * own
        bad |= stop - place < 4
        taken = np.zeros(len(rows), BLOCK_ROW)
        taken["record"], taken["block_id"], taken["flags"] = rows, ids, flags
        taken["tablespace"], taken["database"], taken["relfilenode"] = self.relation[rows].T
        taken["block_number"] = _integers(payload, place, 4)
        taken["data_length"], taken["image_length"] = data_length, image_length
        taken["image_info"], taken["hole_offset"] = info, hole
        taken["hole_length"] = hole_length & 0xFFFF
        self._fails(rows, bad)
        self.place[rows] = place + 4
        self.total[rows] += data_length + image_length
        self.fpi[rows] += image_length
        self.blocks[rows] += 1
        self.rounds.append(taken)

    def _images(
        self, place: Numbers, stop: Numbers, has: npt.NDArray[np.bool_], bad: Any
    ) -> tuple[Numbers, Numbers, Numbers, Numbers, Numbers]:
        """Return (length, hole, info, hole length, place after it) of the records' images."""
        length, hole, info, hole_length = (np.zeros(len(place), np.int64) for _ in range(4))
        at = np.flatnonzero(has)
        if not len(at):
            return length, hole, info, hole_length, place
        bad[at] |= stop[at] - place[at] < 7
        length[at] = _integers(self.payload, place[at], 2)
        hole[at] = _integers(self.payload, place[at] + 2, 2)
        info[at] = _integers(self.payload, place[at] + 4, 1)
        place = place + 5 * has
        has_hole = (info & IMAGE_HAS_HOLE) != 0
        compressed = np.flatnonzero(has_hole & ((info & self.mask) != 0))
        hole_length[has_hole] = PAGE_BYTES - length[has_hole]
        hole_length[compressed] = _integers(self.payload, place[compressed], 2)
        place[compressed] += 2
        bad |= (length > PAGE_BYTES) | (hole + hole_length > PAGE_BYTES)
        return length, hole, info, hole_length, place

    def block_rows(self, count: int) -> Column:
        """Return the block rows of the first `count` records, in log order, with data offsets."""
        if not self.rounds:
            return np.zeros(0, BLOCK_ROW)
        rows = np.concatenate(self.rounds)
        rows = rows[rows["record"] < count]
        rows = rows[np.argsort(rows["record"], kind="stable")]
        sizes = rows["image_length"].astype(np.int64) + rows["data_length"]
        before = np.cumsum(sizes) - sizes
        first = np.searchsorted(rows["record"], rows["record"])  # the record's first row
        if len(rows):
            begins = self.place[rows["record"]] + before - before[first]
            rows["image_offset"] = begins
            rows["data_offset"] = begins + rows["image_length"]
        return rows


def _prev_links(request: WalkRequest, starts: Numbers) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Return the prev-links of records, and a mask of the wrong ones."""
    links = _integers(request.payload, starts + 8, 8)
    lsns = lsn_at(starts, request.first_lsn, request.segment_bytes)
    expected = np.roll(lsns, 1)
    wrong = links != expected
    if request.prev_lsn is None:
        wrong[:1] = (links[:1] < 0) | (links[:1] >= lsns[:1])
    else:
        wrong[:1] = links[:1] != request.prev_lsn
    return links, wrong


def _first_wrong_crc(payload: Bytes, starts: Numbers, stops: Numbers) -> int:
    view = payload.data
    stored = _integers(payload, starts + 20, 4).tolist()
    for n, (begin, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
        if crc32c(view[begin : begin + 20], crc32c(view[begin + 24 : stop])) != stored[n]:
            return n
    return len(starts)


def _first(wrong: npt.NDArray[np.bool_]) -> int:
    return int(wrong.argmax()) if wrong.any() else len(wrong)


def walk(request: WalkRequest, buffers: Buffers) -> Walked:
    """See walkeeper_wal.records.walk."""
    payload = request.payload
    starts, stop, offset = _chain(request, len(buffers.records))
    lengths = _integers(payload, starts, 4)
    stops = starts + lengths
    links, wrong = _prev_links(request, starts)

    def keep(count: int, reason: Stop) -> None:
        nonlocal starts, stops, stop, offset
        if count < len(starts):
            offset, stop = int(starts[count]), reason
            starts, stops = starts[:count], stops[:count]

    keep(_first(wrong), Stop.PREV_LINK)
    if request.check_crc:
        keep(_first_wrong_crc(payload, starts, stops), Stop.CRC)
    info, rmid = (_integers(payload, starts + k, 1) for k in (16, 17))
    switches = (rmid == RMGR_XLOG) & (info & 0xF0 == XLOG_SWITCH)
    peel = _Peel(payload, starts, stops, request.image_compressed_mask)
    keep(_first(peel.wrong), Stop.HEADERS)
    if (switch := _first(switches)) < len(starts):
        starts, stops = starts[: switch + 1], stops[: switch + 1]
        offset, stop = (int(stops[switch]) + 7) & ~7, Stop.SWITCH
    counts = peel.blocks[: len(starts)]
    room = np.flatnonzero(np.cumsum(counts) - counts + BLOCKS_PER_RECORD_MAX > len(buffers.blocks))
    keep(int(room[0]) if len(room) else len(starts), Stop.FULL)
    count = len(starts)
    rows = buffers.records[:count]
    rows["offset"], rows["length"], rows["prev_lsn"] = starts, stops - starts, links[:count]
    rows["xid"] = _integers(payload, starts + 4, 4)
    rows["info"], rows["rmid"] = info[:count], rmid[:count]
    rows["main_length"], rows["fpi_length"] = peel.main[:count], peel.fpi[:count]
    rows["toplevel_xid"], rows["origin"] = peel.top[:count], peel.origin[:count]
    rows["block_count"] = peel.blocks[:count]
    blocks = peel.block_rows(count)
    sizes = peel.total[:count] - peel.main[:count]
    rows["main_offset"] = peel.place[:count] + sizes
    return Walked(rows, blocks, stop, offset)
