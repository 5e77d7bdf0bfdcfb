"""Record boundaries on made WAL, against the maker's own book."""

from __future__ import annotations

import re
import time
from random import Random
from unittest.mock import patch

import pytest

from tests.support.wal_maker import PAGE, SWITCH, WalMaker, random_wal, up_to_page_end
from walkeeper_common.errors import CorruptWal
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.walformat import (
    InvalidWal,
    RecordEnd,
    has_telling_record,
    record_end_before,
    scan,
)
from walkeeper_common.postgres.walpages import (
    BKP_REMOVABLE,
    FIRST_IS_OVERWRITE_CONTRECORD,
    header_bytes,
    skip_payload,
)

SMALL = 65536


class Altered:
    """A stream with some bytes changed."""

    def __init__(self, wal: WalMaker, changes: dict[Lsn, bytes], end: Lsn | None = None) -> None:
        self.start_lsn, self.segment_bytes = wal.start_lsn, wal.segment_bytes
        self.data = bytearray(wal.read(wal.start_lsn, end or wal.end_lsn))
        for lsn, data in changes.items():
            offset = lsn - wal.start_lsn
            self.data += bytes(max(0, offset + len(data) - len(self.data)))
            self.data[offset : offset + len(data)] = data

    @property
    def end_lsn(self) -> Lsn:
        return self.start_lsn + len(self.data)

    def read(self, begin: Lsn, end: Lsn) -> bytes:
        assert self.start_lsn <= begin <= end <= self.end_lsn, f"{begin=} {end=}"
        return bytes(self.data[begin - self.start_lsn : end - self.start_lsn])


def end_before(wal: WalMaker | Altered, flush_lsn: Lsn, first_lsn: Lsn | None = None) -> RecordEnd:
    first_lsn = wal.start_lsn if first_lsn is None else first_lsn
    return record_end_before(
        wal, first_lsn=first_lsn, flush_lsn=flush_lsn, segment_bytes=wal.segment_bytes
    )


def scan_end(wal: WalMaker | Altered, start: Lsn, limit: Lsn | None = None) -> Lsn:
    limit = wal.end_lsn if limit is None else limit
    return scan(wal, start_lsn=start, limit_lsn=limit, segment_bytes=wal.segment_bytes).end_lsn


def interesting(wal: WalMaker, random: Random) -> list[Lsn]:
    points = {Lsn(random.randrange(wal.start_lsn, wal.end_lsn)) for _ in range(100)}
    for made in wal.records:
        for place in (made.start_lsn, made.end_lsn, made.end_lsn.round_up(PAGE)):
            points |= {place + delta for delta in (*range(-9, 10), 16, 20, 23, 24, 25, 39, 40, 41)}
    return sorted(p for p in points if wal.start_lsn <= p <= wal.end_lsn)


@pytest.mark.parametrize("seed", range(30))
def test_every_cut_of_made_wal_ends_where_the_maker_says(seed: int) -> None:
    random = Random(seed)
    wal = random_wal(random, segment_bytes=16384 << random.randrange(3), size=60000)
    for flush_lsn in interesting(wal, random):
        assert (want := RecordEnd(*wal.end_before(flush_lsn))) == end_before(wal, flush_lsn)
        found = scan(
            wal, start_lsn=wal.start_lsn, limit_lsn=flush_lsn, segment_bytes=wal.segment_bytes
        )
        assert RecordEnd(found.start_lsn, found.end_lsn) == want, f"{flush_lsn=} {found=}"


def test_every_single_byte_is_a_possible_cut() -> None:
    wal = WalMaker(Random(3), segment_bytes=16384)
    wal.record(up_to_page_end(wal, short_by=16))  # the next header is split
    wal.record(20)
    wal.record(up_to_page_end(wal, short_by=0))
    wal.record(9000)
    cut = wal.records[-1]
    wal.crash(cut.start_lsn + 5000)
    wal.record(0)
    wal.switch()
    wal.record(100)
    for flush_lsn in range(wal.start_lsn, wal.end_lsn + 1):
        want = RecordEnd(*wal.end_before(Lsn(flush_lsn)))
        assert end_before(wal, Lsn(flush_lsn)) == want, f"{Lsn(flush_lsn)=}"


