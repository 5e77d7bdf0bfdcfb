"""Segment files: which there are, and whether two directories hold the same WAL."""

from __future__ import annotations

import re
from pathlib import Path

SEGMENT = re.compile(r"[0-9A-F]{24}")


def segments(directory: Path) -> list[str]:
    """Return the names of the WAL segments there, in order."""
    return sorted(p.name for p in directory.iterdir() if SEGMENT.fullmatch(p.name))


def start_of(name: str, segment_bytes: int) -> int:
    """Return the LSN at which this segment starts."""
    return (int(name[8:16], 16) << 32) + int(name[16:], 16) * segment_bytes


def assert_same_wal(one: Path, other: Path, end_lsn: int, segment_bytes: int = 1 << 20) -> int:
    """Compare the segments that both have, up to the end; return how many."""
    common = sorted(set(segments(one)) & set(segments(other)))
    compared = 0
    for name in common:
        length = min(end_lsn - start_of(name, segment_bytes), segment_bytes)
        if length <= 0:
            continue  # made or recycled in advance
        pieces = []
        for directory in (one, other):
            assert (directory / name).stat().st_size == segment_bytes, f"{directory / name}"
            with open(directory / name, "rb") as file:
                pieces.append(file.read(length))
        assert pieces[0] == pieces[1], f"{one / name} and {other / name} differ"
        compared += 1
    return compared
