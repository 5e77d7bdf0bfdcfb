"""No bytes make a table wrong or a reader fall over: damage of every kind, in every table."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.history.made_wal import SEGMENT_BYTES, MemoryFiles, planned, write_segments
from tests.history.test_reading import body_wal
from walkeeper_history.find import deeds_of_segment, findings
from walkeeper_history.tables import TABLE_NAMES, column_names, table
from walkeeper_wal.records.segment import Bytes
from walkeeper_wal.sources.plan import PlannedSegment
from walkeeper_wal.sources.reading import SegmentReader

MANY = settings(max_examples=60)
WHOLE = 3 * SEGMENT_BYTES


def starts(
    files: MemoryFiles, segments: list[PlannedSegment], *, check_crc: bool = True
) -> tuple[dict[int, bytes], int]:
    """Return records by where they start, with all bytes, and the number of fatal problems."""
    reader = SegmentReader(files, check_crc=check_crc)
    found: dict[int, bytes] = {}
    fatal = 0
    for index in range(len(segments)):
        reading = reader.read(segments, index)
        for batch in reading:
            for start, row in zip(batch.start_lsn().tolist(), batch.records, strict=True):
                begin = int(row["offset"])
                assert start not in found, "a record is given once"
                found[start] = batch.payload[begin : begin + int(row["length"])].tobytes()
        fatal += sum(problem.fatal for problem in reading.problems)
    return found, fatal


def harm(kind: str, data: Bytes, random: Random, others: list[Bytes]) -> Bytes:
    """Change one segment's bytes as disks and people change them."""
    data = data.copy()
    if not len(data):
        return data
    at = random.randrange(len(data))
    length = random.choice((1, 8, 512, 8192, 20_000))
    if kind == "flip":
        for _ in range(random.randrange(1, 30)):
            data[random.randrange(len(data))] ^= random.randrange(1, 256)
    elif kind == "zero":
        data[at : at + length] = 0
    elif kind == "noise":
        noise = np.frombuffer(random.randbytes(length), np.uint8)
        data[at : at + length] = noise[: len(data) - at]
    elif kind == "cut":
        data = data[:at]
    elif kind == "shift":
        data = np.concatenate([data[:at], data[at + 8 :], data[:8]])
    elif kind == "other":
        data = random.choice(others).copy()
    elif kind == "page":
        page = at // 8192 * 8192
        data[page : page + 8192] = random.choice(others)[page : page + 8192][: len(data) - page]
    return data


KINDS = ("flip", "zero", "noise", "cut", "shift", "other", "page", "missing")


@MANY
@example(seed=5188, harms=[("cut", 2), ("cut", 2)])  # a record that ends in the last segment
@given(
    seed=st.integers(0, 1 << 32),
    harms=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 2)), min_size=1, max_size=3),
)
def test_records_read_from_damaged_wal_are_those_that_were_written(
    tmp_path: Path, seed: int, harms: list[tuple[str, int]]
) -> None:
    random = Random(seed)
    maker = body_wal(random, WHOLE)
    segments = planned(maker, write_segments(maker, tmp_path))
    files = MemoryFiles(tmp_path)
    whole, _ = starts(files, segments)
    others = [files.read(segment.path) for segment in segments]
    kept = list(segments)
    for kind, number in harms:
        path = segments[number].path
        if kind == "missing":
            kept = [segment for segment in kept if segment.path != path]
        else:
            files.changed[path] = harm(kind, files.read(path), random, others)
    found, fatal = starts(files, kept)
    assert found.items() <= whole.items()
    # Lost records are reported, unless they are the end: logs have no end mark.
    lost = sorted(whole.keys() - found.keys())
    last = segments[-1].first_lsn
    reaching = max(lsn for lsn in whole if lsn < last)  # into the last segment, with its end
    untold = [lsn for lsn in lost if lsn < reaching]
    gaps = sum(b.first_lsn - a.first_lsn != SEGMENT_BYTES for a, b in pairwise(kept))
    cut_front = bool(kept) and kept[0].first_lsn != segments[0].first_lsn
    assert fatal or gaps or cut_front or not untold or not kept or kept[-1].first_lsn != last


@pytest.mark.parametrize("name", [*TABLE_NAMES, "find"])
@settings(max_examples=12)
@given(seed=st.integers(0, 1 << 32), damaged=st.booleans())
def test_contents_of_any_kind_make_rows(
    tmp_path: Path, name: str, seed: int, damaged: bool
) -> None:
    """Records of all kinds with random contents, with right CRCs and with CRCs not looked at."""
    random = Random(seed)
    maker = body_wal(random, WHOLE)
    segments = planned(maker, write_segments(maker, tmp_path))
    files = MemoryFiles(tmp_path)
    if damaged:
        for segment in segments:
            files.changed[segment.path] = harm("flip", files.read(segment.path), random, [])
    reader = SegmentReader(files, check_crc=not damaged)
    if name == "find":
        parts = (deeds_of_segment(reader.read(segments, n)) for n in range(len(segments)))
        assert all(finding.xid >= 0 for finding in findings(parts))
        return
    made = table(name, column_names(name, with_payload=True))
    for index in range(len(segments)):
        for batch in made.batches(reader.read(segments, index)):
            assert batch.schema.equals(made.schema)
            batch.validate(full=True)
