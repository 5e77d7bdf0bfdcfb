"""A logical log's bytes: what is whole is found, from every place, and nothing else is."""

from __future__ import annotations

import random

import pytest

from tests.support.entry_maker import LogBytes
from walkeeper_common.entries import (
    FRAME_BYTES_MAX,
    EntryKind,
    EntryWalk,
    Frame,
    SegmentHeader,
    record_end_before,
    scan,
)
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.walformat import InvalidWal, RecordEnd
from walkeeper_proposer.logical.entry_writer import EntryWriter

SEGMENT = 1024
START = Lsn(SEGMENT)


class Made:
    """Entries of drawn sizes, written by the product; `ends` are (start, end, end LSN, payload)."""

    def __init__(self, seed: int, entries: int, sizes: tuple[int, ...]) -> None:
        draw = random.Random(seed)
        self.log = LogBytes(START)
        self.ends: list[tuple[Lsn, Lsn, Lsn, bytes]] = []
        writer = EntryWriter(START, end_lsn=Lsn(5), timeline=3, segment_bytes=SEGMENT)
        for _ in range(entries):
            start, payload = writer.position, draw.randbytes(draw.choice(sizes))
            writer.begin(EntryKind.TRANSACTION)
            for at in range(0, len(payload), 100):
                writer.add(payload[at : at + 100])
            writer.end(writer.end_lsn + draw.randint(1, 50))
            self.ends.append((start, writer.position, writer.end_lsn, payload))
        self.log.data += writer.take()[1]


SIZES = (0, 1, 40, 300, 900, SEGMENT - 96, SEGMENT - 95, 3 * SEGMENT + 17)


def entries_of(frames: list[Frame]) -> list[bytes]:
    found, payload = [], b""
    for frame in frames:
        payload += frame.payload
        if frame.is_last:
            found.append(payload)
            payload = b""
    return found


@pytest.mark.parametrize("seed", range(8))
def test_written_entries_are_read_from_the_start_and_from_every_segment(seed: int) -> None:
    made = Made(seed, 40, SIZES)
    assert entries_of(made.log.frames(START, SEGMENT)) == [e[3] for e in made.ends]
    for segment in range(START, made.log.end, SEGMENT):
        walk = EntryWalk(made.log, Lsn(segment), made.log.end, SEGMENT)
        frames = [frame for frame in walk if frame.position >= segment]
        while frames and not frames[0].is_first:
            frames.pop(0)
        expected = [payload for start, _, _, payload in made.ends if start >= segment]
        assert entries_of(frames) == expected, f"{segment=:X}"
        assert walk.end_lsn == made.ends[-1][2]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("chunk", [61, 700, 5000])
def test_a_walk_goes_on_when_its_limit_is_raised(seed: int, chunk: int) -> None:
    made = Made(seed, 20, SIZES)
    walk = EntryWalk(made.log, START, START, SEGMENT)
    frames = []
    while walk.limit < made.log.end:
        walk.limit = min(walk.limit + chunk, made.log.end)
        frames += list(walk)
    assert entries_of(frames) == [e[3] for e in made.ends]


@pytest.mark.parametrize("seed", range(4))
def test_the_last_whole_entry_is_found_below_every_byte(seed: int) -> None:
    made = Made(seed, 12, SIZES)
    for flush in range(START, made.log.end + 1):
        whole = [RecordEnd(s, e) for s, e, _, _ in made.ends if e <= flush]
        found = record_end_before(
            made.log, first_lsn=START, flush_lsn=Lsn(flush), segment_bytes=SEGMENT
        )
        assert found == (whole[-1] if whole else RecordEnd(None, START)), f"{flush=:X}"


def test_an_entry_that_began_before_the_log_has_no_start() -> None:
    made = Made(1, 1, (5 * SEGMENT,))
    start, end, *_ = made.ends[0]
    assert start == START
    found = record_end_before(
        made.log, first_lsn=START + 2 * SEGMENT, flush_lsn=end, segment_bytes=SEGMENT
    )
    assert found == RecordEnd(None, end)


