"""Damaged catalogs, in rows, in a base backup and in WAL, are named or do not matter: no traceback,
and with checksums no other answer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.replay.flipped_catalogs import (
    World,
    answer,
    flip_files,
    flip_rows,
    flip_wal,
    flipped,
    world,
)
from walkeeper_replay.redo.page import PAGE_BYTES

pytestmark = pytest.mark.postgres
SEED, ROWS, FILES = 31, 1000, 24


@pytest.fixture(scope="module")
def with_checksums() -> Iterator[World]:
    with world(has_checksums=True) as made:
        yield made


@pytest.fixture(scope="module")
def without_checksums() -> Iterator[World]:
    with world(has_checksums=False) as made:
        yield made


def test_flipped_rows_are_refused_or_read(without_checksums: World) -> None:
    found = flip_rows(without_checksums, ROWS, SEED)
    assert found["refused"] > 50 and found["read"] > 50, found


def test_checksums_of_a_backup_find_each_flip_that_counts(with_checksums: World) -> None:
    found = flip_files(with_checksums, FILES, SEED, is_found=True)
    assert found["said"] > FILES // 3 and found["another answer"] == 0, found


def test_flips_of_a_backup_without_checksums_give_no_traceback(without_checksums: World) -> None:
    found = flip_files(without_checksums, FILES, SEED, is_found=False)
    assert found.total() == FILES, found


def test_each_flip_of_wal_is_found(with_checksums: World) -> None:
    found = flip_wal(with_checksums, FILES, SEED)
    assert found["said"] > FILES // 3, found


@pytest.mark.parametrize("number", range(4))
def test_each_command_names_the_damaged_block(with_checksums: World, number: int) -> None:
    path, command = with_checksums.catalogs[0], with_checksums.commands[number]  # pg_class
    with flipped(path, 3 * PAGE_BYTES - 1, 0x40):
        code, out, said = answer(command)
    assert (code, out) == (1, ""), said
    assert f"pg_class: block 2 of file 1663/5/{path.name} is not as a server wrote it" in said
    assert "read another copy" in said


def test_a_damaged_block_of_a_table_is_not_complete(with_checksums: World) -> None:
    """No WAL has an image of it, so that the backup alone knows it."""
    path, command = with_checksums.untouched, ("table-at", "untouched")
    where = ("--path", str(with_checksums.wal), "--base", str(with_checksums.backup))
    assert answer((*command, *where))[:2] == (0, "a\n7\n")
    with flipped(path, PAGE_BYTES - 1, 0x40):
        code, out, said = answer((*command, *where))
    assert (code, out) == (1, "a\n"), said
    assert f"1 damaged block, the first is block 0 of file 1663/5/{path.name}" in said


def test_a_damaged_map_of_catalogs_is_named(with_checksums: World) -> None:
    path = with_checksums.catalogs[-2]
    with flipped(path, 13, 0x40):
        code, out, said = answer(with_checksums.commands[0])
    assert (code, out) == (1, "") and f"{path}: damaged" in said


def test_a_page_without_the_layout_of_a_heap_is_named(without_checksums: World) -> None:
    """An item that leads out of its page was a row less, and nobody said so."""
    path = without_checksums.catalogs[1]  # pg_attribute
    items = np.fromfile(path, np.uint8)[24:28].view("<u4")
    with flipped(path, 27, int(items[0] >> 24) ^ 0xFF):
        code, out, said = answer(without_checksums.commands[0])
    assert (code, out) == (1, ""), said
    assert f"pg_attribute: block 0 of file 1663/5/{path.name}" in said


def test_a_row_without_the_layout_of_its_catalog_is_named(without_checksums: World) -> None:
    path = without_checksums.catalogs[1]
    pages = np.fromfile(path, np.uint8)
    place = pages.tobytes().index(b"id".ljust(64, b"\0"))  # attname, behind attrelid
    while int(pages[place - 4 : place].view("<u4")[0]) < 16384:
        place = pages.tobytes().index(b"id".ljust(64, b"\0"), place + 1)
    alignment = place + 64 + 25  # attalign of 15
    assert chr(pages[alignment]) == "i", pages[place : place + 100].tobytes()
    with flipped(path, alignment, 0x80):
        code, out, said = answer(without_checksums.commands[0])
    assert (code, out) == (1, ""), said
    assert "pg_attribute: row" in said and "has a damaged attalign" in said
    assert f"of file 1663/5/{path.name}, from the base backup" in said
    with flipped(path, alignment, ord("i") ^ ord("d")):
        code, out, said = answer(without_checksums.commands[0])
    assert (code, out) == (1, ""), said
    assert "column id of public.kept in pg_attribute is not that of its type int4" in said
