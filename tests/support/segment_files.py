"""Segment files: which there are, and whether two directories hold the same WAL."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path

from crc32c import crc32c

ALIGNMENT = 8
CRC_AT = 20  # its place in the header of a record, which ends with it
RECORD_BYTES_MAX = 400
SEGMENT = re.compile(r"[0-9A-F]{24}")


def segments(directory: Path) -> list[str]:
    """Return the names of the WAL segments there, in order."""
    return sorted(p.name for p in directory.iterdir() if SEGMENT.fullmatch(p.name))


def start_of(name: str, segment_bytes: int) -> int:
    """Return the LSN at which this segment starts."""
    return (int(name[8:16], 16) << 32) + int(name[16:], 16) * segment_bytes


def assert_same_wal(one: Path, other: Path, end_lsn: int, segment_bytes: int = 1 << 20) -> int:
    """Compare the segments that both have, up to the end; return how many.

    A live safekeeper removes and recycles segments. A segment gone meanwhile does not count.
    """
    common = sorted(set(segments(one)) & set(segments(other)))
    compared = 0
    for name in common:
        length = min(end_lsn - start_of(name, segment_bytes), segment_bytes)
        if length <= 0:
            continue  # made or recycled in advance
        pieces = []
        with suppress(FileNotFoundError):
            for directory in (one, other):
                with open(directory / name, "rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    assert size == segment_bytes, f"{directory / name}: {size=}"
                    pieces.append(file.read(length))
            assert pieces[0] == pieces[1], f"{one / name} and {other / name} differ"
            compared += 1
    return compared


def assert_each_pair_same(folders: Sequence[Path], end_lsn: int, segment_bytes: int) -> int:
    """Compare each two of these; each must share a segment. Return the number of comparisons."""
    total = 0
    for one, other in combinations(folders, 2):
        compared = assert_same_wal(one, other, end_lsn, segment_bytes)
        assert compared, f"{one} and {other} share no segment below {end_lsn:X}"
        total += compared
    return total


def with_another_byte(segment: bytes, needle: bytes) -> bytes:
    """Return the segment with a changed byte of the record around `needle`, and its right CRC.

    The record lies on one page."""
    at = segment.index(needle)
    for start in range(at - at % ALIGNMENT, at - RECORD_BYTES_MAX, -ALIGNMENT):
        size = int.from_bytes(segment[start : start + 4], "little")
        head, body = segment[start : start + CRC_AT], segment[start + CRC_AT + 4 : start + size]
        found = int.from_bytes(segment[start + CRC_AT : start + CRC_AT + 4], "little")
        if at < start + size and crc32c(head, crc32c(body)) == found:
            changed = bytearray(body)
            changed[at - start - CRC_AT - 4] ^= 0x01
            crc = crc32c(head, crc32c(bytes(changed))).to_bytes(4, "little")
            return segment[:start] + head + crc + bytes(changed) + segment[start + size :]
    raise AssertionError(f"no whole record around {needle!r}")
