"""Records end in the log's last page: damage if WAL, a name or a receipt tells of more, or its end.

Compared are all engines and the sums of `stats`.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.history.engines_here import engines_here
from tests.history.made_wal import SEGMENT_BYTES, MemoryFiles, planned, write_segments
from tests.history.test_reading import ENGINES, read_all
from tests.history.test_segment_sums import CHECKED, assert_same, plan_of
from tests.support.wal_maker import Made, WalMaker
from walkeeper_common.lsn import Lsn, segment_name
from walkeeper_history.rows.segment_sums import stats_parts
from walkeeper_wal.records.segment import Bytes
from walkeeper_wal.sources.plan import Problem, make_plan
from walkeeper_wal.sources.wal_files import LocalFiles

COUNT = 6
DATA = 40
"""Where a record's data is, behind its header."""
PLANNED_BYTES = 1 << 20
"""The smallest segments that a plan takes."""


def made(number: int, *, segment_bytes: int = SEGMENT_BYTES, count: int = COUNT) -> WalMaker:
    maker = WalMaker(Random(number), segment_bytes=segment_bytes)
    for _ in range(count):
        maker.record(100)
    return maker


def place(record: Made, segment_bytes: int = SEGMENT_BYTES) -> slice:
    """Return where a record is in its segment."""
    return slice(record.start_lsn % segment_bytes, record.end_lsn % segment_bytes)


def found(problems: list[Problem]) -> list[tuple[int | None, bool]]:
    return [(each.start_lsn, each.fatal) for each in problems]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("number", range(COUNT))
def test_a_damaged_record_that_a_later_one_names_is_damage(
    tmp_path: Path, number: int, engine: str
) -> None:
    maker = made(number)
    segments = planned(maker, write_segments(maker, tmp_path))
    files, damaged = MemoryFiles(tmp_path), maker.records[number]
    data = files.read(segments[0].path).copy()
    data[damaged.start_lsn % SEGMENT_BYTES + DATA] ^= 0x10
    files.changed[segments[0].path] = data
    rows, problems = read_all(files, segments, engine)
    assert [row[0] for row in rows] == [record.start_lsn for record in maker.records[:number]]
    is_damage = number < COUNT - 1
    assert found(problems) == [(damaged.start_lsn, is_damage)]
    said = "the log goes on after it" if is_damage else "the log is taken to end there"
    assert said in problems[0].reason


