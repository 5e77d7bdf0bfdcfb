"""Records are found as they were made, whole and damaged, by both engines alike."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.history.engines_here import engines_here
from tests.history.made_wal import (
    SEGMENT_BYTES,
    MemoryFiles,
    planned,
    random_body,
    write_segments,
)
from tests.support.wal_maker import WalMaker, random_wal, up_to_page_end
from walkeeper_wal.records.segment import (
    copy_payload,
    end_lsn_at,
    lsn_at,
    lsn_of,
    offset_of,
    page_at,
    page_offset,
    payload_bytes,
)
from walkeeper_wal.records.walk import BLOCKS_PER_RECORD_MAX, Buffers
from walkeeper_wal.sources.plan import PlannedSegment, Problem
from walkeeper_wal.sources.reading import Batch, SegmentReader
from walkeeper_wal.sources.wal_files import WalFiles

ENGINES = engines_here()
MANY = settings(max_examples=40)


def body_wal(random: Random, size: int, *, switches: float = 0.02) -> WalMaker:
    """Make records of all resource managers with all kinds of headers."""
    maker = WalMaker(random, segment_bytes=SEGMENT_BYTES)
    while maker.end_lsn - maker.start_lsn < size:
        if random.random() < switches:
            maker.switch()
        else:
            maker.record_body(random_body(random), random.randrange(256) & ~0x40, 10)
    return maker


def rows_of(batch: Batch) -> list[tuple[object, ...]]:
    """Return everything in a batch, in a form that can be compared."""
    records, blocks = batch.records, batch.blocks
    fields = [name for name in records.dtype.names or () if name != "padding"]
    of_blocks = [name for name in blocks.dtype.names or () if name not in ("padding", "record")]
    taken: list[list[tuple[object, ...]]] = [[] for _ in records]
    for block in blocks:
        taken[int(block["record"])].append(tuple(block[name].item() for name in of_blocks))
    return [
        (start, end, timeline, *(row[name].item() for name in fields), tuple(blocks_of))
        for start, end, timeline, row, blocks_of in zip(
            batch.start_lsn().tolist(),
            batch.end_lsn().tolist(),
            batch.timeline().tolist(),
            records,
            taken,
            strict=True,
        )
    ]


def read_all(
    files: WalFiles,
    segments: list[PlannedSegment],
    engine: str,
    *,
    check_crc: bool = True,
    buffers: Buffers | None = None,
) -> tuple[list[tuple[object, ...]], list[Problem]]:
    reader = SegmentReader(files, engine_name=engine, check_crc=check_crc, buffers=buffers)
    rows, problems = [], []
    for index in range(len(segments)):
        reading = reader.read(segments, index)
        for batch in reading:
            rows += rows_of(batch)
        problems += reading.problems
    return rows, problems


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(12))
def test_every_complete_record_is_found_once(tmp_path: Path, seed: int, engine: str) -> None:
    maker = random_wal(Random(seed), segment_bytes=SEGMENT_BYTES, size=6 * SEGMENT_BYTES)
    segments = planned(maker, write_segments(maker, tmp_path))
    rows, problems = read_all(MemoryFiles(tmp_path), segments, engine)
    expected = [(made.start_lsn, made.end_lsn) for made in maker.records if made.complete]
    found = [(row[0], row[1]) for row in rows]
    assert found == expected
    assert not [problem for problem in problems if problem.fatal]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("short_by", [8, 16])
def test_a_switch_may_end_in_a_segment_of_which_it_is_all(
    tmp_path: Path, short_by: int, engine: str
) -> None:
    maker = WalMaker(Random(1), segment_bytes=SEGMENT_BYTES)
    while maker.end_lsn % SEGMENT_BYTES < SEGMENT_BYTES - 8192:
        maker.record(3000)
    maker.record(up_to_page_end(maker, short_by=short_by))
    made = maker.switch()
    assert made.end_lsn - maker.start_lsn == 2 * SEGMENT_BYTES
    maker.record(100)
    segments = planned(maker, write_segments(maker, tmp_path))
    rows, problems = read_all(MemoryFiles(tmp_path), segments, engine)
    expected = [(made.start_lsn, made.end_lsn) for made in maker.records]
    assert [row[:2] for row in rows] == expected and not problems


@MANY
@given(seed=st.integers(0, 1 << 32))
def test_engines_agree_on_whole_wal(tmp_path: Path, seed: int) -> None:
    maker = body_wal(Random(seed), 2 * SEGMENT_BYTES)
    segments = planned(maker, write_segments(maker, tmp_path))
    files = MemoryFiles(tmp_path)
    compiled, *others = (read_all(files, segments, engine) for engine in ENGINES)
    assert others == [compiled] * len(others)
    assert len(compiled[0]) == len(maker.records)


@MANY
@given(
    seed=st.integers(0, 1 << 32),
    check_crc=st.booleans(),
    damage=st.lists(
        st.tuples(st.integers(0, 2 * SEGMENT_BYTES - 1), st.integers(1, 255)), max_size=6
    ),
)
def test_engines_agree_on_damaged_wal(
    tmp_path: Path, seed: int, check_crc: bool, damage: list[tuple[int, int]]
) -> None:
    maker = body_wal(Random(seed), 2 * SEGMENT_BYTES)
    segments = planned(maker, write_segments(maker, tmp_path))
    files = MemoryFiles(tmp_path)
    whole, _ = read_all(files, segments, ENGINES[0])
    for place, flip in damage:
        path = segments[place // SEGMENT_BYTES].path
        data = files.read(path).copy()
        data[place % SEGMENT_BYTES] ^= flip
        files.changed[path] = data
    compiled, *others = (
        read_all(files, segments, engine, check_crc=check_crc) for engine in ENGINES
    )
    assert others == [compiled] * len(others)
    if check_crc:
        rows, problems = compiled
        # A page header's timeline is under no checksum; all other fields of a row are right.
        known = {row[:2] + row[3:] for row in whole}
        assert {row[:2] + row[3:] for row in rows} <= known
        assert len(rows) == len(whole) or problems


@pytest.mark.parametrize("engine", ENGINES)
def test_small_buffers_give_the_same_rows_in_more_batches(tmp_path: Path, engine: str) -> None:
    maker = body_wal(Random(5), 2 * SEGMENT_BYTES)
    segments = planned(maker, write_segments(maker, tmp_path))
    files = MemoryFiles(tmp_path)
    small = Buffers(records_max=7, blocks_max=BLOCKS_PER_RECORD_MAX)
    assert read_all(files, segments, engine, buffers=small) == read_all(files, segments, engine)


def test_a_missing_segment_leaves_out_only_what_it_held(tmp_path: Path) -> None:
    maker = body_wal(Random(3), 4 * SEGMENT_BYTES, switches=0)
    segments = planned(maker, write_segments(maker, tmp_path))
    del segments[1]
    rows, problems = read_all(MemoryFiles(tmp_path), segments, ENGINES[0])
    missing = range(2 * SEGMENT_BYTES, 3 * SEGMENT_BYTES)
    expected = {int(made.start_lsn) for made in maker.records}
    crossing = max(start for start in expected if start < missing.start)
    lost = {start for start in expected if start in missing} | {crossing}
    assert {row[0] for row in rows} == expected - lost
    assert [problem.fatal for problem in problems] == [True]
    assert "is missing" in problems[0].reason


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("pages", [1, 2, 3, 5])
def test_an_archive_may_end_in_a_record_of_any_length(
    tmp_path: Path, pages: int, engine: str
) -> None:
    """Its rest is in the segment that is not archived yet."""
    maker = WalMaker(Random(pages), segment_bytes=SEGMENT_BYTES)
    while maker.end_lsn % SEGMENT_BYTES < SEGMENT_BYTES - pages * 8192:
        maker.record(500)
    begun = maker.record(pages * 8192 + 10_000)
    assert begun.end_lsn > maker.start_lsn + SEGMENT_BYTES
    paths = write_segments(maker, tmp_path)
    segments = planned(maker, paths[:1])
    rows, problems = read_all(MemoryFiles(tmp_path), segments, engine)
    expected = [(made.start_lsn, made.end_lsn) for made in maker.records if made is not begun]
    assert [row[:2] for row in rows] == expected
    assert [(problem.start_lsn, problem.fatal) for problem in problems] == [
        (begun.start_lsn, False)
    ]
    assert "the log is taken to end there" in problems[0].reason


def test_a_page_of_zeros_is_named_and_passed_over(tmp_path: Path) -> None:
    maker = body_wal(Random(4), 3 * SEGMENT_BYTES, switches=0)
    segments = planned(maker, write_segments(maker, tmp_path))
    files = MemoryFiles(tmp_path)
    data = files.read(segments[0].path).copy()
    data[8192 * 3 : 8192 * 4] = 0
    files.changed[segments[0].path] = data
    rows, problems = read_all(files, segments, ENGINES[0])
    assert len(problems) == 1 and problems[0].fatal and problems[0].start_lsn is not None
    assert problems[0].end_lsn == SEGMENT_BYTES + 8192 * 4
    assert {row[0] for row in rows} < {int(made.start_lsn) for made in maker.records}
    assert max(int(str(row[0])) for row in rows) == maker.records[-1].start_lsn


def test_positions_map_both_ways() -> None:
    size = 1 << 20
    offsets = np.arange(0, payload_bytes(size), 8)
    lsns = lsn_at(offsets, 5 * size, size)
    assert [offset_of(lsn - 5 * size) for lsn in lsns.tolist()] == offsets.tolist()
    data = np.arange(size, dtype=np.int64).astype(np.uint8)
    payload = np.empty(payload_bytes(size), np.uint8)
    copy_payload(data, payload)
    assert np.array_equal(payload[offsets], data[lsns - 5 * size])
    assert all(page_at(page_offset(page)) == page for page in range(size // 8192))


def test_positions_behind_a_segment_are_those_of_the_next_ones() -> None:
    size = 1 << 16
    offsets = np.arange(0, 3 * payload_bytes(size), 8)
    every = [lsn_of(offset, 5 * size, size) for offset in offsets.tolist()]
    assert lsn_at(offsets, 5 * size, size).tolist() == every
    within = offsets < payload_bytes(size)
    assert lsn_at(offsets[within], 5 * size, size).tolist() == every[: int(within.sum())]
    assert lsn_at(offsets[:0], 5 * size, size).tolist() == []


def test_a_record_that_ends_with_its_page_ends_at_the_boundary() -> None:
    first_page = 8192 - 40
    ends = np.array([first_page, first_page + 8, payload_bytes(1 << 20)])
    assert end_lsn_at(ends, 0, 1 << 20).tolist() == [8192, 8192 + 24 + 8, 1 << 20]