@pytest.mark.parametrize("seed", range(20))
def test_a_log_that_starts_inside_a_record_ends_at_its_start_until_one_ends(seed: int) -> None:
    random = Random(seed)
    wal = random_wal(random, segment_bytes=16384, size=80000)
    for first_lsn in map(Lsn, range(wal.start_lsn, wal.end_lsn, wal.segment_bytes)):
        for flush_lsn in interesting(wal, random)[::3]:
            if flush_lsn < first_lsn:
                continue
            start, end = wal.end_before(flush_lsn)
            if end <= first_lsn:
                start, end = None, first_lsn
            elif start is not None and start < first_lsn:
                start = None
            found = end_before(wal, flush_lsn, first_lsn)
            assert found == RecordEnd(start, end), f"{first_lsn=} {flush_lsn=}"
            assert scan_end(wal, first_lsn, flush_lsn) == end, f"{first_lsn=} {flush_lsn=}"


def test_a_record_of_many_segments_is_walked_with_bounded_reads() -> None:
    wal = WalMaker(Random(1), segment_bytes=1 << 20)
    wal.record(10)
    wal.record(5 << 20)
    wal.record(10)
    big = wal.records[1]
    assert end_before(wal, big.end_lsn - 1) == RecordEnd(
        wal.records[0].start_lsn, wal.records[0].end_lsn
    )
    assert end_before(wal, wal.end_lsn).end_lsn == wal.end_lsn
    with patch.object(wal, "read", wraps=wal.read) as read:
        end_before(wal, big.end_lsn - 1)
    sizes = [end_lsn - begin_lsn for (begin_lsn, end_lsn), _ in read.call_args_list]
    assert max(sizes) <= 1 << 20, f"{max(sizes)=}"


def unchecked_bits(lsn: Lsn, segment_bytes: int, *, is_first: bool) -> int:
    """Return the bits of a page header's byte that may differ as far as the format goes."""
    offset = lsn % PAGE
    if offset == 2:  # before the log's first page there may be a record that it cuts off
        return BKP_REMOVABLE | (FIRST_IS_OVERWRITE_CONTRECORD if is_first else 0)
    if 4 <= offset < 8:
        return 0xFF  # the timeline may be a later one
    return 0xFF if lsn % segment_bytes in range(24, 32) else 0  # the system identifier


def delicate_wal(random: Random) -> WalMaker:
    """Make pages that start with a record, inside one, after a cut one and after a switch."""
    wal = WalMaker(random, segment_bytes=16384)
    for size in (50, 300, 9000, 20, 20000, 5):
        wal.record(size)
    wal.record(up_to_page_end(wal, short_by=0))
    wal.record(700)
    cut = wal.record(20_000)
    wal.crash(cut.start_lsn + 9000)
    for size in (101, 102, 103):
        wal.record(size)
    wal.switch()
    for size in (3, 9001, 33):
        wal.record(size)
    return wal


def test_any_flipped_bit_below_the_end_is_corruption_or_seen_by_a_scan() -> None:
    """Seed 610179179 of the busy simulator: a history called two safekeepers' logs the same. One of
    them had a bit of a padding that the other did not have."""
    random = Random(11)
    wal = delicate_wal(random)
    cut_off = next(made for made in wal.records if not made.complete)
    switch = next(made for made in wal.records if made.info == SWITCH)
    places = {Lsn(random.randrange(wal.start_lsn, wal.end_lsn)) for _ in range(700)}
    for page_lsn in range(wal.start_lsn, wal.end_lsn, PAGE):
        places |= {Lsn(page_lsn + offset) for offset in range(40)}
    for made in wal.records:
        places |= {made.end_lsn - back for back in range(1, 9)}
    checked = 0
    for lsn in sorted(places):
        old, is_first = wal.read(lsn, lsn + 1)[0], lsn < wal.start_lsn + PAGE
        unchecked = unchecked_bits(lsn, wal.segment_bytes, is_first=is_first)
        if cut_off.start_lsn <= lsn < cut_off.end_lsn or lsn < wal.start_lsn + 2:
            continue  # wal_store syncs the ones before it relies on them; the other is the magic
        if switch.start_lsn + 24 <= lsn < switch.end_lsn:
            continue  # no reader looks at the padding of a segment
        for bit in (1 << number for number in range(8)):
            if not bit & unchecked:
                found = scan_end(Altered(wal, {lsn: bytes([old ^ bit])}), wal.start_lsn)
                assert found <= lsn, f"{lsn=} {bit=} {found=}"
                checked += 1
    assert checked > 5000, f"{checked=}"


