"""The sums of whole segments by the compiled loop are those of the reader, whatever the bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.history.engines_here import engines_here
from tests.history.made_wal import planned, random_body, write_segments
from tests.history.test_damage import KINDS, harm
from tests.support.wal_maker import WalMaker
from walkeeper_history.rows import segment_sums
from walkeeper_history.rows.segment_sums import stats_of, stats_parts
from walkeeper_history.rows.stats import Stats
from walkeeper_wal.sources.plan import Plan, PlannedSegment
from walkeeper_wal.sources.threaded_reading import Part, SweepOptions, read_each
from walkeeper_wal.sources.wal_files import LocalFiles

pytestmark = pytest.mark.skipif(
    "compiled" not in engines_here(), reason="the walk over records was not compiled"
)
SEGMENT_BYTES = 1 << 19  # two reads of 32 pages
CHECKED, UNCHECKED = (SweepOptions(threads=1, check_crc=check) for check in (True, False))


def stream(seed: int, segments: int = 3) -> WalMaker:
    """Make records with all kinds of headers, and a few that cross several pages."""
    random = Random(seed)
    maker = WalMaker(random, segment_bytes=SEGMENT_BYTES)
    while maker.end_lsn - maker.start_lsn < segments * SEGMENT_BYTES - 100_000:
        if random.random() < 0.001:
            maker.switch()
        elif random.random() < 0.3:
            maker.record(random.choice((9000, 40_000)))
        else:
            maker.record_body(random_body(random), random.randrange(256) & ~0x40, 10)
    return maker


def plan_of(segments: list[PlannedSegment]) -> Plan:
    first = segments[0]
    return Plan(first.timeline, first.segment_bytes, first.system_id, tuple(segments))


def facts(part: Part[Stats]) -> tuple[object, ...]:
    stats = part.made
    return stats.sums, stats.start_lsn, stats.end_lsn, part.summary, part.problems


def assert_same(directory: Path, segments: list[PlannedSegment], options: SweepOptions) -> None:
    files, plan = LocalFiles(directory), plan_of(segments)
    quick = [facts(part) for part in stats_parts(files, plan, options)]
    slow = [facts(part) for part in read_each(files, plan, stats_of, options)]
    assert quick == slow


@pytest.fixture
def no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> Callable[[int], Part[Stats]]:
        def read(index: int) -> Part[Stats]:
            raise AssertionError(f"the reader had to read segment {index}")

        return read

    monkeypatch.setattr(segment_sums, "reader_of", refused)


def test_a_usual_log_needs_no_reader(tmp_path: Path, no_reader: None) -> None:
    maker = stream(1)
    segments = planned(maker, write_segments(maker, tmp_path))
    parts = list(stats_parts(LocalFiles(tmp_path), plan_of(segments), CHECKED))
    assert sum(part.summary.record_count for part in parts) == len(maker.records)
    assert [part.summary.status for part in parts][-1] == "open"


@pytest.mark.parametrize("seed", range(3))
def test_sums_of_a_log_are_those_of_the_reader(tmp_path: Path, seed: int) -> None:
    maker = stream(seed)
    segments = planned(maker, write_segments(maker, tmp_path))
    assert_same(tmp_path, segments, CHECKED)
    assert_same(tmp_path, segments[:-1], CHECKED)
    first = segments[0]
    middle = first.first_lsn + SEGMENT_BYTES // 2
    for part in (replace(first, begin_lsn=middle), replace(first, end_lsn=middle)):
        assert_same(tmp_path, [part, *segments[1:]], CHECKED)


def test_sums_of_damaged_logs_are_those_of_the_reader(tmp_path: Path) -> None:
    random, maker = Random(7), stream(3)
    paths = write_segments(maker, tmp_path)
    segments = planned(maker, paths)
    files = LocalFiles(tmp_path)
    others = [files.read(path.name) for path in paths]
    for turn in range(120):
        chosen = random.randrange(len(paths))
        kind = random.choice([each for each in KINDS if each != "missing"])
        paths[chosen].write_bytes(harm(kind, others[chosen], random, others).tobytes())
        assert_same(tmp_path, segments, UNCHECKED if turn % 3 else CHECKED)
        paths[chosen].write_bytes(others[chosen].tobytes())


@pytest.mark.parametrize("at", [0, 2, 4, 8, 16, 24, 32, 36])
@pytest.mark.parametrize("page", [0, 1, 40])
def test_a_byte_of_a_page_header_is_judged_as_by_the_reader(
    tmp_path: Path, page: int, at: int
) -> None:
    """Magic, flags, timeline, address, what follows of a record, and the long header's facts."""
    maker = stream(4, segments=2)
    paths = write_segments(maker, tmp_path)
    segments = planned(maker, paths)
    for path in paths:
        data = bytearray(path.read_bytes())
        for change in (1, 2, 8, 0x80):
            data[page * 8192 + at] ^= change
            path.write_bytes(data)
            assert_same(tmp_path, segments, CHECKED)
            data[page * 8192 + at] ^= change
        path.write_bytes(data)


def test_a_record_longer_than_the_room_is_for_the_reader(tmp_path: Path) -> None:
    maker = WalMaker(Random(5), segment_bytes=SEGMENT_BYTES)
    for size in (100, 3 * SEGMENT_BYTES, 100, SEGMENT_BYTES // 2, 500_000, 100):
        maker.record(size)
    assert_same(tmp_path, planned(maker, write_segments(maker, tmp_path)), CHECKED)


@pytest.mark.parametrize(("zeroed_pages", "pages"), [(1, 20), (34, 64)])
def test_zeros_before_later_wal_are_no_end_of_the_log(
    tmp_path: Path, zeroed_pages: int, pages: int
) -> None:
    """Later pages of the same read of 32 count, and those of the next one."""
    maker = stream(6)
    paths = write_segments(maker, tmp_path)
    segments = planned(maker, paths)
    last = segments[-1].first_lsn
    begin = [int(record.start_lsn) - last for record in maker.records if record.start_lsn > last][3]
    assert begin < 17 * 8192, f"{begin=}"
    data = bytearray(paths[-1].read_bytes())
    end = (begin // 8192 + zeroed_pages) * 8192
    data[begin:end] = bytes(end - begin)
    data[pages * 8192 :] = bytes(SEGMENT_BYTES - pages * 8192)
    paths[-1].write_bytes(data)
    assert_same(tmp_path, segments, CHECKED)
    *_, part = stats_parts(LocalFiles(tmp_path), plan_of(segments), CHECKED)
    assert any(problem.fatal for problem in part.problems)
