"""Pages of a bounded store that are read from the base backup as they are needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from walkeeper_replay.redo.bounded_pages import BoundedPages
from walkeeper_replay.redo.page import PAGE_BYTES
from walkeeper_replay.redo.page_file import PageFile
from walkeeper_replay.redo.store import Relation
from walkeeper_replay.tuples.stored_chunks import StoredChunks
from walkeeper_wal.records.segment import Bytes, Column

TOAST, BLOCKS = Relation(1663, 5, 16384), 5
DAMAGED = 3


class Backup:
    """A base backup with one TOAST relation: each block has one chunk, of the value 7."""

    def block_count(self, relation: Relation) -> int | None:
        return BLOCKS if relation == TOAST else None

    def read(self, relation: Relation) -> Bytes | None:
        raise AssertionError("all pages at once")

    def read_block(self, relation: Relation, block: int) -> Bytes:
        page: Bytes = np.zeros(PAGE_BYTES, np.uint8)
        chunk = bytes((7, 0, 0, 0, block, 0, 0, 0, 5, 65 + block))  # a short header
        place = PAGE_BYTES - 40
        page[12:20] = np.array([28, place, PAGE_BYTES, PAGE_BYTES | 4], "<u2").view(np.uint8)
        item = place | 1 << 15 | (24 + len(chunk)) << 17
        page[24:28] = np.array([item], "<u4").view(np.uint8)
        page[place + 18], page[place + 22] = 3, 24  # natts, t_hoff
        page[place + 24 : place + 24 + len(chunk)] = np.frombuffer(chunk, np.uint8)
        return page

    def damaged(self, pages: Bytes, blocks: Column) -> Column:
        found: Column = blocks == DAMAGED
        return found


def test_a_damaged_page_of_the_base_gives_no_chunk(tmp_path: Path) -> None:
    """The value ends before the chunk, so it is not known, as with a store without a bound."""
    file, base = PageFile(tmp_path / "pages"), Backup()
    store = BoundedPages(wanted=[TOAST], base=base, file=file, origin=base)
    assert [store.page_at(0, block) is None for block in range(BLOCKS + 1)] == [
        block in (DAMAGED, BLOCKS) for block in range(BLOCKS + 1)
    ]
    assert StoredChunks(store, 0)(7, BLOCKS) == b"ABC"
    file.close()


def test_a_damaged_page_that_was_cut_off_gives_no_chunk(tmp_path: Path) -> None:
    """Pages that go away in a window are still read in it, in memory and in the file."""
    for is_in_file in (False, True):
        file, base = PageFile(tmp_path / f"pages{is_in_file}"), Backup()
        store = BoundedPages(wanted=[TOAST], base=base, file=file, origin=base)
        blocks = np.arange(BLOCKS)
        store._bring(np.zeros(BLOCKS, np.int64), blocks)
        if is_in_file:
            store.clock += 1
            store._evict(store.pages_max)
        store._drop(TOAST, 0, is_new=False)
        assert StoredChunks(store, 0)(7, BLOCKS) == b"ABC", f"{is_in_file=}"
        file.close()
