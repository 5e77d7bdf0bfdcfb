"""Two directories of a live safekeeper are compared while retention removes segments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import segment_files

SEGMENT_BYTES = 1 << 10
FIRST, SECOND = "000000010000000000000001", "000000010000000000000002"
END_LSN = 3 * SEGMENT_BYTES


def folder(path: Path, segments: dict[str, bytes]) -> Path:
    path.mkdir()
    for name, content in segments.items():
        (path / name).write_bytes(content * SEGMENT_BYTES)
    return path


def compare(one: Path, other: Path) -> int:
    return segment_files.assert_each_pair_same([one, other], END_LSN, SEGMENT_BYTES)


def test_a_segment_that_one_side_removes_meanwhile_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = folder(tmp_path / "one", {FIRST: b"a", SECOND: b"b"})
    other = folder(tmp_path / "other", {SECOND: b"b"})
    # The listing is of a moment before retention removed the first segment.
    monkeypatch.setattr(segment_files, "segments", lambda directory: [FIRST, SECOND])
    assert compare(one, other) == compare(other, one) == 1


def test_a_comparison_of_no_segment_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = folder(tmp_path / "one", {FIRST: b"a"}), folder(tmp_path / "other", {})
    monkeypatch.setattr(segment_files, "segments", lambda directory: [FIRST])
    with pytest.raises(AssertionError, match="share no segment"):
        compare(one, other)


def test_segments_that_differ_or_are_short_fail(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", {FIRST: b"a", SECOND: b"b"})
    with pytest.raises(AssertionError, match="differ"):
        compare(one, folder(tmp_path / "differs", {FIRST: b"a", SECOND: b"c"}))
    (one / FIRST).write_bytes(b"a")
    with pytest.raises(AssertionError, match="size=1"):
        compare(one, folder(tmp_path / "whole", {FIRST: b"a"}))
