"""The walk over PostgreSQL's WAL: raw bytes whose CRCs are right, and stories made of records.

An input of `wal` is a head of 8 bytes (segment size, first page, limit) and WAL from there on. An
input of `wal_story` is a list of records, crashes and edits that make such WAL. Both walformat and
its twin, naive_wal, walk over it. Promises: only InvalidWal is raised, and both give the same end.
No byte above the limit is read. In valid WAL, both ways into the log find the same record.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from struct import Struct
from zlib import crc32

from crc32c import crc32c

from tests.proof.fuzz.choices import Choices, chunks
from tests.proof.fuzz.contract import Target, require
from tests.proof.fuzz.mutation import chunked, havoc
from tests.proof.fuzz.naive_wal import naive_end
from tests.support.wal_maker import PAGE, WalMaker, random_wal, up_to_page_end
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.contrecords import head_end
from walkeeper_common.postgres.walformat import (
    InvalidWal,
    has_telling_record,
    record_end_before,
    scan,
)

HEAD = Struct("<BBHI")  # segment size, pages before the first segment's end, unused, limit
RECORD = Struct("<IIQBB2xI")
PAGE_HEADER = Struct("<HHIQI4x")
LONG_REST = Struct("<QII")
MAGIC_15 = 0xD110
SEGMENTS_MAX = 3
CHUNK = 8


class Bounded:
    """WAL from `base` on. Reading what is not there is a broken promise."""

    def __init__(self, data: bytes, base: Lsn) -> None:
        self.data, self.base = data, base
        self.read_bytes = 0

    def read(self, begin: Lsn, end: Lsn) -> bytes:
        inside = self.base <= begin <= end <= self.base + len(self.data)
        require(inside, "read [{}, {}) of [{}, +{:X})", begin, end, self.base, len(self.data))
        self.read_bytes += end - begin
        return self.data[begin - self.base : end - self.base]


def check_walk(data: bytes, base: Lsn, segment_bytes: int) -> None:
    """Check the walk over `data`, which all counts as durable; `base` is the start of a segment."""
    wal, limit = Bounded(data, base), base + len(data)
    start, end, stopped = naive_end(data, base=base, begin=base, segment_bytes=segment_bytes)
    found = scan(wal, start_lsn=base, limit_lsn=limit, segment_bytes=segment_bytes)
    twin = ("the twin says", start, Lsn(end))
    require((found.start_lsn, found.end_lsn) == (start, end), "scan: {}, {}", found, twin)
    require(
        wal.read_bytes <= 2 * len(data) + 2 * PAGE,
        "wal.read_bytes={} of {}",
        wal.read_bytes,
        len(data),
    )
    try:
        before = record_end_before(
            wal, first_lsn=base, flush_lsn=limit, segment_bytes=segment_bytes
        )
    except InvalidWal as error:
        # Bytes that end inside a header are judged by what is there of it: the twin does not.
        require(not stopped.cut or stopped.in_header, "{}, but {} and is only cut off", error, twin)
        require(base <= error.lsn <= limit, "{}", error)
        return
    require(before.end_lsn <= limit, "{} is beyond {}", before, limit)
    if stopped.cut:
        require((before.start_lsn, before.end_lsn) == (start, end), "{}, {}", before, twin)
    if start is not None and start >= base:
        again = scan(wal, start_lsn=Lsn(start), limit_lsn=limit, segment_bytes=segment_bytes)
        require(again.end_lsn >= end, "from its last record's start: {}, {}", again, twin)


def check_pages(data: bytes, base: Lsn, segment_bytes: int) -> None:
    """Check the functions that look at one page and at a log's beginning."""
    for at in range(0, len(data), PAGE):
        page = data[at : at + PAGE]
        has_telling_record(base + at, page)
        has_telling_record(base + at, memoryview(page)[: crc32(page) % (PAGE + 1)])
    if len(data) >= 64:
        end = head_end(Bounded(data, base), first_lsn=base, segment_bytes=segment_bytes)
        require(end >= base, "end={}", end)


# Raw bytes


def laid_out(data: bytes) -> tuple[bytes, Lsn, int]:
    """Split an input into (WAL, its first LSN, segment size)."""
    size, pages, _, limit = HEAD.unpack_from(data.ljust(HEAD.size, b"\0"))
    segment_bytes = PAGE << (1 + size % 2)
    base = Lsn(segment_bytes * (1 + pages % 5))
    wal = data[HEAD.size : HEAD.size + SEGMENTS_MAX * segment_bytes]
    return wal[: limit or len(wal)], base, segment_bytes


def run_bytes(data: bytes) -> None:
    wal, base, segment_bytes = laid_out(data)
    check_walk(wal, base, segment_bytes)
    check_pages(wal, base, segment_bytes)


