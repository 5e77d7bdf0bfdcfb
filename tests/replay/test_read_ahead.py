"""A pass that decodes the next segment meanwhile gives the same records, problems and end."""

from __future__ import annotations

from pathlib import Path
from random import Random
from threading import Event

import pytest

from tests.history.made_wal import MemoryFiles, planned, write_segments
from tests.history.test_reading import body_wal, rows_of
from walkeeper_replay.redo.wal_pass import Passed, pass_over
from walkeeper_wal.sources.plan import Plan, Problem
from walkeeper_wal.sources.reading import Batch
from walkeeper_wal.wal_errors import HistoryError

SEGMENTS = 6
LIMIT_S = 30


class Played:
    def __init__(self, directory: Path, seed: int) -> None:
        maker = body_wal(Random(seed), SEGMENTS << 16)
        self.files = MemoryFiles(directory)
        self.segments = planned(maker, write_segments(maker, directory))
        self.plan = Plan(maker.timeline, 1 << 16, self.segments[0].system_id, tuple(self.segments))

    def passed(
        self, *, reads_ahead: bool, until: int | None = None
    ) -> tuple[list[tuple[object, ...]], list[Problem], Passed]:
        rows: list[tuple[object, ...]] = []
        problems: list[Problem] = []

        def take(batch: Batch) -> None:
            rows.extend(rows_of(batch))

        end = pass_over(
            self.files, self.plan, [take],
            until=until, on_problem=problems.append, reads_ahead=reads_ahead,
        )  # fmt: skip
        return rows, problems, end


@pytest.mark.parametrize("seed", range(4))
def test_reading_ahead_gives_the_same_records(tmp_path: Path, seed: int) -> None:
    played = Played(tmp_path, seed)
    whole = played.passed(reads_ahead=False)
    assert played.passed(reads_ahead=True) == whole
    ends = [int(str(row[1])) for row in whole[0]]
    for until in Random(seed).sample(ends, 5):
        cut = played.passed(reads_ahead=True, until=until)
        assert cut == played.passed(reads_ahead=False, until=until)
        assert cut[2].end_lsn == until


@pytest.mark.parametrize("number", range(SEGMENTS))
def test_damage_in_a_segment_is_met_in_its_place(tmp_path: Path, number: int) -> None:
    played = Played(tmp_path, 5)
    path = played.segments[number].path
    data = played.files.read(path).copy()
    data[20_000:30_000] ^= 0x55
    played.files.changed[path] = data
    expected = played.passed(reads_ahead=False)
    assert expected[1] and played.passed(reads_ahead=True) == expected


def test_the_next_segment_is_read_while_one_is_consumed(tmp_path: Path) -> None:
    """An error of the next one comes in its place, after the records of this one."""
    played, begun, seen = Played(tmp_path, 6), Event(), list[int]()

    class Files(MemoryFiles):
        def open_plain(self, path: str) -> int | None:
            if path == played.segments[1].path:
                begun.set()
                raise HistoryError("gone", path)
            return super().open_plain(path)

    def take(batch: Batch) -> None:
        if not seen:
            assert begun.wait(LIMIT_S), "the next segment is not read before this one is consumed"
        seen.append(batch.segment.first_lsn)

    played.files = Files(tmp_path)
    problems: list[Problem] = []
    pass_over(played.files, played.plan, [take], on_problem=problems.append, reads_ahead=True)
    assert played.segments[0].first_lsn in seen and played.segments[2].first_lsn in seen
    assert "gone" in problems[0].reason