@pytest.mark.parametrize("seed", range(3))
def test_a_scan_ends_before_the_first_damaged_byte(seed: int) -> None:
    made = Made(seed, 10, (0, 40, 300, SEGMENT + 100))
    draw = random.Random(seed)
    for at in range(len(made.log.data)):
        whole = made.log.data[at]
        made.log.data[at] ^= 1 << draw.randrange(8)
        ended = [e for _, e, _, _ in made.ends if e <= START + at]
        end = scan(made.log, start_lsn=START, limit_lsn=made.log.end, segment_bytes=SEGMENT)
        assert end.end_lsn == (ended[-1] if ended else START), f"{at=}: {end}"
        made.log.data[at] = whole


def test_damage_below_what_was_durable_is_corruption() -> None:
    made = Made(5, 6, (300,))
    start, _, _, _ = made.ends[-1]
    made.log.data[start - START + 60] ^= 1
    with pytest.raises(InvalidWal, match="CRC"):
        record_end_before(made.log, first_lsn=START, flush_lsn=made.log.end, segment_bytes=SEGMENT)


def test_zeros_after_the_log_end_a_scan() -> None:
    made = Made(6, 5, (100,))
    end, limit = made.log.end, made.log.end + 3000
    made.log.data += bytes(3000)
    found = scan(made.log, start_lsn=START, limit_lsn=limit, segment_bytes=SEGMENT)
    assert (found.end_lsn, "zeros" in found.reason) == (end, True)


def test_a_frame_in_another_place_is_no_frame() -> None:
    made = Made(7, 3, (50,))
    first, second = made.ends[0], made.ends[1]
    moved = made.log.read(second[0], second[1])
    at = made.ends[2][0] - START
    made.log.data[at : at + len(moved)] = moved
    assert first[1] - first[0] != len(moved)  # behind a segment header: the same bytes otherwise
    with pytest.raises(InvalidWal, match="no frame"):
        made.log.frames(START, SEGMENT)


def test_a_large_entry_leaves_in_frames() -> None:
    writer = EntryWriter(Lsn(1 << 20), end_lsn=Lsn(5), timeline=1, segment_bytes=1 << 20)
    writer.begin(EntryKind.TRANSACTION)
    payload = random.Random(1).randbytes(3 * FRAME_BYTES_MAX)
    writer.add(payload)
    assert writer.made_bytes >= 2 * FRAME_BYTES_MAX  # not held back until the entry ends
    writer.end(Lsn(9))
    log = LogBytes(Lsn(1 << 20))
    log.data += writer.take()[1]
    frames = log.frames(log.begin, 1 << 20)
    assert len(frames) >= 3 and entries_of(frames) == [payload]
    assert [f.end_lsn for f in frames] == [*[0] * (len(frames) - 1), 9]


def test_an_abandoned_entry_is_whole_and_void() -> None:
    writer = EntryWriter(Lsn(1 << 20), end_lsn=Lsn(5), timeline=1, segment_bytes=1 << 20)
    writer.begin(EntryKind.TRANSACTION)
    writer.add(b"a" * 100)
    writer.abandon()  # no byte of it has left, so it never began
    assert writer.position == 1 << 20 and not writer.is_inside
    writer.begin(EntryKind.TRANSACTION)
    writer.add(b"b" * (FRAME_BYTES_MAX + 1))
    writer.abandon()
    log = LogBytes(Lsn(1 << 20))
    log.data += writer.take()[1]
    last = log.frames(log.begin, 1 << 20)[-1]
    assert (last.kind, last.is_last, last.end_lsn) == (EntryKind.ABANDONED, True, 5)


def test_a_header_describes_the_entry_that_goes_on_after_it() -> None:
    made = Made(8, 4, (3 * SEGMENT,))
    for segment in range(START, made.log.end, SEGMENT):
        position = Lsn(segment)
        header = SegmentHeader.unpack(
            made.log.read(position, position + SegmentHeader.BYTES), position
        )
        inside = [e for e in made.ends if e[0] < position < e[1]]
        ended = [e[2] for e in made.ends if e[1] <= position]
        assert header.end_lsn == (ended[-1] if ended else 5)
        assert header.entry_start == (inside[0][0] if inside else 0)
        assert header.timeline == 3