def test_a_damaged_record_that_is_all_there_is_corruption() -> None:
    wal = WalMaker(Random(2), segment_bytes=16384)
    for _ in range(300):
        wal.record(100)
    last = wal.records[-1]
    for lsn in (last.start_lsn + 30, last.start_lsn + 8, last.start_lsn + 4, last.start_lsn):
        altered = Altered(wal, {lsn: b"\x55"})
        with pytest.raises(InvalidWal, match=re.escape(str(last.start_lsn))):
            end_before(altered, wal.end_lsn)
    prefix = Altered(wal, {last.start_lsn + 8: b"\x55"}, last.start_lsn + 20)
    with pytest.raises(CorruptWal, match="prev-link"):
        end_before(prefix, prefix.end_lsn)


def test_zeros_that_are_no_switch_padding_are_corruption() -> None:
    wal = WalMaker(Random(2), segment_bytes=16384)
    wal.record(100)
    end = wal.end_lsn
    for size in (4, 50, 9000, 16384):
        altered = Altered(wal, {end: bytes(size)})
        where = f"invalid record length at {end}: wanted 24, got 0|no page header at 0/8000"
        with pytest.raises(CorruptWal, match=where):
            end_before(altered, altered.end_lsn)
        assert scan_end(altered, wal.start_lsn) == end
    empty = Altered(wal, {wal.start_lsn: bytes(16384)}, wal.start_lsn)
    with pytest.raises(CorruptWal, match="no page header"):
        end_before(empty, empty.end_lsn)


def test_a_page_header_that_does_not_fit_is_corruption_even_when_it_is_cut() -> None:
    wal = WalMaker(Random(2), segment_bytes=16384)
    wal.record(30000)
    page_lsn = wal.start_lsn + PAGE
    for offset, data in ((0, b"\0\0"), (2, b"\0"), (8, b"\0\0\0"), (16, b"\1\1")):
        altered = Altered(wal, {page_lsn + offset: data})
        for flush_lsn in (page_lsn + 20, page_lsn + 24, page_lsn + 500, wal.end_lsn):
            with pytest.raises(CorruptWal, match="0/6"):
                end_before(altered, flush_lsn)
        assert scan_end(altered, wal.start_lsn) == wal.start_lsn


def test_stale_pages_of_an_older_segment_are_not_believed() -> None:
    random = Random(5)
    old = WalMaker(random, segment_bytes=16384, start_lsn=Lsn(16384))
    new = WalMaker(random, segment_bytes=16384, start_lsn=Lsn(16384 * 2))
    for wal in (old, new):
        while wal.end_lsn - wal.start_lsn < 16000:
            wal.record(70)
    cut = next(made.end_lsn for made in new.records if made.end_lsn > new.start_lsn + PAGE + 99)
    stale = old.read(old.start_lsn + (cut - new.start_lsn), old.end_lsn)
    assert scan_end(Altered(new, {cut: stale}, cut), new.start_lsn) == cut
    page_end = new.records[-1].start_lsn.round_down(PAGE)
    altered = Altered(new, {page_end: old.read(old.start_lsn + PAGE, old.end_lsn)})
    assert scan_end(altered, new.start_lsn) <= page_end


def test_a_timeline_never_goes_back() -> None:
    wal = WalMaker(Random(5), segment_bytes=16384, timeline=3)
    for _ in range(100):
        wal.record(100)
    page_lsn = wal.start_lsn + PAGE
    assert scan_end(Altered(wal, {page_lsn + 4: b"\4"}), wal.start_lsn) == wal.end_lsn
    assert scan_end(Altered(wal, {page_lsn + 4: b"\2"}), wal.start_lsn) <= page_lsn


def test_an_unknown_page_magic_is_accepted_but_may_not_change() -> None:
    wal = WalMaker(Random(5), segment_bytes=16384, magic=0xD1FF)
    for _ in range(100):
        wal.record(100)
    assert end_before(wal, wal.end_lsn).end_lsn == wal.end_lsn
    altered = Altered(wal, {wal.start_lsn + PAGE: b"\x10"})
    assert scan_end(altered, wal.start_lsn) <= wal.start_lsn + PAGE


