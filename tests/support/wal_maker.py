"""Makes valid PostgreSQL WAL for tests and for the simulator: real pages, records, CRCs.

    maker = WalMaker(Random(7), segment_bytes=65536)
    maker.record(300); maker.switch(); maker.read(begin, end)

The bytes are those of PostgreSQL 15 (checked with pg_waldump in test_wal_format.py). There are long
and short page headers, continuation lengths and prev-links. There is XLOG_SWITCH with zeroed page
headers in its padding (or older pages), and OVERWRITE_CONTRECORD pages after `crash`. Records are
XLOG_NOOP with main data. Deterministic: contents come from the Random that is passed in, and from
nothing else. The maker writes byte by byte of payload and knows nothing of walformat's arithmetic,
so it can be its twin.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from random import Random

from crc32c import crc32c

from walkeeper_common.lsn import Lsn

PAGE = 8192
MAGIC_15 = 0xD110
SYSTEM_ID = 7_000_000_000_000_000_001
NOOP, SWITCH, OVERWRITE_CONTRECORD = 0x20, 0x40, 0xD0


@dataclass(frozen=True, slots=True)
class Made:
    """One record. `end_lsn` is PostgreSQL's EndRecPtr; `complete` is False once cut off.

    A switch ends with its segment for PostgreSQL; its own bytes end at `own_end_lsn`.
    """

    start_lsn: Lsn
    end_lsn: Lsn
    info: int
    complete: bool = True
    padding_bytes: int = 0

    @property
    def own_end_lsn(self) -> Lsn:
        return self.end_lsn - self.padding_bytes


class WalMaker:
    """A growing stream of WAL from `start_lsn` (a segment's start) to `end_lsn`."""

    def __init__(
        self,
        random: Random,
        *,
        segment_bytes: int = 65536,
        start_lsn: Lsn | None = None,
        timeline: int = 1,
        system_id: int = SYSTEM_ID,
        magic: int = MAGIC_15,
    ) -> None:
        self.segment_bytes, self.timeline = segment_bytes, timeline
        self.start_lsn = Lsn(segment_bytes) if start_lsn is None else start_lsn
        assert self.start_lsn % segment_bytes == 0, f"{self.start_lsn=} {segment_bytes=}"
        self.records: list[Made] = []
        self._random, self._system_id, self._magic = random, system_id, magic
        self._data = bytearray()
        self._previous = Lsn(0)
        self._overwriting = False

    @property
    def end_lsn(self) -> Lsn:
        return self.start_lsn + len(self._data)

    def read(self, begin: Lsn, end: Lsn) -> bytes:
        assert self.start_lsn <= begin <= end <= self.end_lsn, f"{begin=} {end=} {self.end_lsn=}"
        return bytes(self._data[begin - self.start_lsn : end - self.start_lsn])

    def record(self, payload: int | bytes, info: int = NOOP, rmid: int = 0) -> Made:
        """Append one record whose main data is `payload`, or that many random bytes."""
        if isinstance(payload, int):
            payload = self._random.randbytes(payload)
        if len(payload) == 0:
            body = b""
        elif len(payload) < 256:
            body = struct.pack("<BB", 255, len(payload)) + payload
        else:
            body = struct.pack("<BI", 254, len(payload)) + payload
        return self.record_body(body, info, rmid)

    def record_body(self, body: bytes, info: int, rmid: int) -> Made:
        """Append one record with these bytes after its header."""
        self._begin_page(0)
        start = self.end_lsn
        head = struct.pack("<IIQBBxx", 24 + len(body), 0, self._previous, info, rmid)
        crc = crc32c(head, crc32c(body))
        self._put(head + struct.pack("<I", crc) + body)
        self._data += bytes(-len(self._data) % 8)
        self._previous = start
        self.records.append(Made(start, self.end_lsn, info))
        return self.records[-1]

    def switch(self, *, stale: bool = False) -> Made:
        """Switch as pg_switch_wal() does: a record without data, then zeros to the segment's end.

        `stale`: the server died while it wrote the zeros, in a recycled segment. The WAL goes on
        after that segment.
        """
        made = self.record(b"", SWITCH)
        size = -self.end_lsn % self.segment_bytes
        self._data += self._died_in_padding(size) if stale else bytes(size)
        self.records[-1] = Made(made.start_lsn, self.end_lsn, SWITCH, padding_bytes=size)
        return self.records[-1]

    def _died_in_padding(self, size: int) -> bytes:
        """Return zeros, and from some sector on the pages of an older segment."""
        begin = self.end_lsn
        first = Lsn(self._random.randrange(begin, begin + size + 1)).round_up(512)
        old = bytearray()
        for page in range(begin.round_down(PAGE), begin + size, PAGE):
            head = (self._magic, 5, self.timeline, max(0, page - self.segment_bytes), 999)
            old += struct.pack("<HHIQI4x", *head) + self._random.randbytes(PAGE - 24)
        zeros = min(first - begin, size)
        return bytes(zeros) + bytes(old[begin % PAGE :][zeros:size])

    def crash(self, flush_lsn: Lsn) -> Lsn:
        """Forget WAL that the primary had not flushed; records that start below it stay, cut off.

        The restarted primary writes OVERWRITE_CONTRECORD from the first page that it misses, if
        the cut record reaches that page, else over the cut record. Return where it goes on.
        """
        whole = [made for made in self.records if made.own_end_lsn <= flush_lsn]
        cut = self.records[len(whole)] if len(whole) < len(self.records) else None
        self.records = whole
        self._previous = whole[-1].start_lsn if whole else Lsn(0)
        for made in reversed(whole):
            if made.complete:
                self._previous = made.start_lsn
                break
        end = whole[-1].end_lsn if whole else self.start_lsn
        if whole and not whole[-1].complete:
            self._overwriting = True  # OVERWRITE_CONTRECORD itself was cut: once more
        elif cut is not None:
            missing = flush_lsn.round_up(PAGE)
            if cut.start_lsn < missing < cut.end_lsn and cut.info != SWITCH:
                self.records.append(Made(cut.start_lsn, missing, cut.info, complete=False))
                self._overwriting, end = True, missing
        del self._data[end - self.start_lsn :]
        if self._overwriting:
            self.record(struct.pack("<Qq", self.records[-1].start_lsn, 0), OVERWRITE_CONTRECORD)
        return end

    def forget_after(self, end_lsn: Lsn) -> None:
        """Drop whole records, so that others can be made in their place: another history."""
        self.records = [made for made in self.records if made.own_end_lsn <= end_lsn]
        complete = [made.start_lsn for made in self.records if made.complete]
        self._previous = complete[-1] if complete else Lsn(0)
        next_lsn = max([end_lsn, *(made.end_lsn for made in self.records[-1:])])
        del self._data[next_lsn - self.start_lsn :]

    def end_before(self, flush_lsn: Lsn) -> tuple[Lsn | None, Lsn]:
        """Return (start, end) of the last record that has ended, as record_end_before's naive twin.

        An aborted record never has: cut where it was cut off, nothing would say that it was.
        """
        start, end = None, self.start_lsn
        for made in self.records:
            if made.complete and made.own_end_lsn <= flush_lsn:
                start, end = made.start_lsn, made.own_end_lsn
        return start, end

    def _put(self, data: bytes) -> None:
        while data:
            if len(self._data) % PAGE == 0:
                self._begin_page(len(data))
            room = PAGE - len(self._data) % PAGE
            self._data += data[:room]
            data = data[room:]

    def _begin_page(self, rem_len: int) -> None:
        if len(self._data) % PAGE:
            return
        info = 4 | (1 if rem_len else 0) | (8 if self._overwriting else 0)
        self._overwriting = False
        long = self.end_lsn % self.segment_bytes == 0
        info |= 2 if long else 0
        self._data += struct.pack(
            "<HHIQI4x", self._magic, info, self.timeline, self.end_lsn, rem_len
        )
        if long:
            self._data += struct.pack("<QII", self._system_id, self.segment_bytes, PAGE)


def nonce_message(
    nonce: bytes, *, prefix: bytes = b"walkeeper", transactional: bool = False
) -> bytes:
    """Return the main data that pg_logical_emit_message writes (xl_logical_message)."""
    head = struct.pack("<I?3xQQ", 5, transactional, len(prefix) + 1, len(nonce))
    return head + prefix + b"\0" + nonce


def random_wal(random: Random, *, segment_bytes: int, size: int) -> WalMaker:
    """Make WAL of at least `size` bytes, rich in the places where parsers go wrong."""
    maker = WalMaker(random, segment_bytes=segment_bytes)
    while maker.end_lsn - maker.start_lsn < size:
        kind = random.random()
        if kind < 0.04:
            maker.switch(stale=kind < 0.02)
        elif kind < 0.25:
            maker.record(up_to_page_end(maker, short_by=random.choice([0, 0, 8, 16, 24, 32])))
        elif kind < 0.35:
            maker.record(random.randrange(PAGE, 3 * PAGE))
        elif kind < 0.40:
            maker.record(random.randrange(segment_bytes, 2 * segment_bytes))
        elif kind < 0.50 and maker.records and maker.records[-1].complete:
            last = maker.records[-1]
            maker.crash(Lsn(random.randrange(last.start_lsn, last.end_lsn)))
        else:
            maker.record(random.randrange(0, 700))
    return maker


def up_to_page_end(maker: WalMaker, *, short_by: int) -> int:
    """Return the payload size with which a record ends `short_by` bytes before a page's end."""
    in_page = maker.end_lsn % PAGE
    if in_page == 0:
        in_page = 40 if maker.end_lsn % maker.segment_bytes == 0 else 24
    room = PAGE - in_page - short_by
    while room < 24 + 5 + 256:
        room += PAGE - (
            40 if (maker.end_lsn.round_down(PAGE) + PAGE) % maker.segment_bytes == 0 else 24
        )
    return room - 24 - 5