def alter_bytes(data: bytes, random: Random) -> bytes:
    """Change bytes near a page's start or a record's start, or the limit."""
    wal, _, segment_bytes = laid_out(data)
    places = [*range(0, len(wal), PAGE), *_record_starts(wal, segment_bytes)]
    if not places or random.randrange(10) == 0:
        return data[:4] + random.randrange(len(wal) + 1).to_bytes(4, "little") + data[HEAD.size :]
    place: int = HEAD.size + random.choice(places)
    if random.randrange(10) == 0:
        limit = max(0, place - HEAD.size + random.randrange(-2, 42))
        return data[:4] + limit.to_bytes(4, "little") + data[HEAD.size :]
    piece = data[place : place + 40]
    changed = havoc(piece, random)[: len(piece)].ljust(len(piece), b"\0")
    return data[:place] + changed + data[place + len(piece) :]


def _record_starts(wal: bytes, segment_bytes: int) -> list[int]:
    """List offsets of records, going by the lengths alone."""
    starts, at = list[int](), 0
    while at + 24 <= len(wal) and len(starts) < 400:
        if at % PAGE == 0:
            info, rem_len = PAGE_HEADER.unpack_from(wal, at)[1::3]
            at += 24 if at % segment_bytes else 40
            if info & 1:
                at = _skip(at, rem_len, segment_bytes)
            continue
        size = int.from_bytes(wal[at : at + 4], "little")
        if not 24 <= size < 1 << 20:
            at = (at // PAGE + 1) * PAGE
            continue
        starts.append(at)
        at = _skip(at, size, segment_bytes)
    return starts


def _skip(at: int, size: int, segment_bytes: int) -> int:
    """Return the place after `size` bytes of a record, aligned."""
    while size > (room := PAGE - at % PAGE):
        if size > 1 << 20:
            return (at // PAGE + 1) * PAGE
        at, size = at + room, size - room
        at += 24 if at % segment_bytes else 40
    return (at + size + 7) & ~7


def repair_bytes(data: bytes, random: Random) -> bytes:
    """Make headers and records belong together, each repair left out now and then."""
    wal, base, segment_bytes = laid_out(data)
    fixed = bytearray(data[HEAD.size :])
    left_out = random.randrange(12)
    for at in range(0, len(wal) - 40, PAGE):
        if left_out != 0:
            _repair_page(fixed, at, base, segment_bytes)
    previous = 0
    for at in _record_starts(bytes(fixed[: len(wal)]), segment_bytes):
        if left_out != 1 and previous:
            fixed[at + 8 : at + 16] = (base + previous).to_bytes(8, "little")
        if left_out != 2 or random.randrange(4):
            _repair_record(fixed, at, segment_bytes, headers=left_out != 3)
        previous = at
    return data[: HEAD.size].ljust(HEAD.size, b"\0") + bytes(fixed)


def _repair_page(wal: bytearray, at: int, base: Lsn, segment_bytes: int) -> None:
    _, info, timeline, _, rem_len = PAGE_HEADER.unpack_from(wal, at)
    if not any(wal[at : at + 24]):
        return
    info = (info & 0x0D) | (0 if at % segment_bytes else 2)
    timeline = timeline if 0 < timeline < 9 else 1
    rem_len = rem_len if info & 1 else 0
    PAGE_HEADER.pack_into(wal, at, MAGIC_15, info, timeline, base + at, rem_len)
    if at % segment_bytes == 0:
        LONG_REST.pack_into(wal, at + 24, 7, segment_bytes, PAGE)


def _repair_record(wal: bytearray, start: int, segment_bytes: int, *, headers: bool) -> None:
    """Repair a record's CRC over all of its pieces, and the headers of the pages between them."""
    size = int.from_bytes(wal[start : start + 4], "little")
    at, record, places = start, bytearray(), list[int]()
    while len(record) < size and at < len(wal):
        room = min(PAGE - at % PAGE, size - len(record))
        places += range(at, min(at + room, len(wal)))
        record += wal[at : at + room]
        at += room
        if len(record) < size and at + 40 <= len(wal) and at % PAGE == 0:
            info = wal[at + 2]
            if info & 8:
                return
            if headers:
                wal[at + 2] = info | 1
                wal[at + 16 : at + 20] = (size - len(record)).to_bytes(4, "little")
            at += 24 if at % segment_bytes else 40
    if len(record) == len(places) == size >= RECORD.size:
        crc = crc32c(bytes(record[:20]), crc32c(bytes(record[24:])))
        for place, byte in zip(places[20:24], crc.to_bytes(4, "little"), strict=True):
            wal[place] = byte
        wal[at : at + -at % 8] = bytes(-at % 8)


# Stories


def run_story(data: bytes) -> None:
    """Run records, crashes and switches, then edits, a first segment and a limit."""
    head, *steps = chunks(data, CHUNK) or [b""]
    choices = Choices(head)
    maker = WalMaker(Random(choices.byte()), segment_bytes=PAGE << (1 + choices.below(2)))
    edits = list[bytes]()
    for step in steps:
        if step[0] % 16 >= 12:
            edits.append(step)
        elif maker.end_lsn - maker.start_lsn < SEGMENTS_MAX * maker.segment_bytes:
            _tell(maker, Choices(step))
    size = min(len(maker.read(maker.start_lsn, maker.end_lsn)), 4 * maker.segment_bytes)
    limit = _near(maker, choices, size)
    if not edits:
        _check_untouched(maker, limit)
    wal = bytearray(maker.read(maker.start_lsn, maker.start_lsn + size))
    for edit in edits:
        _edit(wal, maker, Choices(edit[1:]))
    first = choices.below(4) * maker.segment_bytes
    first = first if first < limit else 0
    check_walk(bytes(wal[first:limit]), maker.start_lsn + first, maker.segment_bytes)
    check_pages(bytes(wal[first:limit]), maker.start_lsn + first, maker.segment_bytes)


def _tell(maker: WalMaker, choices: Choices) -> None:
    match choices.below(12):
        case 0:
            maker.switch(stale=choices.below(2) == 1)
        case 1 | 2:
            maker.record(up_to_page_end(maker, short_by=8 * choices.below(5)))
        case 3 | 4:
            maker.record(PAGE + choices.number(2) % (2 * PAGE))
        case 5 | 6:
            if maker.records:
                last = maker.records[-1]
                length = last.end_lsn - last.start_lsn
                maker.crash(last.start_lsn + choices.number(2) % max(1, length))
        case 7:
            maker.record(choices.below(60), info=choices.pick((0x00, 0x10, 0x30, 0xF0)), rmid=1)
        case _:
            maker.record(choices.number(2) % 700)


def _near(maker: WalMaker, choices: Choices, size: int) -> int:
    """Choose a limit: the end, or some bytes before or after a record's or a page's start."""
    kind, record, delta = choices.below(4), choices.byte(), choices.byte() - 128
    if kind == 0 or not maker.records:
        return size
    made = maker.records[record % len(maker.records)]
    place = (made.start_lsn, made.end_lsn, made.end_lsn.round_up(PAGE))[kind - 1]
    return min(max(place - maker.start_lsn + delta // (1 if delta % 2 else 8), 0), size)


def _check_untouched(maker: WalMaker, limit: int) -> None:
    """Check WAL as the maker made it: its own book is the second twin."""
    flush_lsn = maker.start_lsn + limit
    found = scan(
        maker, start_lsn=maker.start_lsn, limit_lsn=flush_lsn, segment_bytes=maker.segment_bytes
    )
    wanted = maker.end_before(flush_lsn)
    require((found.start_lsn, found.end_lsn) == wanted, "{}, the maker says {}", found, wanted)


def _edit(wal: bytearray, maker: WalMaker, choices: Choices) -> None:
    """Make one change in a record or a page header; half of them get the right CRC again."""
    kind, which, offset = choices.below(8), choices.byte(), choices.byte()
    value, repair = choices.byte(), choices.below(2)
    if kind < 4 and maker.records:
        start = maker.records[which % len(maker.records)].start_lsn - maker.start_lsn
        at = start + offset % 48
    else:
        start = -1
        at = which % max(1, len(wal) // PAGE) * PAGE + offset % 48
    if at >= len(wal):
        return
    wal[at] = value if kind % 2 else wal[at] ^ (1 << value % 8)
    if repair and 0 <= start < len(wal) - 24:
        _repair_record(wal, start, maker.segment_bytes, headers=False)


def _bytes_seeds() -> Iterable[bytes]:
    for seed in range(6):
        random = Random(seed)
        maker = random_wal(random, segment_bytes=PAGE << (1 + seed % 2), size=2 * PAGE)
        wal = maker.read(maker.start_lsn, maker.end_lsn)[: 4 * PAGE]
        yield HEAD.pack(seed % 2, 0, 0, 0) + wal
        yield HEAD.pack(seed % 2, 0, 0, len(wal) * 2 // 3) + wal
    maker = WalMaker(Random(1), segment_bytes=2 * PAGE)
    maker.record(20, info=0x10)
    maker.switch()
    maker.record(20)
    maker.switch(stale=True)
    maker.record(20)
    yield HEAD.pack(0, 0, 0, 0) + maker.read(maker.start_lsn, maker.end_lsn)


def _story_seeds() -> Iterable[bytes]:
    for seed in range(12):
        random = Random(seed)
        yield b"".join(random.randbytes(CHUNK) for _ in range(2 + seed))
        yield b"".join(
            bytes([random.randrange(12)]) + random.randbytes(CHUNK - 1) for _ in range(3 + seed)
        )


BYTES = Target(
    name="wal",
    about="raw WAL with right CRCs: scan, record_end_before, head_end against the twin",
    run=run_bytes,
    seeds=_bytes_seeds,
    bytes_max=HEAD.size + 6 * PAGE,
    alter=alter_bytes,
    repair=repair_bytes,
)
STORY = Target(
    name="wal_story",
    about="WAL made of records, crashes, switches and edits, against two twins",
    run=run_story,
    seeds=_story_seeds,
    bytes_max=40 * CHUNK,
    alter=chunked(CHUNK),
)