def test_a_switch_record_with_data_is_corruption_from_wherever_it_is_met() -> None:
    """PostgreSQL writes none. Data that goes on over pages would look like another record's end.
    tests/proof/fuzz/findings/wal: it was a torn record to one walk, and corruption to the other."""
    wal = WalMaker(Random(8), segment_bytes=16384)
    end = wal.record(100).end_lsn
    wal.record(20_000, SWITCH)
    with pytest.raises(CorruptWal, match="has data in it"):
        end_before(wal, wal.end_lsn)
    assert scan_end(wal, wal.start_lsn) == end


def test_bytes_after_a_switch_are_not_looked_at() -> None:
    """PostgreSQL skips it unseen. It writes zeros; if it dies while it does, older pages stay there
    in a recycled segment, and commits behind them are acknowledged."""
    for seed in range(24):
        wal = WalMaker(Random(seed), segment_bytes=32768)
        wal.record(200)
        wal.record(up_to_page_end(wal, short_by=(0, 8, 16, 24, 3000, 3008)[seed % 6]))
        switch = wal.switch(stale=seed % 4 > 0)
        wal.record(20_000)
        wal.record(9)
        first_lsn = wal.start_lsn if seed % 2 else switch.end_lsn
        for flush_lsn in interesting(wal, Random(seed)):
            if flush_lsn >= first_lsn:
                start, end = wal.end_before(flush_lsn)
                want = RecordEnd(start, end) if end > first_lsn else RecordEnd(None, first_lsn)
                assert end_before(wal, flush_lsn, first_lsn) == want, f"{seed=} {flush_lsn=}"
        assert scan_end(wal, wal.start_lsn) == wal.end_lsn
        other_link = Altered(wal, {switch.end_lsn + 48: b"\1"})
        assert scan_end(other_link, wal.start_lsn) == switch.own_end_lsn


def test_the_tail_of_a_long_record_that_looks_like_a_switch_is_none() -> None:
    wal = WalMaker(Random(5), segment_bytes=32768)
    wal.record(bytes(up_to_page_end(wal, short_by=0) + PAGE - 8) + bytes((SWITCH, 0, 0, 0)) * 2)
    wal.record(50)
    assert end_before(wal, wal.end_lsn).end_lsn == wal.end_lsn
    for first_lsn in (wal.start_lsn + PAGE, wal.start_lsn + 2 * PAGE):
        assert scan_end(wal, first_lsn) == wal.end_lsn, f"{first_lsn=}"


def test_positions_over_page_headers_agree_with_counting() -> None:
    random = Random(9)
    for _ in range(300):
        page_lsn, size = Lsn(PAGE * random.randrange(2, 40)), random.randrange(60000)
        lsn, left = page_lsn, size
        while left:
            if lsn % PAGE == 0:
                lsn = lsn + header_bytes(lsn, 32768)
            step = min(left, PAGE - lsn % PAGE)
            lsn, left = lsn + step, left - step
        assert skip_payload(page_lsn, size, 32768) == lsn, f"{page_lsn=} {size=}"


def test_a_commit_or_checkpoint_in_a_page_is_found() -> None:
    wal = WalMaker(Random(9))
    for _ in range(20):
        wal.record(100)
    page = wal.read(wal.start_lsn, wal.end_lsn)
    assert not has_telling_record(wal.start_lsn, page)
    wal.record(20, info=0x80, rmid=1)
    page = wal.read(wal.start_lsn, wal.end_lsn)
    assert has_telling_record(wal.start_lsn, page)
    assert not has_telling_record(wal.start_lsn, page[:-10])
    assert not has_telling_record(wal.start_lsn + PAGE, page)


def test_16_mb_of_small_records_are_scanned_in_a_fraction_of_a_second() -> None:
    wal = WalMaker(Random(9), segment_bytes=1 << 24)
    while wal.end_lsn - wal.start_lsn < (1 << 24) - 200:
        wal.record(90)
    began = time.process_time()
    assert scan_end(wal, wal.start_lsn) == wal.end_lsn
    assert time.process_time() - began < 2.0
