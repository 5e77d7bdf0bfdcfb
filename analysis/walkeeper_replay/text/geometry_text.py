"""Geometric values as PostgreSQL prints them. Pure. Layout: geo_decls.h, geo_ops.c."""

from __future__ import annotations

import struct
from collections.abc import Callable

from walkeeper_replay.text.float_text import float_text

Printed = Callable[[bytes], str]
_POINT = 16


def _doubles(data: bytes, begin: int, count: int) -> list[str]:
    return [float_text(value) for value in struct.unpack_from(f"<{count}d", data, begin)]


def _points(data: bytes, begin: int, count: int) -> str:
    numbers = _doubles(data, begin, 2 * count)
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return ",".join(f"({x},{y})" for x, y in pairs)


def _counted(data: bytes) -> int:
    return int.from_bytes(data[:4], "little")


def _path(data: bytes) -> str:
    is_closed = any(data[4:8])
    points = _points(data, 12, _counted(data))
    return f"({points})" if is_closed else f"[{points}]"


GEOMETRIC: dict[int, Printed] = {
    600: lambda d: _points(d, 0, 1),
    601: lambda d: f"[{_points(d, 0, 2)}]",
    602: _path,
    603: lambda d: _points(d, 0, 2),
    604: lambda d: f"({_points(d, 4 + 2 * _POINT, _counted(d))})",  # after the box around it
    628: lambda d: "{" + ",".join(_doubles(d, 0, 3)) + "}",
    718: lambda d: f"<{_points(d, 0, 1)},{_doubles(d, _POINT, 1)[0]}>",
}
"""By type: point, lseg, path, box, polygon, line, circle."""