@pytest.mark.parametrize("fill", [0, 0xFF], ids=["zeros", "ones"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("first", "last"), [(1, 2), (2, 5), (0, 5), (3, 6)])
def test_a_record_behind_lost_ones_tells_of_them(
    tmp_path: Path, first: int, last: int, engine: str, fill: int
) -> None:
    maker = made(first)
    segments = planned(maker, write_segments(maker, tmp_path))
    files, lost = MemoryFiles(tmp_path), maker.records[first:last]
    data = files.read(segments[0].path).copy()
    data[place(lost[0]).start : place(lost[-1]).stop] = fill
    files.changed[segments[0].path] = data
    rows, problems = read_all(files, segments, engine)
    assert len(rows) == first
    if last < COUNT:
        assert found(problems) == [(lost[0].start_lsn, True)]
        assert str(maker.records[last].start_lsn) in problems[0].reason
    else:
        assert found(problems) == ([(lost[0].start_lsn, False)] if fill else [])


class GrowingFiles(MemoryFiles):
    """A server's files: each is read as `changed` has it, and from then on as it lies."""

    def read(self, path: str) -> Bytes:
        return self.changed.pop(path) if path in self.changed else super().read(path)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("fill", [0, 0xFF], ids=["zeros", "ones"])
@pytest.mark.parametrize(("first", "last"), [(2, 3), (2, 90), (70, 140)])
def test_wal_that_a_server_writes_meanwhile_is_no_damage(
    tmp_path: Path, first: int, last: int, fill: int, engine: str
) -> None:
    """The beginning was read before the server wrote there, and what follows after that."""
    maker = made(1, count=3 * 60)
    segments = planned(maker, write_segments(maker, tmp_path))
    files, path = GrowingFiles(tmp_path), segments[0].path
    early = files.read(path).copy()
    early[place(maker.records[first]).start : place(maker.records[last]).start] = fill
    files.changed[path] = early.copy()
    rows, problems = read_all(files, segments, engine)
    assert len(rows) == first
    assert not [each for each in problems if each.fatal]
    # A place that stays as it is was lost, although a server writes behind it.
    end = maker.end_lsn % SEGMENT_BYTES
    written = early.copy()
    written[end : end + 50] = 1
    (tmp_path / path).write_bytes(written.tobytes())
    files.changed[path] = early
    _, problems = read_all(files, segments, engine)
    assert [each.fatal for each in problems][:1] == [True]


@pytest.mark.parametrize("engine", ENGINES)
def test_zeros_over_the_beginning_of_the_last_page_are_damage(tmp_path: Path, engine: str) -> None:
    """A disk writes 4096 bytes at once, so a page can come without its header."""
    maker = made(1, count=3 * 60)
    assert maker.end_lsn % SEGMENT_BYTES > 2 * 8192 + 4096 + 300
    segments = planned(maker, write_segments(maker, tmp_path))
    files = MemoryFiles(tmp_path)
    data = files.read(segments[0].path).copy()
    data[2 * 8192 : 2 * 8192 + 4096] = 0
    files.changed[segments[0].path] = data
    _, problems = read_all(files, segments, engine)
    assert [each.fatal for each in problems] == [True]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("beyond", [0, 512])
def test_wal_of_another_place_and_numbers_of_rows_are_no_later_record(
    tmp_path: Path, beyond: int, engine: str
) -> None:
    """A recycled segment has older WAL, and a row may have the value of an LSN."""
    maker, older = made(1), WalMaker(Random(2), segment_bytes=SEGMENT_BYTES, start_lsn=Lsn(0))
    while older.end_lsn < SEGMENT_BYTES // 2:
        older.record(200)
    segments = planned(maker, write_segments(maker, tmp_path))
    files, size = MemoryFiles(tmp_path), maker.end_lsn % SEGMENT_BYTES
    data = files.read(segments[0].path).copy()
    recycled = np.frombuffer(older.read(Lsn(0), older.end_lsn), np.uint8)
    data[size + 1024 : len(recycled)] = recycled[size + 1024 :]
    number = np.frombuffer(int(maker.end_lsn + beyond).to_bytes(8, "little"), np.uint8)
    data[size + 800 : size + 808] = number
    files.changed[segments[0].path] = data
    rows, problems = read_all(files, segments, engine)
    assert len(rows) == COUNT and not problems


@pytest.mark.skipif("compiled" not in engines_here(), reason="the walk was not compiled")
@pytest.mark.parametrize("first", [1, 700, 5000])
@pytest.mark.parametrize("last", [1, 2, 200])
def test_the_sums_of_stats_end_where_the_reader_does(tmp_path: Path, first: int, last: int) -> None:
    """Zeros within a page, over pages up to a later one of the same read, and of the next one."""
    size = 1 << 20
    maker = made(1, segment_bytes=size, count=first + last + 2)
    paths = write_segments(maker, tmp_path)
    segments = planned(maker, paths)
    data = bytearray(paths[0].read_bytes())
    lost = maker.records[first : first + last]
    begin, end = place(lost[0], size).start, place(lost[-1], size).stop
    data[begin:end] = bytes(end - begin)
    for page in range(begin // 8192 + 1, size // 8192):
        data[page * 8192 : page * 8192 + 24] = bytes(24)  # no good page tells of more
    paths[0].write_bytes(data)
    assert_same(tmp_path, segments, CHECKED)
    *_, part = stats_parts(LocalFiles(tmp_path), plan_of(segments), CHECKED)
    assert [each.fatal for each in part.problems] == [True]


@pytest.mark.parametrize("lost", [2, COUNT - 1, COUNT])
@pytest.mark.parametrize("proof", ["receipt", "name", ""])
def test_an_archive_that_has_more_by_its_names_is_damaged(
    tmp_path: Path, proof: str, lost: int
) -> None:
    """A tail has whole records up to the LSN of its name, and a receipt is of a whole segment."""
    maker = made(3, segment_bytes=PLANNED_BYTES)
    if proof == "receipt":
        maker.record(maker.segment_bytes // 2)
        maker.switch()
    path = tmp_path / segment_name(1, maker.start_lsn, PLANNED_BYTES)
    data = bytearray(maker.read(maker.start_lsn, maker.end_lsn))
    begin = (
        maker.records[lost].start_lsn % PLANNED_BYTES if lost < len(maker.records) else len(data)
    )
    data[begin:] = bytes(len(data) - begin)
    if proof == "receipt":
        path.with_name(f"{path.name}.sha256").write_bytes(b"of the whole segment")
    if proof == "name":
        path = path.with_name(f"{path.name}.{int(maker.end_lsn):016X}.partial")
    path.write_bytes(data if proof == "name" else data.ljust(PLANNED_BYTES, b"\0"))
    files = LocalFiles(tmp_path)
    segments = list(make_plan(files).segments)
    _, problems = read_all(files, segments, ENGINES[0])
    is_damage = bool(proof) and begin < len(data)
    assert [each.fatal for each in problems] == [True] * is_damage
    if is_damage:
        assert str(maker.end_lsn) in problems[0].reason
    assert_same(tmp_path, segments, CHECKED)
