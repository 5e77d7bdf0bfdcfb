"""The parts of a window in sets: whole commits, bounded memory, and one commit that is large."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.replay.test_change_folds import piece_of
from walkeeper_replay.changes.change_rows import INSERT, FoundChanges
from walkeeper_replay.lakes.spooled_parts import SpooledParts
from walkeeper_wal.wal_errors import HistoryError


def part(commit: int, count: int = 50, commits: int = 1) -> FoundChanges:
    """Return insertions of some commits, one after another."""
    changes = [
        (INSERT, 100 * commit + row, commit + row % commits, None, (row, 0, row))
        for row in range(count)
    ]
    return FoundChanges([piece_of(changes)])


def values_of(found: FoundChanges) -> list[Any]:
    (pieces,) = found.by_table().values()
    return [
        (piece.rows.tolist(), piece.values.typed(piece.rows["new"]).to_pylist())
        for piece in pieces
        if piece.values is not None
    ]


SIZE = part(1).typed_bytes()


def test_sets_have_whole_commits_and_a_large_one_is_alone(tmp_path: Path) -> None:
    given = [part(1), part(2, commits=3), part(7), part(9), part(9), part(9), part(12), part(13)]
    with SpooledParts(tmp_path, 0, 2 * SIZE) as spooled:
        for each in given:
            spooled.take(each)
            assert spooled.bytes_in_memory <= 2 * SIZE
        assert len(spooled) == 50 * len(given)
        sets = list(spooled.sets(99))
        assert [each.end for each in sets] == [4, 7, 9, 99], "each ends with a commit of its own"
        assert [each.is_large for each in sets] == [False, False, True, False]
        found = [values_of(each) for every in sets for each in every.parts()]
        assert found == [values_of(each) for each in given]
        assert not list(tmp_path.iterdir()), "a file without a name"


def test_what_the_lake_has_is_left_out_and_a_small_window_is_one_set(tmp_path: Path) -> None:
    with SpooledParts(tmp_path, 7, 100 * SIZE) as spooled:
        for each in (part(5), part(8), part(8), part(11)):
            spooled.take(each)
        (only,) = spooled.sets(20)
        assert (len(spooled), only.end, only.is_large) == (150, 20, False)
        assert [each.commits() for each in only.parts()] == [(8, 8), (8, 8), (11, 11)]


def test_a_full_disk_is_said_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with (
        SpooledParts(tmp_path, 0, 1) as spooled,
        pytest.raises(HistoryError, match="No space left on device: make room"),
    ):
        spooled.take(part(1))
