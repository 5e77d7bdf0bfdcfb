"""A damaged record in the log's last page is its end only if no later record names it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.history.made_wal import SEGMENT_BYTES, MemoryFiles, planned, write_segments
from tests.history.test_reading import ENGINES, read_all
from tests.support.wal_maker import WalMaker

COUNT = 6
DATA = 40
"""Where a record's data is, behind its header."""


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("number", range(COUNT))
def test_a_damaged_record_that_a_later_one_names_is_damage(
    tmp_path: Path, number: int, engine: str
) -> None:
    maker = WalMaker(Random(number), segment_bytes=SEGMENT_BYTES)
    for _ in range(COUNT):
        maker.record(100)
    segments = planned(maker, write_segments(maker, tmp_path))
    files, damaged = MemoryFiles(tmp_path), maker.records[number]
    data = files.read(segments[0].path).copy()
    data[damaged.start_lsn % SEGMENT_BYTES + DATA] ^= 0x10
    files.changed[segments[0].path] = data
    rows, problems = read_all(files, segments, engine)
    assert [row[0] for row in rows] == [made.start_lsn for made in maker.records[:number]]
    is_damage = number < COUNT - 1
    assert [(each.start_lsn, each.fatal) for each in problems] == [(damaged.start_lsn, is_damage)]
    said = "a later record names it" if is_damage else "the log is taken to end there"
    assert said in problems[0].reason
