"""Two rows of a catalog with one key are refused if both are visible, and neither by a guess."""

from __future__ import annotations

import numpy as np
import pytest

from walkeeper_replay.catalogs.damaged_catalogs import doubled_key
from walkeeper_replay.redo.page import INFOMASK
from walkeeper_replay.tuples.row_versions import (
    XMAX_COMMITTED,
    XMAX_INVALID,
    XMIN_COMMITTED,
    Versions,
)
from walkeeper_replay.tuples.xids import NEVER

HEADER_BYTES = 24


def one_version(*, begin: int, end: int, mask: int) -> Versions:
    header = bytearray(HEADER_BYTES)
    header[INFOMASK : INFOMASK + 2] = mask.to_bytes(2, "little")
    none = np.zeros(1, np.int64)
    arena = np.frombuffer(bytes(header), np.uint8)
    length = np.array([HEADER_BYTES])
    spans = np.array([begin]), np.array([end])
    return Versions(arena, none, none, none, none, length, *spans, none)


@pytest.mark.parametrize(
    ("begin", "end", "mask", "is_certain"),
    [
        (50, NEVER, XMAX_INVALID, True),
        (0, NEVER, XMIN_COMMITTED | XMAX_INVALID, True),
        (50, 90, 0, True),
        (0, 90, XMIN_COMMITTED | XMAX_COMMITTED, True),
        (0, NEVER, XMAX_INVALID, False),
        (0, 90, 0, False),
        (50, NEVER, 0, False),
    ],
)
def test_hint_bits_and_commits_make_a_row_certain(
    begin: int, end: int, mask: int, *, is_certain: bool
) -> None:
    version = one_version(begin=begin, end=end, mask=mask)
    assert version.are_certain(np.array([0])).tolist() == [is_certain]


def test_a_key_is_that_of_the_catalog() -> None:
    column = {"attrelid": 7, "attnum": 1}
    assert doubled_key([column, column | {"attnum": 2}], "pg_attribute") is None
    assert doubled_key([column, column | {"attnum": 2}, column], "pg_attribute") == (7, 1)
    assert doubled_key([{"oid": 7}, {"oid": 8}], "pg_class") is None
    assert doubled_key([{"oid": 7}, {"oid": 8}, {"oid": 7}], "pg_class") == (7,)
